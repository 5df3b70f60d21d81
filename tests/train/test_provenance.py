"""What a run says about what made it."""

import json
import subprocess
import sys

import pytest

from course_lib.errors import FINDING, CourseError
from course_lib.train.provenance import (
    code_hash,
    environment_record,
    file_hash,
    files_hash,
    git_revision,
    require_equal_on_all_ranks,
)


def test_equal_ranks_pass():
    require_equal_on_all_ranks([environment_record()] * 3)


@pytest.mark.parametrize("key", ["interpreter", "python", "versions", "code_sha256"])
def test_the_rank_and_the_key_that_differ_are_named(key):
    record = environment_record()
    other = record | {key: "something else"}
    with pytest.raises(CourseError) as caught:
        require_equal_on_all_ranks([record, record, other])
    line = caught.value.line()
    assert caught.value.exit_code == FINDING
    assert f"rank 2 has {key} 'something else'" in line
    assert repr(record[key]) in line


def test_no_value_of_an_environment_variable_is_in_the_record(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_a_secret_that_nobody_wrote_down")
    monkeypatch.setenv("HTTPS_PROXY", "http://user:password@proxy")
    said = json.dumps(environment_record())
    assert "secret" not in said
    assert "password" not in said


def test_the_record_says_which_interpreter_and_versions():
    import torch

    record = environment_record()
    assert record["interpreter"] == sys.executable
    assert (
        record["versions"]["torch"] == torch.__version__.split("+")[0]
        or record["versions"]["torch"] in torch.__version__
    )
    assert record["code_sha256"] == code_hash()


def test_a_files_hash_is_that_of_sha256sum(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"x" * (3 << 20) + b"y")
    assert file_hash(path) == subprocess.check_output(["sha256sum", str(path)], text=True).split()[0]


def test_the_hash_of_files_knows_names_and_contents_and_no_order_or_place(tmp_path):
    def folder(name, files):
        for file, text in files.items():
            (tmp_path / name / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / file).write_text(text)
        paths = [tmp_path / name / file for file in files]
        return paths, tmp_path / name

    paths, root = folder("one", {"a": "1", "b/c": "2"})
    same, elsewhere = folder("two", {"b/c": "2", "a": "1"})
    assert files_hash(paths, root) == files_hash(reversed(paths), root) == files_hash(same, elsewhere)
    for name, files in {
        "text": {"a": "1", "b/c": "3"},
        "name": {"a": "1", "b/d": "2"},
        "swap": {"a": "2", "b/c": "1"},
    }.items():
        other, place = folder(name, files)
        assert files_hash(other, place) != files_hash(paths, root)


def test_a_checkout_says_its_commit_and_whether_files_differ(tmp_path):
    def git(*arguments):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], cwd=tmp_path, check=True)

    assert git_revision(tmp_path) is None
    git("init", "-q")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-q", "-m", "one")
    head = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=tmp_path, text=True).strip()
    assert git_revision(tmp_path) == head
    (tmp_path / "a").write_text("2")
    assert git_revision(tmp_path) == head + "+changes"
