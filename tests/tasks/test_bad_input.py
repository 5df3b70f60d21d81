"""Bad input through `course train`: one clear line and exit code 1 or 2 before any rank starts, nothing lost."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1600)]
DRIVER = Path(__file__).with_name("preloaded_course.py")
CASES = {}


def case(code, *said, arguments=()):
    """Register a function that spoils a SmallRun; its docstring is what a person did."""

    def register(spoil):
        CASES[spoil.__name__] = (spoil, code, said, arguments)
        return spoil

    return register


def half_of(clip, folder):
    data = Path(clip).read_bytes()
    (folder / "half.mp4").write_bytes(data[: len(data) // 2])
    return "half.mp4"


@case(99, "ranks were started")
def nothing_wrong(run):
    """The same config, unspoilt, gets as far as starting ranks."""


@case(2, "nowhere.mp4 is missing", "train.jsonl:2")
def missing_mp4(run):
    run.annotations["train"][1]["video"] = "clips/nowhere.mp4"


@case(2, "nowhere.mp4 is missing", "held_out.jsonl:1")
def missing_held_out_mp4(run):
    run.annotations["held_out"][0]["video"] = "clips/nowhere.mp4"


@case(1, "half.mp4")
def truncated_mp4(run):
    run.annotations["train"][1]["video"] = half_of(run.annotations["train"][1]["video"], run.folder)


@case(1, "half.mp4")
def truncated_held_out_mp4(run):
    run.annotations["held_out"][0]["video"] = half_of(run.annotations["held_out"][0]["video"], run.folder)


@case(2, "shorter than a window of 8 s", "train.jsonl:1")
def clip_shorter_than_a_window(run):
    run.annotations["train"][0] |= {"duration_seconds": 5.0, "events": [[1.0, 2.0]]}


@case(1, "lasts 48.00 s, but its annotation says 60.00 s")
def clip_shorter_than_its_annotation(run):
    run.annotations["train"][0]["duration_seconds"] = 60.0


@case(2, "event [47, 49] lies outside its clip of 48 s", "train.jsonl:2")
def event_outside_its_clip(run):
    run.annotations["train"][1]["events"].append([47.0, 49.0])


@case(2, "train.jsonl", "no")
def empty_annotation_file(run):
    run.annotations["train"] = []


@case(1, "gradient_clipping", "0.5")
def ds_config_that_contradicts_the_arguments(run):
    ds_config = json.loads(Path(run.values["ds_config"]).read_text()) | {"gradient_clipping": 0.5}
    (run.folder / "ds.json").write_text(json.dumps(ds_config))
    run.values["ds_config"] = "ds.json"


@case(2, "is not valid JSON", "ds.json")
def ds_config_that_is_no_json(run):
    (run.folder / "ds.json").write_text("{")
    run.values["ds_config"] = "ds.json"


@case(2, "has no usable processor")
def model_without_processor_files(run):
    (run.folder / "model").mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(Path(run.values["model"]) / name, run.folder / "model" / name)
    run.values["model"] = "./model"


@case(2, "is not a model directory (no config.json)")
def model_directory_that_is_not_there(run):
    run.values["model"] = "./nowhere"


@case(1, "rank 1")
def one_sample_for_two_ranks(run):
    run.annotations["train"] = run.annotations["train"][:1]
    run.values["data"]["stride_seconds"] = 60
    run.values["train"]["micro_batch_size"] = 1


@case(2, "run.yaml: cannot be read (No such file or directory)")
def no_such_run_config(run):
    run.write = lambda: run.folder / "run.yaml"


@case(2, "already holds a run", "--resume")
def used_output_folder(run):
    (run.folder / "out").mkdir()
    (run.folder / "out" / "train_log.jsonl").write_text('{"step": 1}\n')


@case(2, "cannot be made")
def output_that_is_a_file(run):
    (run.folder / "out").write_text("x")


@case(2, "--set 'train.max_steps' is not KEY=VALUE", arguments=("--set", "train.max_steps"))
def set_without_a_value(run):
    pass


@case(2, "unknown key 'train.max_step'. Nearest: max_steps", arguments=("--set", "train.max_step=3"))
def set_of_an_unknown_key(run):
    pass


@case(2, "'train.max_steps: many' must be a whole number", arguments=("--set", "train.max_steps=many"))
def set_of_a_wrong_type(run):
    pass


@case(2, "the value is not valid YAML", arguments=("--set", "lora.targets=["))
def set_of_broken_yaml(run):
    pass


@pytest.fixture(scope="module")
def answers(new_small_run, tmp_path_factory):
    """All cases, each in a process of its own; the heavy imports are paid for once."""
    folder, commands, content = tmp_path_factory.mktemp("answers"), {}, {}
    for name, (spoil, _, _, arguments) in CASES.items():
        run = new_small_run(name)
        spoil(run)
        commands[name] = ["train", str(run.write()), *arguments]
        content[name] = (run.folder, files_of(run.folder))
    (folder / "cases.json").write_text(json.dumps(commands))
    environment = os.environ | {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, str(DRIVER), str(folder / "cases.json"), str(folder / "answers.json")]
    subprocess.run(command, check=True, timeout=1500, env=environment)
    given = json.loads((folder / "answers.json").read_text())
    return {name: given[name] | {"folder": content[name][0], "before": content[name][1]} for name in CASES}


def files_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", CASES)
def test_one_clear_line_before_any_rank_starts(answers, name):
    _, code, said, _ = CASES[name]
    given = answers[name]
    assert given["code"] == code, given
    lines = given["err"].splitlines()
    assert len(lines) == 1, given["err"]
    assert lines[0].startswith("course train: ")
    assert "Traceback" not in given["err"]
    assert "fault of the course" not in given["err"]
    for part in said:
        assert part in lines[0]


@pytest.mark.parametrize("name", [name for name in CASES if name != "nothing_wrong"])
def test_nothing_that_was_there_is_lost(answers, name):
    assert files_of(answers[name]["folder"]) == answers[name]["before"]
