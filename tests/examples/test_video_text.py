"""The example as a whole: trained for real on two CPU ranks, and what must be true of the result.

The first test that needs it trains into runs/video_text_tests (about six minutes on two cores), where the notebooks
look for it too; a run of the very same code is used again.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from course_lib.config.run_config import load_run_config
from course_lib.data.coverage import SamplerSettings, cover, trainer_epoch_order
from course_lib.files import read_json, read_json_lines
from course_lib.train.provenance import code_hash, file_hash

pytestmark = [pytest.mark.example, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
RUN_CONFIG = ROOT / "examples" / "video_text" / "run_cpu.yaml"
FOLDER = ROOT / "runs" / "video_text_tests"
COURSE = [str(Path(sys.executable).parent / "course")]
SHORT = ["train.warmup_steps=1", "train.logging_steps=1", "train.micro_batch_size=2"]


def train_command(folder: Path, *settings: str, flags: tuple[str, ...] = ()) -> list[str]:
    pairs = [f"output={folder}", *settings]
    return [*COURSE, "train", str(RUN_CONFIG), *(part for pair in pairs for part in ("--set", pair)), *flags]


def train(folder: Path, *settings: str, flags: tuple[str, ...] = (), limit: float = 300) -> subprocess.CompletedProcess:
    command = train_command(folder, *settings, flags=flags)
    return subprocess.run(command, capture_output=True, text=True, timeout=limit)


def made_by_this_code() -> bool:
    provenance = FOLDER / "adapter" / "provenance.json"
    if not provenance.is_file() or not (FOLDER / "report" / "report.json").is_file():
        return False
    record = read_json(provenance)
    same_config = record["run_config_sha256"] == file_hash(RUN_CONFIG)
    return same_config and record["environment"]["code_sha256"] == code_hash()


@pytest.fixture(scope="module")
def folder():
    if not made_by_this_code():
        shutil.rmtree(FOLDER, ignore_errors=True)
        done = train(FOLDER, limit=1500)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return FOLDER


@pytest.fixture(scope="module")
def report(folder):
    return read_json(folder / "report" / "report.json")


@pytest.mark.timeout(1600)
def test_it_learns_from_the_pixels_and_every_control_fails(report):
    iou = {name: scores["mean_iou"] for name, scores in report["scores"].items()}
    assert report["scores"]["after"]["samples"] >= 100
    assert report["scores"]["before"]["parse_rate"] >= 0.95
    assert iou["after"] >= 0.75
    assert iou["after"] >= iou["best_constant"] + 0.30
    assert iou["shuffled"] <= iou["best_constant"] + 0.05
    assert iou["blank"] <= iou["best_constant"] + 0.05


def test_the_fresh_process_compared_every_adapter_tensor(folder, report):
    held = read_json(folder / "adapter" / "tensors_held.json")
    layers, targets = 4, 7
    assert len(held) == 2 * layers * targets
    assert report["run"]["adapter tensors equal in a fresh process"] == f"{len(held)} of {len(held)}"


def test_the_first_step_was_checked(folder):
    log = (folder / "rank0.log").read_text()
    assert "28 lora_A gradients exactly zero until the first update" in log
    assert "all 56 adapter gradients above zero after it" in log


def test_every_rank_read_the_samples_that_the_coverage_named(folder):
    config = load_run_config(RUN_CONFIG)
    batches = [read_json_lines(folder / f"batches_rank{rank}.jsonl") for rank in range(2)]
    count = int((folder / "rank0.log").read_text().split(" windows from ")[0].split()[-1])
    order = trainer_epoch_order(count, config.train.seed, 0)
    predicted = cover(count, SamplerSettings(batch_size=config.train.micro_batch_size, ranks=2), order)
    for step, given in enumerate(predicted.steps):
        assert [tuple(batches[rank][step]["samples"]) for rank in range(2)] == list(given)


def test_every_batch_says_what_it_cost(folder):
    for row in read_json_lines(folder / "batches_rank1.jsonl"):
        assert row["frames"] == [16] * 16
        assert row["grids"] == [[8, 2, 2]] * 16
        assert row["visual_tokens"] == 16 * 8
        assert row["supervised_tokens"] >= 16 * 4
        assert row["text_tokens"] > row["supervised_tokens"]


def test_memory_is_logged_by_phase_on_every_rank(folder):
    for rank in range(2):
        phases = {row["phase"] for row in read_json_lines(folder / f"memory_rank{rank}.jsonl")}
        assert {"load", "init", "forward", "backward and step", "save"} <= phases


def test_provenance_says_what_made_it_and_no_secret(folder):
    text = (folder / "adapter" / "provenance.json").read_text()
    record = json.loads(text)
    assert record["environment"]["interpreter"] == sys.executable or record["environment"]["interpreter"]
    assert record["ds_config_as_resolved"]["zero_optimization"]["stage"] == 3
    assert record["ds_config_as_resolved"]["bf16"]["enabled"] is True
    assert "auto" not in json.dumps(record["ds_config_as_resolved"])
    assert {"annotations_sha256", "clips_sha256", "run_config_sha256", "git"} <= record.keys()
    assert not any(name in text for name in ("HF_TOKEN", "AWS_", "PATH="))


def test_the_reels_can_be_watched(folder):
    from course_lib.media.video import FrameReader

    with FrameReader() as reader:
        before, after = (reader.info(folder / "report" / f"{name}.mp4") for name in ("before", "after"))
    assert before.frames == after.frames >= 200


def test_checkpoints_are_whole_and_no_more_than_asked(folder):
    names = sorted(path.name for path in folder.glob("checkpoint-*"))
    assert len(names) == 2
    assert not (folder / ".unfinished").exists()
    for name in names:
        assert (folder / name / "trainer_state.json").is_file()
        assert (folder / name / "adapter_model.safetensors").stat().st_size > 100_000


def test_the_demo_shows_a_finished_run_again_and_says_what_is_next(folder):
    done = subprocess.run([sys.executable, "-m", "course_lib.tasks.demo", str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "has already run" in done.stdout
    assert "Not reached" not in done.stdout
    assert done.stdout.rstrip().endswith("next: make lab")


def test_the_launcher_gives_a_verdict_on_this_machine_and_starts_nothing(tmp_path):
    launcher = ROOT / "examples" / "video_text" / "run_cpu.sh"
    environment = os.environ | {"OUT": str(tmp_path / "a run")}
    done = subprocess.run([launcher, "--dry-run"], capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-500:]
    assert "1.0 + 1.0 = 2.0" in done.stdout
    assert done.stdout.rstrip().endswith("Dry run: nothing was started.")
    assert not (tmp_path / "a run").exists()


@pytest.mark.ranks
@pytest.mark.parametrize("ranks", [1, 3])
def test_other_numbers_of_ranks_run_the_same_path(tmp_path, ranks):
    settings = [*SHORT, f"ranks={ranks}", "train.max_steps=3", "train.smoke=true"]
    done = train(tmp_path / "run", *settings, flags=("--no-proof",))
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-1500:]
    assert f"one window repeated {ranks * 2} times" in done.stdout
    assert (tmp_path / "run" / "adapter" / "adapter_model.safetensors").is_file()
    assert len(list((tmp_path / "run").glob("batches_rank*.jsonl"))) == ranks


def losses(folder: Path) -> dict[int, float]:
    return {row["step"]: row["loss"] for row in read_json_lines(folder / "train_log.jsonl") if "loss" in row}


def process_of_rank(rank: int, folder: Path) -> psutil.Process:
    for process in psutil.process_iter(["cmdline"]):
        command = " ".join(process.info["cmdline"] or ())
        if "course_lib.tasks.process" in command and str(folder) in command and process.environ()["RANK"] == str(rank):
            return process
    raise AssertionError(f"rank {rank} is not running")


@pytest.mark.ranks
@pytest.mark.timeout(500)
def test_a_killed_run_ends_at_once_and_goes_on_with_the_same_losses(tmp_path):
    settings = [*SHORT, "train.max_steps=8", "train.save_steps=3"]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert train(whole, *settings, flags=("--no-proof",)).returncode == 0

    with (tmp_path / "out").open("w") as out:
        started = subprocess.Popen(
            train_command(broken, *settings, flags=("--no-proof",)), stdout=out, stderr=subprocess.STDOUT
        )
        deadline = time.monotonic() + 200
        while not (broken / "checkpoint-3").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        victim = process_of_rank(1, broken)
        os.kill(victim.pid, signal.SIGKILL)
        killed = time.monotonic()
        assert started.wait(timeout=30) == 1
    assert time.monotonic() - killed < 15
    assert "rank 1 was ended by SIGKILL" in (tmp_path / "out").read_text()
    assert [path.name for path in broken.glob("checkpoint-*")] in (["checkpoint-3"], ["checkpoint-6", "checkpoint-3"])
    assert not (broken / "adapter").exists()

    resumed = train(broken, *settings, flags=("--resume", "--no-proof"))
    assert resumed.returncode == 0, resumed.stdout[-1500:] + resumed.stderr[-1500:]
    assert "resuming from checkpoint-" in resumed.stdout
    expected, found = losses(whole), losses(broken)
    assert found.keys() == expected.keys()
    for step in expected:
        assert found[step] == pytest.approx(expected[step], abs=2e-3), f"step {step}"


@pytest.mark.ranks
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_full_disk_is_named_and_leaves_no_checkpoint_that_is_not_whole(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=900k", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("this container may not mount")
    try:
        done = train(disk / "run", *SHORT, "train.max_steps=4", "train.save_steps=2", flags=("--no-proof",))
        left = sorted(path.name for path in (disk / "run").glob("checkpoint-*"))
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "the disk is full" in done.stderr
    assert left == []
