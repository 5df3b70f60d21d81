"""The ZeRO lab: bytes against the formula on real ranks, and ranks that never outlive their trouble."""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from course_lib.errors import CourseError
from course_lib.train import ranks, stages

WIDTH, BLOCKS = 129, 2
"""An odd width: half of a bias does not exist, so stage 3 must round every parameter up by itself."""


@pytest.fixture(scope="module")
def lab():
    return stages.zero_lab(stages=(0, 1, 2, 3), ranks=2, width=WIDTH, blocks=BLOCKS, time_limit_seconds=240)


def parameter_sizes() -> list[int]:
    w = WIDTH
    block = [4 * w * w, 4 * w, 4 * w * w, w]
    return [64 * w, *block * BLOCKS, 64 * w, 64]


@pytest.mark.slow
@pytest.mark.ranks
@pytest.mark.parametrize("rank", [0, 1])
def test_stage_0_holds_sixteen_bytes_of_every_parameter_on_every_rank(lab, rank):
    held = lab.held(0, rank)
    psi = sum(parameter_sizes())
    assert lab.psi == psi
    assert (held.weight_bytes, held.gradient_bytes) == (2 * psi, 2 * psi)
    assert (held.master_bytes, held.adam_bytes) == (4 * psi, 8 * psi)
    assert {part: held.parts()[part] for part in stages.STATE_BYTES} == {
        p: b * psi for p, b in stages.STATE_BYTES.items()
    }


@pytest.mark.slow
@pytest.mark.ranks
@pytest.mark.parametrize("rank", [0, 1])
def test_stage_3_holds_half_of_every_parameter_rounded_up(lab, rank):
    held = lab.held(3, rank)
    shard = sum(-(-size // 2) for size in parameter_sizes())
    assert shard > sum(parameter_sizes()) / 2
    assert (held.weight_bytes, held.gradient_bytes) == (2 * shard, 2 * shard)
    assert (held.master_bytes, held.adam_bytes) == (4 * shard, 8 * shard)
    assert held.buffer_bytes == 2 * stages.lab_config(3)["zero_optimization"]["reduce_bucket_size"]


@pytest.mark.slow
@pytest.mark.ranks
@pytest.mark.parametrize("stage", [1, 2])
def test_stages_1_and_2_keep_all_weights_and_share_the_optimizer(lab, stage):
    held = lab.held(stage)
    # DeepSpeed pads the flat buffer so that every rank's part is aligned: a few elements.
    assert held.weight_bytes == pytest.approx(2 * lab.psi, abs=64)
    assert held.master_bytes + held.adam_bytes == pytest.approx(12 * lab.psi / 2, abs=6 * 64)


@pytest.mark.slow
@pytest.mark.ranks
def test_nothing_large_escapes_the_count(lab):
    assert all(run.held.other_bytes < 0.05 * run.held.total_bytes for run in lab.runs)


@pytest.mark.slow
@pytest.mark.ranks
def test_stage_3_trains_like_a_plain_loop(lab):
    assert lab.run(3).losses == pytest.approx(plain_losses(ranks=2, steps=4), rel=0.01)
    assert lab.run(3).losses[-1] < lab.run(3).losses[0]


def plain_losses(*, ranks: int, steps: int) -> list[float]:
    """Rank 0's losses from PyTorch alone, fp32, the gradients of all ranks' batches averaged."""
    import torch

    model = stages.lab_model(width=WIDTH, blocks=BLOCKS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        for rank in range(ranks):
            x = torch.randint(0, 64, (8, 32), generator=torch.Generator().manual_seed(1000 * rank + step))
            loss = torch.nn.functional.cross_entropy(model(x).flatten(0, 1), (3 * x + 1).flatten() % 64)
            (loss / ranks).backward()
            losses += [loss.item()] if rank == 0 else []
        optimizer.step()
    return losses


SLEEP_WITH_CHILD = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
open(os.path.join({folder!r}, f"pids{{os.environ['RANK']}}"), "w").write(f"{{os.getpid()}} {{child.pid}}")
{then}
time.sleep(60)
"""


def left_alive(folder, *, grace_seconds: float = 5) -> list[int]:
    """Process ids from the files pids* that still run; a kill that has been sent may take a moment."""
    pids = [int(pid) for file in folder.glob("pids*") for pid in file.read_text().split()]
    assert pids
    deadline = time.monotonic() + grace_seconds
    while (running := [pid for pid in pids if runs(pid)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return running


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_for_files(folder) -> str:
    """Code with which a rank waits until both ranks have written their process ids."""
    return f"import glob\nwhile len(glob.glob({str(folder)!r} + '/pids*')) < 2: time.sleep(0.05)"


def run(folder, then: str, limit: float):
    code = SLEEP_WITH_CHILD.format(folder=str(folder), then=then)
    ranks.run_ranks([sys.executable, "-c", code], ranks=2, log_folder=folder, time_limit_seconds=limit)


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("death", "said"),
    [("os.kill(os.getpid(), 9)", "ended by SIGKILL"), ("raise ValueError('no such tensor')", "no such tensor")],
)
def test_a_dead_rank_ends_the_other_and_says_why(tmp_path, death, said):
    started = time.monotonic()
    then = wait_for_files(tmp_path) + f"\nif os.environ['RANK'] == '1': {death}"
    with pytest.raises(CourseError, match=said) as caught:
        run(tmp_path, then, 30)
    assert "rank 1" in caught.value.line()
    assert time.monotonic() - started < 15
    assert left_alive(tmp_path) == []


@pytest.mark.ranks
def test_the_time_limit_ends_every_process_of_every_rank(tmp_path):
    with pytest.raises(CourseError, match="not finished after 2 s"):
        run(tmp_path, wait_for_files(tmp_path), 2)
    assert left_alive(tmp_path) == []


@pytest.mark.ranks
def test_ranks_end_when_the_process_that_started_them_is_killed(tmp_path):
    inside = "from course_lib.train.ranks import end_with_parent\nend_with_parent(int(os.environ['COURSE_PARENT_PID']))"
    code = SLEEP_WITH_CHILD.format(folder=str(tmp_path), then=inside)
    starter = (
        "from pathlib import Path; import sys; from course_lib.train.ranks import run_ranks\n"
        f"command, folder = [sys.executable, '-c', {code!r}], Path({str(tmp_path)!r})\n"
        "run_ranks(command, ranks=2, log_folder=folder, time_limit_seconds=60)"
    )
    process = subprocess.Popen([sys.executable, "-c", starter])
    deadline = time.monotonic() + 20
    while len(list(tmp_path.glob("pids*"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)  # let both threads begin to watch
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert left_alive(tmp_path) == []


def test_a_rank_gets_what_torchrun_would_set_and_the_users_folder_for_operators(monkeypatch, tmp_path):
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    environment = ranks.rank_environment(1, ranks=3, port=12345)
    expected = {"RANK": "1", "WORLD_SIZE": "3", "MASTER_PORT": "12345", "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    assert expected.items() <= environment.items()
    assert environment["TORCH_EXTENSIONS_DIR"] == os.path.join(sys.prefix, "torch_extensions")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    assert ranks.rank_environment(0, ranks=1, port=1)["TORCH_EXTENSIONS_DIR"] == str(tmp_path)


@pytest.mark.parametrize("wrong", [{"stages": (4,)}, {"stages": ()}, {"ranks": 0}, {"steps": 1}, {"width": 0}])
def test_a_lab_that_cannot_be_is_refused_before_it_starts(wrong):
    with pytest.raises(CourseError):
        stages.zero_lab(**wrong)


def test_parts_sum_to_the_total():
    names = ("weight_bytes", "gradient_bytes", "master_bytes", "adam_bytes", "buffer_bytes", "other_bytes")
    held = stages.HeldBytes(**{name: 10**index for index, name in enumerate(names)})
    assert held.total_bytes == sum(held.parts().values()) == 111_111
    assert json.dumps(held.parts())


def test_a_storage_shared_by_two_tensors_is_counted_once():
    import torch

    whole = torch.zeros(100)
    assert stages.storages(iter([whole[:10], whole[10:], whole]), set()) == 400
