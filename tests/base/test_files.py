"""Files are whole or not there, whatever happens while they are written."""

import errno
import json
import os
import signal
import stat
import subprocess
import sys
import textwrap

import pytest

from course_lib.errors import CourseError
from course_lib.files import (
    read_json,
    read_json_lines,
    read_text,
    whole_file,
    whole_folder,
    write_json,
    write_text,
)


def write_half(block, name, error):
    with block as temporary:
        (temporary / name if name else temporary).write_text("half of the n")
        raise error


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_gets_its_name_only_when_the_block_has_ended(tmp_path):
    target = tmp_path / "new" / "a.json"
    with whole_file(target) as temporary:
        temporary.write_text("half")
        assert not target.exists()
    assert target.read_text() == "half"
    assert names(target.parent) == ["a.json"]


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left")])
def test_an_error_in_the_block_leaves_the_old_file_and_nothing_else(tmp_path, error):
    target = tmp_path / "a.txt"
    target.write_text("old")
    with pytest.raises(CourseError if isinstance(error, OSError) else type(error)):
        write_half(whole_file(target), "", error)
    assert target.read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left")])
def test_an_error_in_the_block_leaves_the_old_folder_and_nothing_else(tmp_path, error):
    target = tmp_path / "adapter"
    target.mkdir()
    (target / "weights").write_text("old")
    with pytest.raises(CourseError if isinstance(error, OSError) else type(error)):
        write_half(whole_folder(target), "weights", error)
    assert names(tmp_path) == ["adapter"]
    assert (target / "weights").read_text() == "old"


def test_a_new_folder_takes_the_place_of_the_old_one_without_its_files(tmp_path):
    target = tmp_path / "adapter"
    for name in ("first", "second"):
        with whole_folder(target) as temporary:
            (temporary / name).write_text(name)
    assert names(target) == ["second"]
    assert names(tmp_path) == ["adapter"]


def test_a_folder_that_cannot_take_the_name_leaves_the_old_one_under_it(tmp_path, monkeypatch):
    target = tmp_path / "adapter"
    target.mkdir()
    (target / "weights").write_text("old")
    path_type = type(target)
    rename = path_type.rename

    def refuse_new(self, to):
        if ".tmp-" in self.name:
            raise OSError(errno.EIO, "Input/output error")
        return rename(self, to)

    monkeypatch.setattr(path_type, "rename", refuse_new)
    with pytest.raises(CourseError, match="Input/output error"), whole_folder(target) as temporary:
        (temporary / "weights").write_text("new")
    assert (target / "weights").read_text() == "old"
    assert names(tmp_path) == ["adapter"]


def test_what_a_killed_process_set_aside_under_the_same_number_is_no_obstacle(tmp_path):
    target = tmp_path / "adapter"
    aside = tmp_path / f".adapter.old-{os.getpid()}"
    for folder in (target, aside):
        folder.mkdir()
        (folder / "weights").write_text("old")
    with whole_folder(target) as temporary:
        (temporary / "weights").write_text("new")
    assert (target / "weights").read_text() == "new"


KILLED = """
    import os, signal, sys
    from pathlib import Path
    from course_lib.files import whole_file, whole_folder
    target = Path(sys.argv[1])
    with (whole_folder if sys.argv[2] == "folder" else whole_file)(target) as temporary:
        (temporary / "weights" if sys.argv[2] == "folder" else temporary).write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_process_killed_while_writing_leaves_the_old_one_whole(tmp_path, kind):
    target = tmp_path / "a"
    content = target / "weights" if kind == "folder" else target
    content.parent.mkdir(exist_ok=True)
    content.write_text("old")
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(KILLED), str(target), kind], check=False)
    assert done.returncode == -signal.SIGKILL
    assert content.read_text() == "old"
    # What it left behind is hidden and carries another name, so that nothing takes it for a finished one.
    assert [name for name in names(tmp_path) if name != "a"] == [
        name for name in names(tmp_path) if name.startswith(".a.tmp-")
    ]


def test_files_and_folders_are_readable_as_the_umask_says(tmp_path):
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "a.txt", "x")
        with whole_folder(tmp_path / "b"):
            pass
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.txt").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "b").stat().st_mode) == 0o750


def test_a_target_that_cannot_be_written_is_one_line_that_names_it(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(CourseError, match=r"file/a.*cannot write"):
        write_text(tmp_path / "file" / "a.txt", "x")
    with pytest.raises(CourseError, match=r"file/b.*cannot write"), whole_folder(tmp_path / "file" / "b"):
        pass
    (tmp_path / "folder").mkdir()
    with pytest.raises(CourseError, match="cannot write"):
        write_text(tmp_path / "folder", "x")


def test_json_comes_back_as_it_went(tmp_path):
    record = {"name": "Zoë", "values": [1, 2.5, None, True]}
    write_json(tmp_path / "a.json", record)
    text = (tmp_path / "a.json").read_text(encoding="utf-8")
    assert read_json(tmp_path / "a.json") == record == json.loads(text)
    assert "Zoë" in text
    assert text.endswith("}\n")


def test_a_record_that_is_no_json_leaves_the_old_file(tmp_path):
    write_json(tmp_path / "a.json", {"old": 1})
    with pytest.raises(TypeError):
        write_json(tmp_path / "a.json", {"new": object()})
    assert read_json(tmp_path / "a.json") == {"old": 1}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"a": 1,\n"b": }', "line 2"),
        (b"", "not valid JSON"),
        (b"\xff\xfe\x00", "not a UTF-8 text file"),
        (None, "No such file"),
    ],
)
def test_a_bad_json_file_is_one_line_with_its_name(tmp_path, content, said):
    path = tmp_path / "a.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CourseError, match=said) as caught:
        read_json(path)
    assert str(path) in caught.value.line()


def test_a_folder_is_no_text(tmp_path):
    with pytest.raises(CourseError, match="directory"):
        read_text(tmp_path)


def test_json_lines_skip_blank_ones_and_name_the_broken_one(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n\n  \n[2]\n')
    assert read_json_lines(path) == [{"a": 1}, [2]]
    path.write_text('{"a": 1}\n\n{"a": \n')
    with pytest.raises(CourseError, match=r"a\.jsonl:3: is not valid JSON"):
        read_json_lines(path)


def test_a_line_separator_inside_a_text_does_not_break_a_json_line(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"question": "one\u2028two"}\n', encoding="utf-8")
    assert read_json_lines(path) == [{"question": "one\u2028two"}]


def test_a_device_is_refused_before_it_is_read():
    with pytest.raises(CourseError, match="is a device"):
        read_text("/dev/zero")


def test_a_file_too_large_to_be_a_config_is_refused_before_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("course_lib.files.MAX_TEXT_BYTES", 10)
    (tmp_path / "a.json").write_text("[" + "1," * 20 + "1]")
    with pytest.raises(CourseError, match="is larger than 10 B"):
        read_json(tmp_path / "a.json")
