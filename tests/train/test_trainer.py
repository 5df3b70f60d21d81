"""CourseTrainer: HF Trainer's training, with checkpoints that are whole or absent and every batch written down."""

import errno
import json
import os

import pytest
import torch

from course_lib.config.run_config import LoraSection
from course_lib.errors import CourseError
from course_lib.models.language_lora import add_language_lora
from course_lib.models.supervised_loss import IGNORED
from course_lib.train.checkpoints import checkpoints, remove_oldest, step_of
from course_lib.train.journal import Journal, PhaseMemory
from course_lib.train.trainer import UNFINISHED, CourseTrainer, FirstStep, LogRows

pytestmark = pytest.mark.slow

STEPS = 4


@pytest.fixture(autouse=True)
def cpu_ranks(monkeypatch):
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def tiny_lora():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=61,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        initializer_range=0.3,
    )
    return add_language_lora(LlamaForCausalLM(config), LoraSection(r=2, targets=("q_proj", "v_proj")))


def samples(count=16, length=9, learnt=3):
    generator = torch.Generator().manual_seed(1)
    items = []
    for index in range(count):
        ids = torch.randint(1, 61, (length,), generator=generator)
        labels = ids.clone()
        labels[: length - learnt] = IGNORED
        items.append({"input_ids": ids, "labels": labels, "index": index})
    return items


def together(items):
    batch = {name: torch.stack([item[name] for item in items]) for name in ("input_ids", "labels")}
    batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    batch["sample_index"] = torch.tensor([item["index"] for item in items])
    return batch


def make(folder, *, loss="supervised_positions", said=None, model=None, **arguments):
    from transformers import TrainingArguments

    settings = {"max_steps": STEPS, "save_strategy": "no", "learning_rate": 0.05, "logging_steps": 1} | arguments
    trainer = CourseTrainer(
        model=model or tiny_lora(),
        args=TrainingArguments(
            output_dir=str(folder),
            per_device_train_batch_size=2,
            use_cpu=True,
            report_to="none",
            disable_tqdm=True,
            remove_unused_columns=False,
            lr_scheduler_type="constant_with_warmup",
            **settings,
        ),
        train_dataset=samples(),
        data_collator=together,
        loss=loss,
        batches=Journal(folder / "batches_rank0.jsonl"),
        memory=PhaseMemory(Journal(folder / "memory_rank0.jsonl")),
    )
    trainer.add_callback(LogRows(Journal(folder / "train_log.jsonl")))
    trainer.add_callback(FirstStep(trainer, (said if said is not None else []).append))
    return trainer


def test_both_losses_train_the_same_path(tmp_path):
    losses = {}
    for loss in ("supervised_positions", "all_positions"):
        make(tmp_path / loss, loss=loss, gradient_accumulation_steps=2).train()
        losses[loss] = [row["loss"] for row in rows(tmp_path / loss / "train_log.jsonl") if "loss" in row]
    assert len(losses["all_positions"]) == STEPS
    assert losses["supervised_positions"] == pytest.approx(losses["all_positions"], rel=1e-4)
    assert len(set(losses["all_positions"])) == STEPS


def test_every_batch_and_every_phase_is_written_down(tmp_path):
    make(tmp_path).train()
    batches = rows(tmp_path / "batches_rank0.jsonl")
    assert [row["step"] for row in batches] == list(range(STEPS))
    seen = [sample for row in batches for sample in row["samples"]]
    assert len(set(seen)) == 2 * STEPS
    assert {(row["text_tokens"], row["supervised_tokens"], row["padded_tokens"]) for row in batches} == {(18, 6, 0)}
    phases = [row["phase"] for row in rows(tmp_path / "memory_rank0.jsonl")]
    assert phases == ["init", *["forward", "backward"] * STEPS]
    assert all(row["resident_bytes"] > 0 for row in rows(tmp_path / "memory_rank0.jsonl"))


def test_a_cpu_run_on_a_machine_with_gpus_counts_its_own_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    memory = PhaseMemory(Journal(tmp_path / "memory.jsonl"))
    memory.mark("load", 0)
    memory.mark("forward", 1)
    assert [row["resident_bytes"] > 0 for row in rows(tmp_path / "memory.jsonl")] == [True, True]
    assert memory.describe().startswith("memory by phase (resident): load ")


def test_the_first_step_check_waits_for_the_first_rate_above_zero(tmp_path):
    said = []
    trainer = make(tmp_path, said=said, warmup_steps=2)
    trainer.train()
    # A linear warm-up over 2 steps: rates 0, half, whole, whole.
    assert [row["learning_rate"] for row in rows(tmp_path / "train_log.jsonl") if "loss" in row] == [
        0,
        0.025,
        0.05,
        0.05,
    ]
    assert trainer.updates_done == STEPS - 1
    assert trainer.first_step.finished
    assert len(said) == 1


def test_a_fault_of_the_first_step_ends_the_training_there(tmp_path):
    model = tiny_lora()
    for name, p in model.named_parameters():
        if ".lora_B." in name:
            p.data.fill_(0.1)
    trainer = make(tmp_path, model=model)
    with pytest.raises(CourseError, match="lora_A has a gradient before the first update"):
        trainer.train()
    assert trainer.state.global_step == 0


def test_checkpoints_get_their_name_when_they_are_whole_and_the_oldest_go(tmp_path):
    trainer = make(tmp_path, save_strategy="steps", save_steps=1, save_total_limit=2)
    trainer.train()
    assert [path.name for path in checkpoints(tmp_path)] == [f"checkpoint-{STEPS - 1}", f"checkpoint-{STEPS}"]
    assert not (tmp_path / UNFINISHED).exists()
    assert trainer.args.output_dir == str(tmp_path)
    assert trainer.args.save_total_limit == 2
    last = {path.name for path in checkpoints(tmp_path)[-1].iterdir()}
    assert {"adapter_model.safetensors", "optimizer.pt", "scheduler.pt", "trainer_state.json"} <= last


def test_a_checkpoint_that_broke_off_is_never_resumed_from_and_makes_room(tmp_path, monkeypatch):
    from transformers import Trainer

    whole = Trainer._save_checkpoint

    def break_off(self, model, trial):
        if self.state.global_step == 2:
            half = os.path.join(self.args.output_dir, "checkpoint-2")
            os.makedirs(half)
            raise OSError(errno.ENOSPC, "No space left on device")
        whole(self, model, trial)

    saving = {"save_strategy": "steps", "save_steps": 1, "save_total_limit": 1}
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_save_checkpoint", break_off)
        broken = make(tmp_path, **saving)
        with pytest.raises(OSError, match="No space left"):
            broken.train()
    assert broken.args.output_dir == str(tmp_path)
    assert (tmp_path / UNFINISHED / "checkpoint-2").is_dir()
    assert [path.name for path in checkpoints(tmp_path)] == ["checkpoint-1"]

    resumed = make(tmp_path, **saving)
    resumed.train(resume_from_checkpoint=str(checkpoints(tmp_path)[-1]))
    assert resumed.first_step.finished
    assert [path.name for path in checkpoints(tmp_path)] == [f"checkpoint-{STEPS}"]
    assert not (tmp_path / UNFINISHED).exists()
    steps = [row["step"] for row in rows(tmp_path / "train_log.jsonl") if "loss" in row]
    assert steps == [1, 2, 2, 3, 4]


@pytest.fixture
def run_folder(tmp_path):
    for name in ("checkpoint-9", "checkpoint-100", "checkpoint-20", ".unfinished/checkpoint-300"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("checkpoint-x", "checkpoint-", "checkpoint-7.tmp"):
        (tmp_path / name).mkdir()
    (tmp_path / "checkpoint-400").write_text("a file")
    return tmp_path


def test_a_journal_of_a_resumed_run_goes_on_where_its_checkpoint_was(tmp_path):
    path = tmp_path / "a.jsonl"
    journal = Journal(path)
    for step in (1, 2, 3):
        journal.write(step=step)
    journal.close()
    path.write_text(path.read_text().replace('"time": 0.0', '"time": 50.0') + '{"step": 4, "lo')
    resumed = Journal(path, resumed_at=2)
    resumed.write(step=3, again=True)
    assert [row["step"] for row in rows(path)] == [1, 2, 3]
    assert rows(path)[-1]["again"]
    assert rows(path)[-1]["time"] >= 50


def test_checkpoints_are_ordered_by_step_and_nothing_else_is_one(run_folder):
    assert [path.name for path in checkpoints(run_folder)] == ["checkpoint-9", "checkpoint-20", "checkpoint-100"]
    assert checkpoints(run_folder / "nowhere") == []


@pytest.mark.parametrize(("limit", "kept"), [(1, ["100"]), (2, ["20", "100"]), (3, 3), (5, 3), (None, 3), (0, 3)])
def test_the_newest_checkpoints_stay(run_folder, limit, kept):
    remove_oldest(run_folder, limit)
    left = [str(step_of(path)) for path in checkpoints(run_folder)]
    assert (len(left) if isinstance(kept, int) else left) == kept
    assert (run_folder / ".unfinished" / "checkpoint-300").is_dir()
