"""How the doctor reads: damaged text, folders, several ranks, resumes, sizes, speed, and its command."""

import json
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.doctor.autopsy import advice, advice_memory, diagnose, gpu_memory, rows, sources, tracebacks
from course_lib.doctor.autopsy.findings import VERDICTS
from course_lib.errors import CourseError
from course_lib.units import GIB

LOGS = Path(__file__).parents[1] / "data" / "logs"
COMMAND = [sys.executable, "-c", "from course_lib.cli import main; main()", "doctor"]


def _row(step: int, seconds: float, **more) -> str:
    return json.dumps({"step": step, "loss": 1.5, "grad_norm": 0.5, "time": seconds} | more) + "\n"


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


# --- reading ---


def test_colours_carriage_returns_and_nuls_do_not_hide_a_row(tmp_path):
    log = _write(
        tmp_path / "a.log",
        "\x1b[32m  3%|▎  | 3/100 [00:30<16:10, 10.00s/it]\x1b[0m\r\x00\x1b[A{'loss': nan, 'grad_norm': nan}\r\n" * 4,
    )
    assert diagnose.diagnose([log])["verdict"] == "nan_signature"


def test_binary_rubbish_is_no_training_log(tmp_path):
    (tmp_path / "a.log").write_bytes(bytes(range(256)) * 400)
    assert diagnose.diagnose([tmp_path / "a.log"])["verdict"] == "unknown"


def test_rubbish_around_a_failure_does_not_hide_it(tmp_path):
    text = (LOGS / "logits_upcast.log").read_bytes()
    (tmp_path / "a.log").write_bytes(bytes(range(128, 256)) * 20 + b"\n" + text + b"\n" + bytes(range(128, 256)))
    assert diagnose.diagnose([tmp_path / "a.log"])["verdict"] == "oom_gpu"


@pytest.mark.parametrize("name", ["eval_on_rank0.log", "oom_rich_traceback.log", "stall_at_save_and_eval.jsonl"])
def test_a_log_cut_off_anywhere_is_read_as_far_as_it_goes(tmp_path, name):
    data = (LOGS / name).read_bytes()
    for end in range(0, len(data), max(1, len(data) // 60)):
        (tmp_path / name).write_bytes(data[:end])
        assert diagnose.diagnose([tmp_path / name])["verdict"] in VERDICTS


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=400), st.integers(0, 10))
def test_no_text_makes_it_stumble(tmp_path_factory, text, position):
    base = (LOGS / "host_torchrun_table.log").read_text().splitlines()
    path = tmp_path_factory.mktemp("fuzz") / "a.log"
    path.write_text("\n".join([*base[:position], text, *base[position:]]), encoding="utf-8", errors="replace")
    assert diagnose.diagnose([path])["verdict"] in VERDICTS


def test_a_missing_path_is_one_clear_error():
    with pytest.raises(CourseError, match="no such file"):
        diagnose.diagnose([Path("not/there.log")])


def test_thousands_of_lines_take_a_second(tmp_path):
    bars = "".join(
        f"\r {s}/50000 [{s * 2 // 3600}:{s * 2 // 60 % 60:02d}:{s * 2 % 60:02d}<9:00:00,  2.00s/it]"
        for s in range(1, 8001)
    )
    words = "".join(
        f'[INFO] worker {n} file "x.py" read sample {n}, nothing failed, timeout=1800\n' for n in range(8000)
    )
    log = _write(tmp_path / "a.log", bars + "\n" + words)
    started = time.process_time()
    record = diagnose.diagnose([log])
    lines_per_second = 16_000 / (time.process_time() - started)
    assert (record["verdict"], record["seconds_per_step"]) == ("healthy", 2.0)
    assert lines_per_second > 2000


# --- rows ---


@pytest.mark.parametrize(
    ("text", "kind", "step", "seconds"),
    [
        ("{'loss': '4.183', 'grad_norm': '1.167', 'epoch': '0.3'}", "train", None, None),
        ('{"current_steps": 10, "total_steps": 480, "loss": 1.2, "elapsed_time": "0:02:01"}', "train", 10, 121.0),
        ("{'loss': 1.2, 'global_step/max_steps': '5/100', 'elapsed_time': '1m 2s'}", "train", 5, 62.0),
        ('{"step": 50, "eval_loss": 1.8, "time": 1740.0}', "eval", 50, 1740.0),
        (" iteration 10/ 1000 | elapsed time per iteration (ms): 1234.5 | lm loss: 2.3E+00 |", "train", 10, None),
        ("[Rank 0] step=10, skipped=0, lr=[0.0001], mom=[(0.9, 0.999)]", "train", 10, None),
        ("step 3/3 loss 0.9183", "train", 3, None),
        ("{'train_runtime': 0.4, 'train_loss': 0.0}", "summary", None, None),
    ],
)
def test_rows_of_every_program_are_read(text, kind, step, seconds):
    row = rows.row_in(text)
    assert (row.kind, row.step, row.seconds) == (kind, step, seconds)


@pytest.mark.parametrize(
    "text", ["Step 3 of the recipe: knead", "{'a': 1}", "loss of data is possible", "{{{", "{'loss'"]
)
def test_other_text_is_no_row(text):
    assert rows.row_in(text) is None


# --- folders ---


def test_a_run_folder_is_read_with_its_settings(tmp_path):
    _write(tmp_path / "train_log.jsonl", "".join(_row(s, 2.0 * s) for s in range(10, 101, 10)))
    _write(tmp_path / "rank0.log", "rank 0: ready\n")
    _write(tmp_path / "settings.json", json.dumps({"max_steps": 400, "save_steps": 200, "resumed_from": None}))
    _write(tmp_path / ".checkpoint-100.tmp-x" / "rank9.log", "[rank9]: ValueError: half-written\n")
    record = diagnose.diagnose([tmp_path])
    assert (record["verdict"], record["seconds_per_step"], record["eta_seconds"]) == ("healthy", 2.0, 600.0)


def test_given_settings_win_over_the_folders(tmp_path):
    _write(tmp_path / "train_log.jsonl", "".join(_row(s, 2.0 * s) for s in range(10, 101, 10)))
    _write(tmp_path / "settings.json", json.dumps({"max_steps": 400}))
    assert diagnose.diagnose([tmp_path], {"max_steps": 200})["eta_seconds"] == 200.0


def test_the_rank_that_does_not_complain_is_the_one_that_went(tmp_path):
    gone = "RuntimeError: [gloo/transport/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:149\n"
    for rank in range(3):
        text = "".join(f"step {s}/50 loss 1.{s}\n" for s in range(1, 8)) + ("" if rank == 1 else gone)
        _write(tmp_path / f"rank{rank}.log", text)
    record = diagnose.diagnose([tmp_path])
    assert (record["verdict"], record["ranks"], record["at_steps"]) == ("rank_died", [1], [7])


def test_the_launchers_file_and_the_ranks_own_file_are_read_together(tmp_path):
    _write(tmp_path / "rank1.log", "Loading checkpoint shards:  37%|███▋      | 11/30 [08:12<14:10, 44.8s/it]\n")
    _write(tmp_path / "launcher.log", "rank 1 (pid 21877) ended with exit code -9; ending the others\n")
    record = diagnose.diagnose([tmp_path])
    assert (record["verdict"], record["phase"], record["ranks"]) == ("oom_host", "load", [1])


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        ("course train: out: rank 0 was ended by SIGBUS: the disk is full (0 B left). Free space", "disk_full"),
        (
            "course train: rank 1 was ended by SIGBUS; the other ranks were ended too. Its last line: 'x'",
            "shm_too_small",
        ),
        ("course train: rank 1 was ended by SIGSEGV; the other ranks were ended too. Its last line: 'x'", "rank_died"),
        (
            "course train: rank 1 ended with exit code 1; the other ranks were ended too. Its last line: 'x'",
            "rank_died",
        ),
    ],
)
def test_what_our_starter_says_of_a_dead_rank_is_read(tmp_path, said, verdict):
    _write(tmp_path / "train_log.jsonl", "".join(_row(s, 2.0 * s) for s in range(10, 31, 10)))
    _write(tmp_path / "run.log", said + "\n")
    assert diagnose.diagnose([tmp_path])["verdict"] == verdict


def test_collectives_are_compared_across_files(tmp_path):
    for rank, (number, size) in enumerate([(12, 4096), (13, 1)]):
        work = f"WorkNCCL(SeqNum={number}, OpType=ALLREDUCE, NumelIn={size}, NumelOut={size}, Timeout(ms)=60000)"
        line = f"[Rank {rank}] Watchdog caught collective operation timeout: {work}"
        _write(tmp_path / f"node0_rank{rank}.log", f"step 4/10 loss 1.0\n{line}\n")
    record = diagnose.diagnose([tmp_path])
    assert (record["verdict"], record["ranks"]) == ("collective_mismatch", [0, 1])


def test_our_watchdogs_lines_are_compared(tmp_path):
    said = "watchdog: rank {} at step 50: no progress for 60 s; last collective {} in {}\n"
    text = said.format(0, "all_gather(seq=12, numel=4096)", "evaluate") + said.format(
        1, "all_reduce(seq=12, numel=1)", "training_step"
    )
    record = diagnose.diagnose([_write(tmp_path / "a.log", "step 50/100 loss 1.0\n" + text)])
    assert (record["verdict"], record["ranks"]) == ("collective_mismatch", [0, 1])


def test_one_slow_ranks_own_clock_gives_it_away(tmp_path):
    for rank, pace in enumerate([1.0, 1.02, 1.7]):
        _write(
            tmp_path / f"rank{rank}.log",
            "".join(f"step {s}/50 loss 1.0 forward_time {pace + 0.01 * (s % 3):.3f}\n" for s in range(1, 12)),
        )
    record = diagnose.diagnose([tmp_path])
    assert (record["verdict"], record["ranks"]) == ("straggler", [2])


def test_the_newest_trainer_state_counts_and_its_callbacks_are_settings(tmp_path):
    for step, total in ((10, 99), (40, 100)):
        state = {
            "log_history": [{"step": s, "loss": 1.0, "grad_norm": 0.3} for s in range(10, step + 1, 10)],
            "max_steps": total,
            "eval_steps": 30,
            "stateful_callbacks": {"EarlyStoppingCallback": {"args": {"early_stopping_patience": 9}, "attributes": {}}},
        }
        _write(tmp_path / f"checkpoint-{step}" / "trainer_state.json", json.dumps(state))
    record = diagnose.diagnose([tmp_path])
    assert record["max_steps"] == 100
    assert (record["verdict"], record["cause"]) == ("early_stop_inactive", "no_eval")


# --- weights ---


def _safetensors(path: Path, shape: list[int], cut_bytes: int = 0) -> Path:
    count = 1
    for side in shape:
        count *= side
    header = json.dumps({"w": {"dtype": "F32", "shape": shape, "data_offsets": [0, 4 * count]}}).encode()
    data = struct.pack("<Q", len(header)) + header + b"\0" * 4 * count
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data[: len(data) - cut_bytes])
    return path


def test_a_whole_weight_file_is_well(tmp_path):
    assert sources.safetensors_damage(_safetensors(tmp_path / "a.safetensors", [4, 4])) == ""


@pytest.mark.parametrize(("shape", "cut"), [([4, 4], 8), ([4, 4], 100), ([0], 0), ([16], 130)])
def test_a_cut_or_empty_weight_file_in_a_run_folder_is_found(tmp_path, shape, cut):
    _safetensors(tmp_path / "checkpoint-10" / "adapter_model.safetensors", shape, cut)
    _write(tmp_path / "train_log.jsonl", "".join(_row(s, 2.0 * s) for s in range(10, 51, 10)))
    record = diagnose.diagnose([tmp_path])
    assert record["verdict"] == "checkpoint_damaged"
    assert "adapter_model.safetensors" in record["evidence"][0]


# --- numbers ---


@given(st.sampled_from(sorted(gpu_memory.VOCABULARIES)), st.integers(2_000, 400_000))
def test_positions_come_back_from_the_size_they_made(vocabulary, positions):
    size_gib = round(positions * vocabulary * 4 / GIB, 2)
    found = gpu_memory._positions(diagnose.Log(), round(size_gib * GIB), 4)[f"positions_if_vocab_{vocabulary}"]
    # The message rounds to 0.01 GiB, the answer to three digits.
    assert abs(found - positions) <= 0.005 * positions + 0.006 * GIB / (vocabulary * 4) + 1


def test_a_vocabulary_that_the_log_states_comes_first(tmp_path):
    text = '  "vocab_size": 155136,\n' + (LOGS / "logits_upcast.log").read_text()
    numbers = diagnose.diagnose([_write(tmp_path / "a.log", text)])["numbers"]
    assert next(k for k in numbers if k.startswith("positions")) == "positions_if_vocab_155136"


def test_the_evaluation_batch_that_was_set_is_used(tmp_path):
    text = (LOGS / "oom_eval_batch.log").read_text().replace("Batch size = 8", "Batch size = 4")
    record = diagnose.diagnose([_write(tmp_path / "a.log", text)])
    assert record["numbers"]["eval_batch_size"] == 4
    assert record["numbers"]["freed_by_batch_of_1_bytes"] == pytest.approx(37.10 * GIB * 3 / 4, rel=1e-6)


# --- what was survived, and what was not ---


def test_an_error_that_training_survived_is_no_verdict(tmp_path):
    oom = "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    steps = "".join(f"step {s}/50 loss 1.{s}\n" for s in range(1, 9))
    assert diagnose.diagnose([_write(tmp_path / "a.log", oom + steps)])["verdict"] == "healthy"
    assert diagnose.diagnose([_write(tmp_path / "b.log", steps + oom)])["verdict"] == "oom_gpu"


def test_sigkill_with_host_memory_low_in_use_was_not_the_kernel(tmp_path):
    use = "[INFO] [utils.py:784:see_memory_usage] CPU Virtual Memory:  used = 30.1 GB, percent = {}%\n"
    end = "step 9/50 loss 1.0\n['python', 'train.py', '--local_rank=1'] exits with return code = -9\n"
    assert diagnose.diagnose([_write(tmp_path / "a.log", use.format(22.5) + end)])["verdict"] == "rank_died"
    assert diagnose.diagnose([_write(tmp_path / "b.log", use.format(97.1) + end)])["verdict"] == "oom_host"


@pytest.mark.parametrize(("resident_gib", "expected"), [(2, "rank_died"), (30, "oom_host")])
def test_the_ranks_own_memory_rows_tell_whether_ram_was_short(tmp_path, resident_gib, expected):
    for rank in range(2):
        rows_of = [
            {"phase": p, "step": s, "resident_bytes": resident_gib * GIB}
            for p, s in (("load", 0), ("init", 0), ("forward", 7))
        ]
        _write(tmp_path / f"memory_rank{rank}.jsonl", "".join(json.dumps(row) + "\n" for row in rows_of))
    _write(tmp_path / "settings.json", json.dumps({"max_steps": 90, "host_total_bytes": 64 * GIB}))
    _write(tmp_path / "run.log", "course train: rank 1 was ended by SIGKILL; the other ranks were ended too.\n")
    record = diagnose.diagnose([tmp_path])
    assert (record["verdict"], record["ranks"]) == (expected, [1])


def test_a_resumed_run_has_time_left_although_an_earlier_one_ended_well(tmp_path):
    ended = json.dumps({"step": 100, "train_runtime": 200.0, "train_loss": 1.0, "time": 200.0}) + "\n"
    first, second = ("".join(_row(s, 2.0 * (s - f)) for s in range(f + 10, f + 101, 10)) for f in (0, 100))
    log = _write(tmp_path / "train_log.jsonl", first + ended + second)
    assert diagnose.diagnose([log], {"max_steps": 300})["eta_seconds"] == 200.0
    log = _write(tmp_path / "train_log.jsonl", first + ended)
    assert diagnose.diagnose([log], {"max_steps": 300})["eta_seconds"] is None


def test_a_rank_that_died_first_explains_the_others_timeouts(tmp_path):
    text = (LOGS / "segfault_launcher.log").read_text() + (LOGS / "nccl_one_rank_only.log").read_text()
    assert diagnose.diagnose([_write(tmp_path / "a.log", text)])["verdict"] == "rank_died"


@pytest.mark.parametrize(("resumed", "expected"), [(True, "healthy"), (False, "clock_jump")])
def test_a_clock_that_runs_back_is_a_jump_unless_the_run_was_resumed(tmp_path, resumed, expected):
    before = "".join(_row(s, 500 + 5.0 * s) for s in range(10, 101, 10))
    after = "".join(_row(s, 500 + 5.0 * (s - 60)) for s in range(110, 161, 10))
    marker = "resuming from checkpoint-100\n" if resumed else ""
    assert diagnose.diagnose([_write(tmp_path / "a.log", before + marker + after)])["verdict"] == expected


@settings(max_examples=60, deadline=None)
@given(
    pace=st.floats(0.5, 60),
    every=st.sampled_from([1, 5, 10]),
    save=st.sampled_from([50, 100]),
    cost=st.floats(0, 3000),
    resumed=st.sampled_from([0, 400, 1000]),
    done=st.integers(120, 260),
)
def test_pace_and_time_left_are_the_ones_the_run_was_made_with(
    tmp_path_factory, pace, every, save, cost, resumed, done
):
    """A simulated run: `pace` s a step, a pause of `cost` s at every multiple of `save`, cut off after `done` steps."""
    done -= done % every
    now, text = 0.0, ""
    for step in range(resumed + every, resumed + done + 1, every):
        now += pace * every
        text += _row(step, round(now, 3))
        if step % save == 0:
            now += cost
    path = tmp_path_factory.mktemp("pace") / "train_log.jsonl"
    path.write_text(text)
    record = diagnose.diagnose([path], {"max_steps": resumed + 1000, "save_steps": save, "resumed_from": resumed})
    assert record["verdict"] in ("healthy", "stalled")
    assert record["seconds_per_step"] == pytest.approx(pace, rel=0.01)
    last = resumed + done
    pauses = (resumed + 1000) // save - last // save
    # A pause at the very last row has not happened yet in the log, but will.
    pauses += last % save == 0
    assert record["eta_seconds"] == pytest.approx((1000 - done) * pace + cost * pauses, rel=0.02)
    if record["verdict"] == "stalled":
        assert all(step % save == 0 for step in record["at_steps"])


@pytest.mark.parametrize(("falls", "flat"), [(True, False), (False, True)])
def test_a_plateau_is_said_and_is_no_alarm(tmp_path, falls, flat):
    text = "".join(_row(s, 2.0 * s, loss=2 - s / 400 if falls else max(1.0, 2 - s / 100)) for s in range(10, 601, 10))
    record = diagnose.diagnose([_write(tmp_path / "a.jsonl", text)])
    assert record["verdict"] == "healthy"
    assert any("plateau" in line for line in record["evidence"]) == flat


def test_a_figure_shows_the_pauses(tmp_path):
    drawn = tmp_path / "run.svg"
    settings_of = json.loads((LOGS / "stall_at_save_and_eval.expect.json").read_text())["settings"]
    diagnose.diagnose([LOGS / "stall_at_save_and_eval.jsonl"], settings_of, drawn)
    assert drawn.read_text().lstrip().startswith("<?xml")
    with pytest.raises(CourseError, match="One of"):
        diagnose.diagnose([LOGS / "stall_at_save_and_eval.jsonl"], settings_of, tmp_path / "run.txt")
    with pytest.raises(CourseError, match="to draw"):
        diagnose.diagnose([LOGS / "unknown_prose.txt"], None, tmp_path / "b.svg")


def test_settings_may_be_text_and_shares(tmp_path):
    log = _write(tmp_path / "a.jsonl", "".join(_row(s, 2.0 * s + (900 if s > 50 else 0)) for s in range(10, 101, 10)))
    record = diagnose.diagnose([log], {"max_steps": "200", "save_steps": 0.25, "eval_steps": None})
    assert (record["verdict"], record["at_steps"], record["max_steps"]) == ("stalled", [50], 200)


def test_stalls_are_put_down_to_evaluation_when_only_the_log_shows_its_period(tmp_path):
    record = diagnose.diagnose([LOGS / "stall_at_save_and_eval.jsonl"])
    assert (record["verdict"], record["cause"], record["at_steps"]) == ("stalled", "eval", [50, 100, 150])


# --- phases ---


def _frames(*names: str):
    pairs = [name.split() for name in names]
    return [tracebacks.Frame(file=f"/opt/venv/site-packages/{f}", line_number=1, function=n) for f, n in pairs]


TRAIN = ("transformers/trainer.py train", "transformers/trainer.py training_step")
LOSS = (*TRAIN, "transformers/trainer.py compute_loss")
BACKWARD = (*TRAIN, "accelerate/accelerator.py backward")
STACKS = [
    ("load", "transformers/modeling_utils.py from_pretrained", "torch/nn/modules/module.py _apply"),
    ("load", "deepspeed/runtime/engine.py load_checkpoint", "torch/serialization.py load"),
    ("init", "accelerate/accelerator.py prepare", "deepspeed/runtime/engine.py _configure_optimizer"),
    (
        "init",
        "deepspeed/__init__.py initialize",
        "deepspeed/z/stage3.py initialize_optimizer_states",
        "torch/optim/a.py step",
    ),
    ("forward", *LOSS, "transformers/models/llama/modeling_llama.py forward"),
    ("forward", *TRAIN, "trl/trainer/grpo_trainer.py _generate", "transformers/g/utils.py generate", "m.py forward"),
    ("loss", *LOSS, "transformers/loss/loss_utils.py ForCausalLMLoss", "torch/nn/functional.py cross_entropy"),
    ("loss", *LOSS, "trl/trainer/utils.py selective_log_softmax"),
    ("backward", *BACKWARD, "torch/autograd/graph.py _engine_run_backward"),
    ("backward", *TRAIN, "torch/_tensor.py backward", "torch/utils/checkpoint.py unpack_hook", "m.py forward"),
    ("step", *BACKWARD, "deepspeed/runtime/engine.py step", "deepspeed/runtime/zero/stage3.py step"),
    ("step", "transformers/trainer.py train", "torch/optim/adamw.py _init_group"),
    ("eval", "transformers/trainer.py evaluate", "transformers/trainer.py prediction_step", "m.py forward"),
    ("save", "transformers/trainer.py _save_checkpoint", "deepspeed/e.py _zero3_consolidated_16bit_state_dict"),
    (None, "torch/utils/data/dataloader.py __next__"),
]


@pytest.mark.parametrize("stack", STACKS, ids=lambda stack: f"{stack[0]}-{stack[-1].split()[1]}")
def test_a_phase_is_told_from_function_names_alone(stack):
    phase, *names = stack
    assert tracebacks.phase_of(_frames(*names)) == phase


def test_a_kill_after_a_ranks_own_timeout_is_part_of_the_shutdown(tmp_path):
    text = (LOGS / "nccl_one_rank_only.log").read_text() + "rank 2 (pid 7) ended with exit code -9\n"
    assert diagnose.diagnose([_write(tmp_path / "rank2.log", text)])["verdict"] == "collective_timeout"


def test_a_timeout_of_a_run_that_was_started_again_is_no_verdict(tmp_path):
    again = "".join(f" {s}/900 [00:{s - 88}<2:15:24, 10.03s/it]\n" for s in range(89, 99))
    text = (LOGS / "nccl_same_collective.log").read_text() + again
    assert diagnose.diagnose([_write(tmp_path / "a.log", text)])["verdict"] == "healthy"


# --- words and command ---


def test_every_verdict_has_advice_and_every_cause_of_memory_too():
    assert set(advice.WRITERS) | {"oom_gpu"} == set(VERDICTS)
    causes = {json.loads(p.read_text()).get("cause") for p in LOGS.glob("oom_*.expect.json")} - {None}
    assert causes <= set(advice_memory.BY_CAUSE)


def test_without_a_path_it_is_course_check(monkeypatch):
    from typer.testing import CliRunner

    from course_lib import cli
    from course_lib.doctor import environment, lines

    monkeypatch.setattr(environment, "environment_lines", lambda: [lines.fail("disk", "full", "Free some")])
    cli.load_commands()
    result = CliRunner().invoke(cli.app, ["doctor"])
    assert (result.exit_code, "[FAIL] disk: full" in result.output) == (1, True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code", "verdict"),
    [
        (["host_killed.log"], 1, "oom_host"),
        (["healthy/trl_sft.log"], 0, "healthy"),
        (["unknown_prose.txt"], 0, "unknown"),
    ],
)
def test_the_command_speaks_json_and_its_exit_code_says_whether_to_stop(arguments, code, verdict):
    done = subprocess.run([*COMMAND, *arguments, "--json"], capture_output=True, text=True, cwd=LOGS)
    assert (done.returncode, json.loads(done.stdout)["verdict"]) == (code, verdict)


@pytest.mark.slow
def test_the_command_says_the_first_piece_of_advice_first_and_refuses_bad_settings(tmp_path):
    done = subprocess.run([*COMMAND, "logits_upcast.log"], capture_output=True, text=True, cwd=LOGS)
    assert done.returncode == 1
    assert "Do this first: 49.00 GiB is logits: 86600 positions" in done.stdout
    bad = _write(tmp_path / "s.json", "[1]")
    done = subprocess.run(
        [*COMMAND, "logits_upcast.log", "--settings", str(bad)], capture_output=True, text=True, cwd=LOGS
    )
    assert (done.returncode, "JSON object" in done.stderr) == (2, True)
