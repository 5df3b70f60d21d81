"""`course preflight`: each line can pass and can fail, and the all-reduce is a real one."""

import json
import os
import subprocess
import sys

import pytest

from course_lib.config.run_config import load_run_config
from course_lib.doctor import all_reduce, lines, machine, preflight, probes, run_files
from course_lib.units import GIB, MIB

MAIN = [sys.executable, "-c", "from course_lib.cli import main; main()", "preflight"]


@pytest.fixture
def folder(tmp_path):
    """A run that has all it points to: two clips, a model directory, a ds_config."""
    model = tmp_path / "model"
    model.mkdir()
    for name in ("config.json", "tokenizer.json", "preprocessor_config.json"):
        (model / name).write_text("{}")
    (model / "model.safetensors").write_bytes(b"x" * 64)
    for number in range(2):
        (tmp_path / f"{number}.mp4").write_bytes(b"film")
    (tmp_path / "train.jsonl").write_text("".join(json.dumps({"video": f"{n}.mp4"}) + "\n" for n in range(2)))
    ds_config = {"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 3}}
    (tmp_path / "ds.json").write_text(json.dumps(ds_config))
    (tmp_path / "run.yaml").write_text(
        "task: video_text\nmodel: model\nds_config: ds.json\noutput: out\ndata:\n  train: train.jsonl\n"
    )
    return tmp_path


def _config(folder, **overrides):
    return load_run_config(folder / "run.yaml", overrides)


def _gpu(index=0, total=80 * GIB, free=79 * GIB, capability=(9, 0), processes=()):
    return machine.Gpu(
        index=index, name="H100", total_bytes=total, free_bytes=free, capability=capability, process_ids=processes
    )


def test_gpus_are_held_against_ranks_and_node(folder):
    none, two = machine.Gpus(problem="no driver"), machine.Gpus(driver="580", gpus=(_gpu(0), _gpu(1)))
    old = machine.Gpus(driver="580", gpus=(_gpu(0, capability=(7, 5)), _gpu(1)))

    def level(found, **overrides):
        return preflight.gpu_line(_config(folder, **overrides), found).level

    assert level(none) == "OK"
    assert level(none, node="2xH100") == "FAIL"
    assert level(two, node="2xH100") == "OK"
    assert level(two, node="4xH100", ranks=4) == "FAIL"
    assert level(old, node="2xT4") == "WARN"


def test_other_processes_on_the_gpus_are_named(folder):
    busy = machine.Gpus(driver="580", gpus=(_gpu(0, processes=(4711,)), _gpu(1, free=20 * GIB), _gpu(2, free=GIB)))
    (line,) = preflight.process_lines(_config(folder, node="2xH100"), busy)
    assert (line.level, "4711" in line.message, "60.00 GiB" in line.message) == ("WARN", True, True)
    assert "GPU 2" not in line.message, "the third GPU is not this run's"
    calm = machine.Gpus(driver="580", gpus=(_gpu(0), _gpu(1)))
    assert preflight.process_lines(_config(folder, node="2xH100"), calm) == []


def test_the_plan_is_held_against_what_is_free_now(folder):
    config = _config(folder, node="2xH100")

    def levels(free, available, at_least=40 * GIB, needed=60 * GIB, host=100 * GIB):
        plan = {"at_least_bytes": at_least, "needed_bytes": needed, "host_bytes": host, "card_bytes": 80 * GIB}
        found = machine.Gpus(driver="580", gpus=(_gpu(0, free=79 * GIB), _gpu(1, free=free), _gpu(2, free=GIB)))
        ram = machine.HostMemory(
            total_bytes=256 * GIB,
            available_bytes=available,
            limited_by="machine",
            swap_used_bytes=0,
            swap_total_bytes=0,
        )
        answer = probes.Answer(record={"node": plan})
        return [line.level for line in preflight.plan_lines(answer, config, found, ram)]

    assert levels(free=70 * GIB, available=200 * GIB) == ["OK", "OK"]
    assert levels(free=50 * GIB, available=200 * GIB) == ["WARN", "OK"]
    assert levels(free=30 * GIB, available=200 * GIB) == ["FAIL", "OK"]
    assert levels(free=70 * GIB, available=64 * GIB) == ["OK", "FAIL"]
    late = preflight.plan_lines(probes.Answer(record={}, timed_out=True), config, machine.Gpus(), None)
    assert [line.level for line in late] == ["WARN"]
    assert preflight.plan_lines(None, config, machine.Gpus(), None) == []


def test_swap_memlock_and_open_files():
    def memory(swap):
        return machine.HostMemory(
            total_bytes=64 * GIB,
            available_bytes=60 * GIB,
            limited_by="machine",
            swap_used_bytes=swap,
            swap_total_bytes=8 * GIB,
        )

    assert [preflight.swap_line(memory(n)).level for n in (0, 6 * GIB)] == ["OK", "WARN"]
    assert [preflight.files_line(n).level for n in (256, 1024, 65536, None)] == ["FAIL", "WARN", "OK", "OK"]
    pins = {"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}
    unpinned = {"zero_optimization": {"offload_optimizer": {"device": "cpu", "pin_memory": False}}}
    assert preflight.memlock_line(pins, 8 * MIB, on_cpu=False).level == "WARN"
    assert preflight.memlock_line(pins, None, on_cpu=False).level == "OK"
    assert preflight.memlock_line(pins, 8 * MIB, on_cpu=True).level == "OK"
    assert preflight.memlock_line(unpinned, 8 * MIB, on_cpu=False).level == "OK"


def test_a_stated_port_in_use_fails_and_the_default_one_does_not(monkeypatch):
    import socket

    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        monkeypatch.setenv("MASTER_PORT", str(server.getsockname()[1]))
        assert preflight.port_line().level == "FAIL"
    monkeypatch.setattr(preflight.machine, "port_is_free", lambda port: False)
    monkeypatch.delenv("MASTER_PORT")
    assert preflight.port_line().level == "OK"


@pytest.mark.parametrize(
    ("missing", "named"),
    [("config.json", "config.json"), ("model.safetensors", "weights"), ("preprocessor_config.json", "processor")],
)
def test_a_model_directory_that_lacks_something_says_what(folder, missing, named):
    assert run_files.model_line(_config(folder), folder).level == "OK"
    (folder / "model" / missing).unlink()
    line = run_files.model_line(_config(folder), folder)
    assert (line.level, named in line.message) == ("FAIL", True)


def test_a_model_name_must_be_in_the_cache(folder, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(folder / "hub"))
    config = _config(folder, model="Org/Model-2B")
    assert run_files.model_line(config, folder).level == "FAIL"
    (folder / "hub" / "models--Org--Model-2B").mkdir(parents=True)
    assert run_files.model_line(config, folder).level == "OK"


def _break_nothing(folder):
    pass


def _remove_a_clip(folder):
    (folder / "1.mp4").unlink()


def _empty_a_clip(folder):
    (folder / "1.mp4").write_bytes(b"")


def _break_the_json(folder):
    (folder / "train.jsonl").write_text('{"video": "0.mp4"}\n{"video": \n')


def _empty_the_annotations(folder):
    (folder / "train.jsonl").write_text("\n")


def _remove_the_annotations(folder):
    (folder / "train.jsonl").unlink()


@pytest.mark.parametrize(
    ("break_it", "level", "said"),
    [
        (_break_nothing, "OK", "2 media files present"),
        (_remove_a_clip, "FAIL", "1 of 2 media files"),
        (_empty_a_clip, "FAIL", "are empty"),
        (_break_the_json, "FAIL", "train.jsonl:2"),
        (_empty_the_annotations, "FAIL", "no annotation"),
        (_remove_the_annotations, "FAIL", "is not there"),
    ],
)
def test_data_are_looked_at(folder, break_it, level, said):
    break_it(folder)
    line = run_files.data_lines(_config(folder))[0]
    assert (line.level, said in line.message) == (level, True)


def test_fewer_samples_than_ranks_is_a_warning_except_in_a_smoke_run(folder):
    assert [line.name for line in run_files.data_lines(_config(folder, ranks=3))] == ["train data", "samples"]
    smoke = run_files.data_lines(_config(folder, ranks=3, **{"train.smoke": True}))
    assert [line.name for line in smoke] == ["train data"]


def test_disks_are_judged_by_space_kind_and_permission(folder, monkeypatch):
    def levels(kind, free, ds_config=None):
        found = machine.Space(path="p", mount="/p", kind=kind, total_bytes=99 * GIB, free_bytes=free)
        monkeypatch.setattr(run_files.machine, "space", lambda path: found)
        return [line.level for line in run_files.disk_lines(_config(folder), ds_config or {})]

    assert levels("ext4", 50 * GIB) == ["OK", "OK"]
    assert levels("nfs4", 50 * GIB) == ["WARN", "WARN"]
    assert levels("ext4", 100 * MIB)[0] == "FAIL"
    nvme = {"zero_optimization": {"offload_param": {"device": "nvme", "nvme_path": str(folder)}}}
    assert levels("xfs", 50 * GIB, nvme)[2] == "OK"
    assert levels("nfs4", 50 * GIB, nvme)[2] == "FAIL"
    nvme["zero_optimization"]["offload_param"]["nvme_path"] = "/not/there"
    assert levels("xfs", 50 * GIB, nvme)[2] == "FAIL"
    monkeypatch.setattr(run_files, "_is_writable", lambda path: False)
    assert levels("ext4", 50 * GIB)[0] == "FAIL"


def test_lints_errors_fail_and_its_warnings_warn():
    def finding(level):
        return {"level": level, "key": "a.b", "message": "m", "code": "c", "fix": ""}

    answer = probes.Answer(record={"findings": [finding("error"), finding("warning"), finding("note")]})
    assert [line.level for line in preflight.lint_lines(answer)] == ["FAIL", "WARN"]
    calm = preflight.lint_lines(probes.Answer(record={"findings": [finding("note")]}))
    assert [line.level for line in calm] == ["OK"]
    assert preflight.lint_lines(probes.Answer(record={}, timed_out=True))[0].level == "WARN"
    assert preflight.lint_lines(probes.Answer(record={}, problem="no"))[0].level == "FAIL"


def _sum(**fields):
    return all_reduce.AllReduce(**{"ranks": 2, "backend": "gloo", "bytes_per_second": 1e9, **fields})


def test_a_wrong_sum_a_failure_and_differing_ranks_fail():
    same = ({"torch": "2.14"}, {"torch": "2.14"})
    assert [line.level for line in preflight.all_reduce_lines(_sum(value=2.0, versions=same))] == ["OK"]
    assert preflight.all_reduce_lines(_sum(value=1.0, versions=same))[0].level == "FAIL"
    assert preflight.all_reduce_lines(_sum(problem="rank 1 was ended by SIGKILL"))[0].level == "FAIL"
    assert preflight.all_reduce_lines(_sum(problem="not finished", started=False))[0].level == "WARN"
    differing = preflight.all_reduce_lines(_sum(value=2.0, versions=({"torch": "2.14"}, {"torch": "2.11"})))
    assert lines.verdict(differing) == "FAIL"


@pytest.mark.parametrize(("ready", "started"), [(2, True), (1, False)])
def test_a_machine_too_busy_to_load_torch_is_not_a_failed_sum(monkeypatch, ready, started):
    def run(command, *, log_folder, **options):
        for rank in range(ready):
            (log_folder / f"ready{rank}").touch()
        raise all_reduce.CourseError("not finished after 16 s; all ranks were ended")

    monkeypatch.setattr(all_reduce, "run_ranks", run)
    assert all_reduce.try_all_reduce(gpus=0, time_limit_seconds=1).started == started


def test_ranks_that_do_not_answer_are_ended_within_the_limit(monkeypatch):
    started = []

    def run(command, **options):
        started.append(options)
        raise all_reduce.CourseError("not finished after 1 s; all ranks were ended")

    monkeypatch.setattr(all_reduce, "run_ranks", run)
    result = all_reduce.try_all_reduce(gpus=0, time_limit_seconds=1)
    assert "not finished" in result.problem
    assert (started[0]["ranks"], started[0]["cpu"], started[0]["time_limit_seconds"]) == (2, True, 1)
    assert all_reduce.try_all_reduce(gpus=4, time_limit_seconds=1).backend == "nccl"


@pytest.mark.slow
@pytest.mark.ranks
def test_two_real_gloo_ranks_add_and_say_how_fast():
    result = all_reduce.try_all_reduce(gpus=0, time_limit_seconds=120)
    assert (result.problem, result.value, result.ranks) == ("", 2.0, 2)
    assert result.bytes_per_second > 0
    assert len(result.versions) == 2
    assert lines.verdict(preflight.all_reduce_lines(result)) == "OK"


@pytest.mark.slow
@pytest.mark.ranks
def test_the_commands_exit_code_follows_its_lines_and_it_answers_in_time(folder):
    done = subprocess.run([*MAIN, str(folder / "run.yaml"), "--json"], capture_output=True, text=True, timeout=200)
    record = json.loads(done.stdout)
    by_name = {line["name"]: line for line in record["lines"]}
    assert by_name["model"]["level"] == "OK"
    assert any(name.startswith("all-reduce") for name in by_name)
    assert any(name.startswith("ds_config") for name in by_name)
    assert (done.returncode == 1) == any(line["level"] == "FAIL" for line in record["lines"])
    if os.getloadavg()[0] < 1.5 * (os.cpu_count() or 1):
        assert record["seconds"] <= 20


def test_a_bad_override_and_a_missing_run_are_wrong_usage(folder):
    from typer.testing import CliRunner

    from course_lib import cli
    from course_lib.errors import CourseError

    cli.load_commands()
    result = CliRunner().invoke(cli.app, ["preflight", str(folder / "run.yaml"), "--set", "novalue"])
    assert isinstance(result.exception, CourseError)
    assert result.exception.exit_code == 2
    result = CliRunner().invoke(cli.app, ["preflight", str(folder / "none.yaml")])
    assert isinstance(result.exception, CourseError)


def test_overrides_reach_the_lines(folder):
    from course_lib.cli.train import parse_overrides

    config = load_run_config(folder / "run.yaml", parse_overrides(["output=/elsewhere", "train.max_steps=3"]))
    assert (str(config.output), config.train.max_steps) == ("/elsewhere", 3)


def test_nothing_heavy_is_imported_to_say_the_lines():
    code = "import sys, course_lib.doctor.preflight; print({'torch', 'deepspeed', 'numpy'} & set(sys.modules) or [])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
