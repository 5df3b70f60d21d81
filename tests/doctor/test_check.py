"""`course check`: each line can say OK and can say why not."""

import json
import os
import shutil
import subprocess
import sys
import time
import types

import pytest

from course_lib.doctor import environment, lines, machine, packages, probes
from course_lib.units import GIB, MIB


def _space(free: int, total: int, kind: str = "tmpfs") -> machine.Space:
    return machine.Space(path="x", mount="/x", kind=kind, total_bytes=total, free_bytes=free)


def test_the_verdict_is_the_worst_line():
    assert lines.verdict([lines.ok("a", ""), lines.fail("b", "", ""), lines.warn("c", "", "")]) == "FAIL"
    assert lines.verdict([]) == "OK"


def test_a_missing_package_and_a_wrong_version_are_named_and_the_rest_is_one_line():
    found = packages.package_lines(["numpy>=1", "surely-not-there>=2", "rich>=900", "typer<0.1; extra == 'dev'"])
    assert [(line.level, line.name) for line in found] == [
        ("OK", "packages"),
        ("FAIL", "surely-not-there"),
        ("FAIL", "rich"),
    ]
    assert "numpy" in found[0].message
    assert "outside >=900" in found[2].message
    assert "rich>=900" in found[2].fix


def test_every_declared_package_is_found_under_its_modules_own_name():
    assert [line for line in packages.package_lines() if "is not there" in line.message] == []


def test_a_package_whose_files_are_gone_fails(monkeypatch):
    monkeypatch.setattr(packages, "_modules_of", lambda name: ["surely_not_there"])
    assert packages.package_lines(["numpy>=1"])[0].level == "FAIL"


def test_a_vendors_pre_release_of_an_admitted_version_is_a_warning(monkeypatch):
    monkeypatch.setattr(packages.importlib.metadata, "version", lambda name: {"torch": "2.12.0a0+6ddf.nv"}[name])
    monkeypatch.setattr(packages, "_decord_twins", list)
    assert [line.level for line in packages.package_lines(["torch>=2.12"])] == ["WARN"]
    assert [line.level for line in packages.package_lines(["torch>=2.13"])] == ["FAIL"]


def test_two_packages_of_one_import_name_fail(monkeypatch):
    real = packages.importlib.metadata.version
    monkeypatch.setattr(packages.importlib.metadata, "version", lambda name: "1.0" if "decord" in name else real(name))
    assert "share one import name" in packages.package_lines([])[0].message


def test_old_python_fails():
    assert environment.python_line((3, 10, 4)).level == "FAIL"
    assert environment.python_line((3, 11, 0)).level == "OK"


def test_a_compiler_that_is_not_there_fails(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler-here")
    answer = probes.ask({"compiler": probes.commands()["compiler"]}, time_limit_seconds=5)["compiler"]
    line = environment.compiler_line(answer)
    assert line.level == "FAIL"
    assert "no-such-compiler-here" in line.message


def test_a_missing_python_header_names_the_package_to_install():
    answer = probes.Answer(record={}, problem="probe.cpp:1:10: fatal error: Python.h: No such file or directory")
    assert "python3-dev" in environment.compiler_line(answer).fix


def test_a_probe_that_hangs_is_stopped():
    started = time.monotonic()
    slow = {"slow": [sys.executable, "-c", "import time; time.sleep(60)"]}
    answer = probes.ask(slow, time_limit_seconds=0.5)["slow"]
    assert time.monotonic() - started < 30
    assert answer.timed_out
    assert environment.torch_line(answer, machine.Gpus()).level == "WARN"


def test_a_probe_that_fails_says_its_last_line():
    failing = {"torch": [sys.executable, "-c", "raise RuntimeError('operator torchvision::nms does not exist')"]}
    line = environment.torch_line(probes.ask(failing, time_limit_seconds=60)["torch"], machine.Gpus())
    assert (line.level, "torchvision::nms" in line.message) == ("FAIL", True)


def test_gpus_that_torch_cannot_see_are_a_warning():
    gpu = machine.Gpu(index=0, name="H200", total_bytes=GIB, free_bytes=GIB, capability=(9, 0), process_ids=())
    answer = probes.Answer(record={"torch": "2.14", "torchvision": "0.29", "cuda": None, "gpus": 0})
    assert environment.torch_line(answer, machine.Gpus(driver="580", gpus=(gpu,))).level == "WARN"
    assert environment.torch_line(answer, machine.Gpus()).level == "OK"


def _operator(tmp_path, *names):
    folder = tmp_path / environment.CPU_OP
    folder.mkdir()
    for name in names:
        (folder / name).touch()
    return folder


def test_an_operator_that_is_not_compiled_says_how_long_it_will_take(tmp_path):
    line = environment.op_line(tmp_path)
    assert (line.level, "two minutes" in line.fix) == ("WARN", True)


@pytest.mark.skipif(not shutil.which("ninja"), reason="ninja is not there")
def test_an_operator_counts_when_ninja_sees_nothing_to_do(tmp_path):
    folder = _operator(tmp_path, f"{environment.CPU_OP}.so")
    (folder / "build.ninja").write_text("rule cc\n  command = touch $out\nbuild done: cc\n")
    assert "another torch" in environment.op_line(tmp_path).message
    (folder / "build.ninja").write_text("rule cc\n  command = touch $out\n")
    assert environment.op_line(tmp_path).level == "OK"


def test_a_lock_that_nobody_holds_blocks_only_an_older_torch(tmp_path, monkeypatch):
    folder = _operator(tmp_path, "lock")
    monkeypatch.setattr(environment, "torch_waits_for_lock_files", lambda: True)
    blocked = environment.op_line(tmp_path)
    assert (blocked.level, str(folder / "lock") in blocked.fix) == ("WARN", True)
    monkeypatch.setattr(environment, "torch_waits_for_lock_files", lambda: False)
    assert "not compiled yet" in environment.op_line(tmp_path).message


def test_a_lock_that_somebody_holds_is_a_running_build(tmp_path, monkeypatch):
    import fcntl

    folder = _operator(tmp_path, "lock")
    monkeypatch.setattr(environment, "torch_waits_for_lock_files", lambda: False)
    with (folder / "lock").open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert "being compiled" in environment.op_line(tmp_path).message


def test_dockers_default_shm_is_too_small_for_two_cpu_ranks():
    assert environment.shm_line(_space(64 * MIB, 64 * MIB), ranks=2).level == "FAIL"
    assert environment.shm_line(_space(512 * MIB, 512 * MIB), ranks=2).level == "WARN"
    assert environment.shm_line(_space(8 * GIB, 8 * GIB), ranks=2).level == "OK"
    assert environment.shm_line(None, ranks=2).level == "OK"


def test_ram_and_disk_have_three_levels():
    def memory(available):
        return machine.HostMemory(
            total_bytes=8 * GIB, available_bytes=available, limited_by="/g", swap_used_bytes=0, swap_total_bytes=0
        )

    assert [environment.ram_line(memory(n * GIB), ranks=2).level for n in (1, 3, 6)] == ["FAIL", "WARN", "OK"]
    assert "/g" in environment.ram_line(memory(GIB), ranks=2).message
    levels = [environment.disk_line(_space(int(n * GIB), 9 * GIB, "ext4")).level for n in (0.5, 3, 8)]
    assert levels == ["FAIL", "WARN", "OK"]


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_control_groups_limit_counts_and_its_page_cache_does_not(tmp_path, version):
    names = {
        "v1": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        "v2": ("memory.max", "memory.current", "inactive_file"),
    }
    limit, usage, cache = names[version]
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text({"v1": "4:memory:/job/step\n0::/\n", "v2": "0::/job/step\n"}[version])
    group = tmp_path / "sys/fs/cgroup" / ("memory" if version == "v1" else "") / "job"
    (group / "step").mkdir(parents=True)
    (group / "step" / limit).write_text("max" if version == "v2" else "9223372036854771712")
    # The parent's limit binds although the innermost group has none.
    (group / limit).write_text(str(512 * MIB))
    (group / usage).write_text(str(300 * MIB))
    (group / "memory.stat").write_text(f"anon 1\n{cache} {100 * MIB}\n")
    memory = machine.host_memory(tmp_path)
    assert memory.total_bytes == 512 * MIB
    assert memory.available_bytes == 312 * MIB
    assert memory.limited_by == str(group)


def test_the_file_system_of_a_path_that_is_not_there_yet(tmp_path):
    mounts = tmp_path / "mounts"
    mounts.write_text(
        f"/dev/sda / ext4 rw 0 0\nserver:/x {tmp_path} nfs4 rw 0 0\ns3 {tmp_path}/with\\040space fuse.s3fs rw 0 0\n"
    )
    inside = machine.space(tmp_path / "a" / "b", mounts)
    assert (inside.kind, inside.mount, inside.is_network) == ("nfs4", str(tmp_path), True)
    (tmp_path / "with space").mkdir()
    assert machine.space(tmp_path / "with space" / "c", mounts).kind == "fuse.s3fs"
    assert not machine.space(tmp_path.parent, mounts).is_network


def test_a_port_in_use_is_not_free():
    import socket

    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        assert not machine.port_is_free(server.getsockname()[1])
    assert machine.port_is_free(0)


def test_gpus_are_read_through_nvml(monkeypatch):
    class NVMLError(Exception):
        pass

    fake = types.SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlSystemGetDriverVersion=lambda: b"580.95",
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetMemoryInfo=lambda handle: types.SimpleNamespace(total=80 * GIB, free=70 * GIB),
        nvmlDeviceGetName=lambda handle: "NVIDIA H100",
        nvmlDeviceGetCudaComputeCapability=lambda handle: (9, 0),
        nvmlDeviceGetComputeRunningProcesses=lambda handle: [
            types.SimpleNamespace(pid=os.getpid()),
            types.SimpleNamespace(pid=7),
        ],
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    seen = machine.gpus()
    assert seen.driver == "580.95"
    assert seen.gpus[0].process_ids == (7,)
    assert "H100" in environment.gpu_line(seen).message

    def broken():
        raise NVMLError("Driver/library version mismatch")

    fake.nvmlInit = broken
    assert "mismatch" in machine.gpus().problem


@pytest.mark.slow
def test_the_command_answers_within_ten_seconds_of_its_own():
    command = [sys.executable, "-c", "from course_lib.cli import main; main()", "check", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    record = json.loads(done.stdout)
    if os.getloadavg()[0] < 1.5 * (os.cpu_count() or 1):
        assert record["seconds"] <= 10
    assert (done.returncode == 1) == any(line["level"] == "FAIL" for line in record["lines"])
    assert {"python", "packages", "/dev/shm", "RAM", "video"} <= {line["name"] for line in record["lines"]}
