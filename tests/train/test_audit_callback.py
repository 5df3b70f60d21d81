"""The callback in a plain Trainer: it sees the batches that enter the step, and stops before a wrong one is learnt."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from course_lib.config.run_config import BudgetSection, load_run_config
from course_lib.data.grounding import GroundingDataset, collate
from course_lib.errors import FINDING, CourseError
from course_lib.models.supervised_loss import IGNORED
from course_lib.train.audit_callback import BatchAudit, Expected, expected_of

pytestmark = pytest.mark.slow

PROMPT, ANSWER = "Which parts are worth keeping? ", "1.5-3.0"


@pytest.fixture(scope="module")
def tokenizer(tiny_directory):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_directory)


def samples(tokenizer, *, wrong=(), count=8):
    """Text samples; those in `wrong` have every label at -100."""
    prompt = tokenizer(PROMPT)["input_ids"]
    whole = prompt + tokenizer(ANSWER + tokenizer.eos_token)["input_ids"]
    labels = [IGNORED] * len(prompt) + whole[len(prompt) :]
    return [
        {"input_ids": torch.tensor(whole), "labels": torch.tensor([IGNORED] * len(whole) if n in wrong else labels)}
        for n in range(count)
    ]


class Seen(Trainer):
    """Anybody's subclass: counts its steps, takes the indices out of the batch."""

    steps = 0

    def training_step(self, model, inputs, *arguments, **named):
        self.steps += 1
        inputs.pop("sample_index", None)
        return super().training_step(model, inputs, *arguments, **named)


def trainer_of(folder, items, tokenizer, kind=Trainer):
    def together(batch):
        return {name: torch.stack([item[name] for item in batch]) for name in batch[0]}

    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    return kind(
        model=LlamaForCausalLM(config),
        args=TrainingArguments(
            output_dir=str(folder), per_device_train_batch_size=2, max_steps=4, use_cpu=True, report_to="none",
            disable_tqdm=True, save_strategy="no", remove_unused_columns=False, train_sampling_strategy="sequential",
        ),
        train_dataset=items,
        data_collator=together,
    )  # fmt: skip


def test_right_batches_pass_and_the_step_is_given_back(tmp_path, tokenizer):
    said = []
    trainer = trainer_of(tmp_path, samples(tokenizer), tokenizer)
    trainer.add_callback(BatchAudit(trainer, tokenizer, batches=2, say=said.append))
    trainer.train()
    assert trainer.state.global_step == 4
    assert said == ["batch audit passed: labels of the first 4 samples in 2 batches"]
    assert trainer.training_step.__func__ is Trainer.training_step


def test_a_wrong_first_batch_stops_before_anything_is_learnt(tmp_path, tokenizer):
    trainer = trainer_of(tmp_path, samples(tokenizer, wrong=range(8)), tokenizer, Seen)
    trainer.add_callback(BatchAudit(trainer, tokenizer, say=lambda line: None))
    with pytest.raises(CourseError) as stopped:
        trainer.train()
    line = stopped.value.line()
    assert stopped.value.exit_code == FINDING
    assert line.startswith("batch audit, step 0 row 0: all 17 labels are -100") or "labels are -100" in line
    assert "(and 1 more findings)" in line
    assert "\n" not in line
    assert trainer.steps == trainer.state.global_step == 0


def test_only_the_first_batches_are_judged(tmp_path, tokenizer):
    items = samples(tokenizer, wrong=[5])
    late = trainer_of(tmp_path, items, tokenizer, Seen)
    late.add_callback(BatchAudit(late, tokenizer, batches=2, say=lambda line: None))
    late.train()
    assert late.steps == 4
    more = trainer_of(tmp_path, items, tokenizer, Seen)
    more.add_callback(BatchAudit(more, tokenizer, batches=3, say=lambda line: None))
    with pytest.raises(CourseError, match="step 2 row 1: all"):
        more.train()
    assert more.steps == 2


def test_known_answers_are_looked_up_by_the_index(tmp_path, tokenizer):
    items = [item | {"sample_index": torch.tensor(n)} for n, item in enumerate(samples(tokenizer))]

    def run(expected):
        trainer = trainer_of(tmp_path, items, tokenizer, Seen)
        trainer.add_callback(BatchAudit(trainer, tokenizer, expected=expected, say=lambda line: None))
        trainer.train()

    run(lambda index: Expected(answer=ANSWER))
    with pytest.raises(CourseError, match="step 1 row 1: the answer 'none' does not stand at the end"):
        run(lambda index: Expected(answer="none" if index == 3 else ANSWER))


@pytest.fixture
def batch(tiny_processor, example_folder):
    """A real batch of the shipped run, and its data set."""
    from course_lib.tasks.video_text import read_windows

    config = load_run_config(example_folder / "run_cpu.yaml")
    dataset = GroundingDataset(read_windows(config, "train").windows[:2], tiny_processor, config.budget)
    yield dataset, collate([dataset[0], dataset[1]], tiny_processor.tokenizer.pad_token_id)
    dataset.reader.close()


def auditor(dataset, **named):
    settings = {"budget": dataset.budget, "expected": expected_of(dataset)} | named
    return BatchAudit(None, dataset.processor, **settings)


def test_a_real_batch_is_judged_whole(batch):
    dataset, inputs = batch
    audit = auditor(dataset)
    audit.audit(inputs)
    assert (audit.audited_batches, audit.audited_samples) == (1, 2)


def test_times_of_other_frames_are_found(batch):
    """Row and index mixed up: the other window's answer and times."""
    dataset, inputs = batch
    dataset.windows = (dataset.windows[0], dataset.windows[0])
    inputs["sample_index"][:] = 0
    inputs["input_ids"][1] = inputs["input_ids"][0]
    auditor(dataset).audit(
        {**inputs, "labels": inputs["labels"][[0, 0]], "attention_mask": inputs["attention_mask"][[0, 0]]}
    )
    late = auditor(dataset, expected=lambda index: Expected(answer=dataset.windows[0].answer, step_seconds=(9.0,) * 8))
    with pytest.raises(CourseError, match=r"step 0 row 0: step 0 says 0\.5 s, its frames are at 9\.00 s"):
        late.audit(inputs)


@pytest.mark.parametrize(
    ("budget", "fault"),
    [
        (BudgetSection(frames=32, max_tokens_per_frame=1, min_tokens_per_frame=1), "32 frames were asked for, 16 are"),
        (BudgetSection(frames=15, max_tokens_per_frame=1, min_tokens_per_frame=1), None),
    ],
)
def test_frames_against_the_budget(batch, budget, fault):
    dataset, inputs = batch
    if fault is None:
        auditor(dataset, budget=budget).audit(inputs)
        return
    with pytest.raises(CourseError, match=f"clip 0: grid .*{fault}"):
        auditor(dataset, budget=budget).audit(inputs)


def test_a_cap_that_had_no_effect_is_found(batch):
    dataset, inputs = batch
    big = {**inputs, "video_grid_thw": inputs["video_grid_thw"] * torch.tensor([1, 3, 3])}
    with pytest.raises(CourseError, match="9 tokens per frame, the cap is 1: the budget had no effect"):
        auditor(dataset).audit(big)


def test_cut_placeholders_are_found_without_a_budget(batch, tiny_processor):
    dataset, inputs = batch
    audit = auditor(dataset, budget=None, expected=None)
    audit.audit(inputs)
    place = (inputs["input_ids"][0] == tiny_processor.video_token_id).nonzero()[0]
    inputs["input_ids"][0, place] = tiny_processor.tokenizer.pad_token_id
    with pytest.raises(CourseError, match="15 video placeholders for 16 visual tokens"):
        audit.audit(inputs)


def test_a_batch_without_labels_is_refused(batch):
    dataset, inputs = batch
    inputs.pop("labels")
    with pytest.raises(CourseError, match="the batch has no labels"):
        auditor(dataset).audit(inputs)
