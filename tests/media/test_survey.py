"""A broken file is a finding: the survey stops or goes on as asked, and says how many were left out."""

import sys
from pathlib import Path

import pytest

from course_lib.errors import CourseError
from course_lib.media.survey import survey_videos

sys.path.insert(0, str(Path(__file__).parent))
from clips import write_clip


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("survey")
    (folder / "b.mp4").write_bytes(b"broken")
    return [write_clip(folder / "a.mp4"), folder / "b.mp4", write_clip(folder / "c.mkv"), folder / "d.mp4"]


def test_bad_files_are_left_out_with_path_and_reason(files):
    seen = []
    survey = survey_videos(files, on_bad_file="skip", progress=seen.append)
    assert [info.path for info in survey.kept] == [files[0], files[2]]
    assert survey.sentence() == "2 of 4 files left out"
    assert str(files[1]) in survey.left_out[0]
    assert "No such file" in survey.left_out[1]
    assert seen == [1, 2, 3, 4]


def test_or_the_first_one_stops(files):
    with pytest.raises(CourseError, match=str(files[1])):
        survey_videos(files, on_bad_file="stop")


def test_nothing_left_is_an_error(files):
    with pytest.raises(CourseError, match="none of 2 files can be read"):
        survey_videos([files[1], files[3]], on_bad_file="skip")


def test_good_files_leave_none_out(files):
    assert survey_videos(files[:1]).sentence() == "0 of 1 files left out"
