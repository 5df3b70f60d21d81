"""`course preflight RUN`: what this run needs against what this node has, in one verdict.

Bytes per GPU and host are `course plan`'s prediction, held against what is free here; the rest is seen or tried.
"""

import json
import os
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from course_lib.config.run_config import RunConfig
from course_lib.doctor import environment, machine, probes, run_files
from course_lib.doctor.all_reduce import AllReduce, try_all_reduce
from course_lib.doctor.lines import Line, fail, ok, warn
from course_lib.doctor.packages import package_lines
from course_lib.train.ranks import extensions_folder, free_port
from course_lib.units import GIB, human_bytes

TIME_LIMIT_SECONDS = 16.0
"""For everything that runs in processes of its own: with the rest, preflight answers within twenty seconds."""
GPU_TIME_LIMIT_SECONDS = 60.0
BF16_CAPABILITY = (8, 0)
"""Ampere is the first NVIDIA generation with bf16 in hardware."""
OPEN_FILES = 4096
DEFAULT_PORT = 29500
"""torchrun's and deepspeed's default master port."""


def preflight_lines(config: RunConfig, base: Path) -> list[Line]:
    """All lines, in the order: this node, this environment, this run.

    Args:
        config: the run. base: the folder that a relative `model` is relative to.
    """
    gpus = machine.gpus()
    on_cpu = config.node == "cpu" or not gpus.gpus
    ds_config, unreadable = run_files.read_ds_config(config)
    answers = _ask(config, base, gpus=0 if on_cpu else min(len(gpus.gpus), config.ranks))
    return [
        gpu_line(config, gpus),
        *process_lines(config, gpus),
        *plan_lines(answers.probes.get("plan"), config, gpus, machine.host_memory()),
        environment.ram_line(machine.host_memory(), ranks=config.ranks if on_cpu else 2),
        swap_line(machine.host_memory()),
        environment.shm_line(machine.shared_memory(), ranks=config.ranks if on_cpu else 2),
        memlock_line(ds_config, machine.limit("RLIMIT_MEMLOCK"), on_cpu=on_cpu),
        files_line(machine.limit("RLIMIT_NOFILE")),
        *run_files.disk_lines(config, ds_config),
        port_line(),
        environment.python_line(),
        *package_lines(),
        environment.compiler_line(answers.probes["compiler"]),
        environment.ninja_line(),
        environment.op_line(extensions_folder()),
        environment.video_line(answers.probes["video"]),
        *all_reduce_lines(answers.sum),
        run_files.model_line(config, base),
        *run_files.data_lines(config),
        *([unreadable] if unreadable else lint_lines(answers.probes["lint"])),
    ]


class _Answers:
    """What the processes said; they run side by side."""

    probes: dict[str, probes.Answer]
    sum: AllReduce


def _ask(config: RunConfig, base: Path, *, gpus: int) -> _Answers:
    answers = _Answers()
    limit = GPU_TIME_LIMIT_SECONDS if gpus else TIME_LIMIT_SECONDS
    with tempfile.TemporaryDirectory() as folder:
        resolved = Path(folder) / "run.yaml"
        # JSON is YAML; overrides are in it, and paths are absolute.
        record = {key: value for key, value in config.as_record().items() if key != "source"}
        if (base / config.model).is_dir():
            record["model"] = str((base / config.model).resolve())
        resolved.write_text(json.dumps(record))
        course = [sys.executable, "-c", "from course_lib.cli import main; main()"]
        wanted = {k: v for k, v in probes.commands().items() if k != "torch"}
        # Exit code 1 is lint's finding, not its failure: the shell keeps the answer.
        keep = [sys.executable, "-c", _KEEP_ANSWER]
        wanted["lint"] = [*keep, *course, "lint", str(resolved), "--json"]
        if config.node != "cpu":
            wanted["plan"] = [*keep, *course, "plan", str(resolved), "--node", config.node, "--json"]
        adding = threading.Thread(
            target=lambda: setattr(answers, "sum", try_all_reduce(gpus=gpus, time_limit_seconds=limit))
        )
        adding.start()
        answers.probes = probes.ask(wanted, time_limit_seconds=limit)
        adding.join()
    return answers


_KEEP_ANSWER = """
import json, subprocess, sys
done = subprocess.run(sys.argv[1:], capture_output=True, text=True)
if done.returncode not in (0, 1):
    sys.exit(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no answer")
print(json.dumps(json.loads(done.stdout)))
"""


def gpu_line(config: RunConfig, gpus: machine.Gpus) -> Line:
    """GPUs against ranks: how many, which, driver and compute capability."""
    if not gpus.gpus:
        if config.node == "cpu":
            return ok("GPU", f"none needed: {config.ranks} CPU ranks")
        found = gpus.problem or "the driver lists no GPU"
        return fail("GPU", f"node {config.node} has GPUs, this machine shows none ({found})", "Run on that node")
    shown = ", ".join(
        f"{g.index}: {g.name}, {human_bytes(g.free_bytes)} free of {human_bytes(g.total_bytes)}, "
        f"capability {g.capability[0]}.{g.capability[1]}"
        for g in gpus.gpus
    )
    shown = f"{len(gpus.gpus)} ({shown}); driver {gpus.driver}"
    if len(gpus.gpus) < config.ranks and config.node != "cpu":
        return fail(
            "GPU", f"{shown}; the run has {config.ranks} ranks", "One rank per GPU: lower ranks, or another node"
        )
    old = [g for g in gpus.gpus if g.capability < BF16_CAPABILITY]
    if config.train.bf16 and old and config.node != "cpu":
        return warn("GPU", f"{shown}; {old[0].name} has no bf16 in hardware", "Use fp16, or a newer GPU")
    return ok("GPU", shown)


def process_lines(config: RunConfig, gpus: machine.Gpus) -> list[Line]:
    """Other processes on the GPUs that this run would use."""
    busy = [g for g in gpus.gpus[: config.ranks] if g.process_ids or g.free_bytes < 0.9 * g.total_bytes]
    if not busy or config.node == "cpu":
        return []
    shown = "; ".join(
        f"GPU {g.index}: {human_bytes(g.total_bytes - g.free_bytes)} in use"
        + (f" by process {', '.join(map(str, g.process_ids))}" if g.process_ids else "")
        for g in busy
    )
    fix = "Look with nvidia-smi; end what is left over from an earlier run, or choose others (CUDA_VISIBLE_DEVICES)"
    return [warn("GPU processes", shown, fix)]


def plan_lines(
    answer: probes.Answer | None, config: RunConfig, gpus: machine.Gpus, memory: machine.HostMemory
) -> list[Line]:
    """The plan's bytes against the least free GPU of this run, and against the host RAM available now.

    `at_least_bytes` is what must fit (allocated, context, NCCL); `needed_bytes` adds blocks that can be given back.
    """
    if answer is None:
        return []
    again = f"Run: course plan {config.source} --node {config.node}"
    if answer.timed_out or answer.problem:
        return [warn("plan", answer.problem or "no prediction in time", again)]
    plan = answer.record["node"]
    shown = f"predicted {human_bytes(plan['at_least_bytes'])} to {human_bytes(plan['needed_bytes'])} per GPU"
    free = min((gpu.free_bytes for gpu in gpus.gpus[: config.ranks]), default=plan["card_bytes"])
    shown += f", {human_bytes(free)} free" if gpus.gpus else f", {human_bytes(free)} on {config.node}"
    fix = "See course fit: smaller micro batch, fewer frames, offload, or a larger node"
    judged = fail if plan["at_least_bytes"] > free else warn if plan["needed_bytes"] > free else None
    lines = [judged("plan: GPU", shown, fix) if judged else ok("plan: GPU", shown)]
    host = f"predicted {human_bytes(plan['host_bytes'])} for all ranks, {human_bytes(memory.available_bytes)} available"
    if plan["host_bytes"] > memory.available_bytes:
        return [*lines, fail("plan: host RAM", host, "Offload less, or a node with more RAM; else exit code -9")]
    return [*lines, ok("plan: host RAM", host)]


def swap_line(memory: machine.HostMemory) -> Line:
    if memory.swap_used_bytes > 0.05 * memory.total_bytes:
        shown = f"{human_bytes(memory.swap_used_bytes)} in use of {human_bytes(memory.swap_total_bytes)}"
        return warn("swap", shown, "Something has filled RAM already; a run that swaps looks like a hang")
    return ok("swap", f"{human_bytes(memory.swap_used_bytes)} in use")


def memlock_line(ds_config: dict[str, Any], limit_bytes: int | None, *, on_cpu: bool) -> Line:
    """Locked memory against pinned offload buffers (pin_memory is on by default since DeepSpeed 0.19)."""
    zero = ds_config.get("zero_optimization") if isinstance(ds_config.get("zero_optimization"), dict) else {}
    blocks = [zero[n] for n in ("offload_optimizer", "offload_param") if isinstance(zero.get(n), dict)]
    pinned = any(b.get("device") in ("cpu", "nvme") and b.get("pin_memory", True) for b in blocks)
    shown = "unlimited" if limit_bytes is None else human_bytes(limit_bytes)
    if pinned and not on_cpu and limit_bytes is not None and limit_bytes < 64 * GIB:
        fix = "ulimit -l unlimited (container: --ulimit memlock=-1), or pin_memory: false in the offload blocks"
        return warn("memlock", f"{shown} may be locked, and offload pins host memory", fix)
    return ok("memlock", shown + ("" if pinned else "; nothing is pinned by offload"))


def files_line(limit_files: int | None) -> Line:
    shown = "unlimited" if limit_files is None else str(limit_files)
    if limit_files is not None and limit_files < 1024:
        return fail("open files", shown, f"ulimit -n {OPEN_FILES}")
    if limit_files is not None and limit_files < OPEN_FILES:
        return warn("open files", shown, f"ulimit -n {OPEN_FILES} (data-loader workers hold one per tensor)")
    return ok("open files", shown)


def port_line() -> Line:
    """The master port: MASTER_PORT when it is set, else torchrun's default (our own start takes any free one)."""
    stated = os.environ.get("MASTER_PORT", "")
    port = int(stated) if stated.isdigit() else DEFAULT_PORT
    if machine.port_is_free(port):
        return ok("port", f"{port} is free")
    if stated:
        return fail("port", f"MASTER_PORT {port} is in use", f"MASTER_PORT={free_port()} is free now")
    return ok("port", f"{port} (torchrun's default) is in use; {free_port()} and others are free")


def all_reduce_lines(result: AllReduce) -> list[Line]:
    name = f"all-reduce ({result.backend}, {result.ranks} ranks)"
    if not result.started:
        fix = "Run again when the machine or the disk is less busy; or skip it knowingly"
        return [warn(name, "not tried: torch was not loaded within the time limit", fix)]
    if result.problem:
        fix = "Run with NCCL_DEBUG=INFO; try NCCL_P2P_DISABLE=1" if result.backend == "nccl" else "See `course check`"
        return [fail(name, result.problem, fix)]
    if result.value != float(result.ranks):
        return [fail(name, f"1.0 on each rank gave {result.value}, not {float(result.ranks)}", "Do not train on this")]
    sum_of = " + ".join(["1.0"] * result.ranks) if result.ranks <= 4 else f"{result.ranks} x 1.0"
    lines = [ok(name, f"{sum_of} = {result.value}; {result.bytes_per_second / 1e9:.2f} GB/s")]
    if any(version != result.versions[0] for version in result.versions):
        lines.append(fail("versions", f"ranks differ: {list(result.versions)}", "One environment for all ranks"))
    return lines


def lint_lines(answer: probes.Answer) -> list[Line]:
    """One line per error and warning of `course lint`; notes are counted."""
    if answer.timed_out:
        return [warn("ds_config lint", "no answer in time", "Run: course lint RUN")]
    if answer.problem:
        return [fail("ds_config lint", answer.problem, "Run: course lint RUN")]
    findings = answer.record["findings"]
    told = [
        (fail if f["level"] == "error" else warn)(
            f"ds_config {f['key']}", f"{f['message']} [{f['code']}]", f["fix"] or "See docs/lint.md"
        )
        for f in findings
        if f["level"] != "note"
    ]
    notes = sum(f["level"] == "note" for f in findings)
    return told or [ok("ds_config lint", f"nothing to complain of ({notes} notes)")]
