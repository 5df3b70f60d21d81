"""The files at the root say the same thing."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def name_of(requirement: str) -> str:
    return re.match(r"[A-Za-z0-9_.-]+", requirement)[0].lower()


def test_environment_yml_only_points_to_pyproject():
    conda = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    pip = next(entry["pip"] for entry in conda if isinstance(entry, dict))
    assert pip == ["-e .[dev]"]
    assert f"python{PROJECT['requires-python']}" in conda


@pytest.mark.parametrize("requirement", PROJECT["dependencies"] + PROJECT["optional-dependencies"]["dev"])
def test_every_dependency_has_its_reason(requirement):
    assert name_of(requirement) in (ROOT / "CONTRIBUTING.md").read_text().lower()


def test_the_core_dependencies_are_the_ones_the_course_is_about():
    asked = [
        "jupyterlab",
        "ipywidgets",
        "torch",
        "deepspeed",
        "peft",
        "transformers",
        "matplotlib",
        "decord",
        "soundfile",
    ]
    assert set(asked) <= {name_of(r) for r in PROJECT["dependencies"]}
    assert list(PROJECT["optional-dependencies"]) == ["dev"]


def test_make_targets_that_texts_name_exist():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    texts = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "examples/video_text/README.md", ".ci/run")]
    named = {word for text in texts for word in re.findall(r"(?:`|^|\s)make ([a-z]+)\b", text.read_text(), flags=re.M)}
    named -= {"sure", "one"}
    assert {"demo", "test"} <= named <= targets | {"time"}


@pytest.mark.parametrize("text", ["README.md", "examples/video_text/README.md", "CONTRIBUTING.md"])
def test_links_in_texts_lead_somewhere(text):
    path = ROOT / text
    for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
        assert (path.parent / target).exists(), target


def test_nothing_large_or_generated_is_committed():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    files = [ROOT / name for name in listed.stdout.split("\0") if name]
    assert not [f for f in files if f.exists() and f.stat().st_size > 4_000_000]
    assert not [f for f in files if f.suffix in {".pt", ".bin", ".pyc"} or ".ipynb_checkpoints" in f.parts]


def test_no_two_test_modules_have_one_name():
    names = [path.name for path in (ROOT / "tests").rglob("*.py") if path.name != "conftest.py"]
    assert sorted(names) == sorted(set(names))
