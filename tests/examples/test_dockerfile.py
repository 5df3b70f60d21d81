"""The Dockerfile, where no engine is at hand: what it copies exists, what it runs is a make target."""

import json
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INSTRUCTIONS = {"ARG", "FROM", "WORKDIR", "COPY", "RUN", "ENV", "EXPOSE", "CMD"}


needs_the_makefile = pytest.mark.skipif(
    not (ROOT / "Makefile").exists(), reason="no Makefile in this checkout: nothing can be installed from it"
)


def parse(text):
    """(instruction, rest) of each line, comments left out and continued lines joined."""
    text = re.sub(r"\\\n", " ", text)
    lines = [line.strip() for line in text.splitlines()]
    return [tuple(line.split(None, 1)) for line in lines if line and not line.startswith("#")]


def make_targets(path):
    return re.findall(r"^([\w-]+):(?!=)", path.read_text(), re.MULTILINE) if path.exists() else []


def findings(text, root=ROOT):
    """What is wrong with a Dockerfile of this repository."""
    wrong = []
    steps = parse(text)
    values = dict(rest.split("=", 1) for name, rest in steps if name == "ARG" and "=" in rest)
    for name, rest in steps:
        if name not in INSTRUCTIONS:
            wrong.append(f"unknown instruction {name}")
        elif name == "FROM":
            image = re.sub(r"\$\{(\w+)\}", lambda match: values.get(match[1], "?"), rest.split()[0])
            if not re.fullmatch(r"[a-z0-9_-]+(/[a-z0-9_-]+)?:[\w.-]+", image):
                wrong.append(f"base image {image} names a registry, or no tag")
        elif name == "COPY":
            *sources, _ = [word for word in rest.split() if not word.startswith("--")]
            wrong += [f"COPY {source} is missing" for source in sources if not (root / source).exists()]
        elif name == "RUN":
            targets = make_targets(root / "Makefile")
            if not re.fullmatch(r"make [\w-]+", rest) or rest.split()[1] not in targets:
                wrong.append(f"RUN {rest} is no make target")
        elif name == "CMD" and not all(isinstance(word, str) for word in json.loads(rest)):
            wrong.append("CMD must be a list of words")
    if re.search(r"https?://|index-url", text):
        wrong.append("names a registry or an address")
    return wrong


@needs_the_makefile
def test_the_dockerfile_can_be_built_from_this_checkout():
    text = (ROOT / "Dockerfile").read_text()
    assert findings(text) == []
    assert {name for name, _ in parse(text)} >= {"FROM", "COPY", "RUN", "CMD"}


@needs_the_makefile
def test_every_file_it_copies_is_in_the_repository_and_not_only_on_this_disk():
    steps = parse((ROOT / "Dockerfile").read_text())
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if tracked.returncode:
        pytest.skip("not a git checkout")
    tops = {line.split("/")[0] for line in tracked.stdout.splitlines()}
    for name, rest in steps:
        if name == "COPY":
            assert set(rest.split()[:-1]) <= tops


def test_the_package_and_everything_make_needs_are_copied():
    copied = {
        source for name, rest in parse((ROOT / "Dockerfile").read_text()) if name == "COPY" for source in rest.split()
    }
    assert {"pyproject.toml", "Makefile", "course_lib", "README.md"} <= copied


@pytest.mark.parametrize(
    ("line", "finding"),
    [
        ("COPY nowhere ./", "COPY nowhere is missing"),
        ("RUN pip install torch", "is no make target"),
        ("RUN make nothing-of-the-kind", "is no make target"),
        ("FROM registry.example.org/python:3.11", "names a registry"),
        ("FROM python", "names a registry, or no tag"),
        ("ADD https://example.org/x .", "unknown instruction ADD"),
    ],
)
def test_a_wrong_line_is_found(line, finding):
    assert any(finding in found for found in findings((ROOT / "Dockerfile").read_text() + "\n" + line))
