"""Many files before any training: which can be read, which cannot and why, and how many were left out."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from course_lib.errors import CourseError
from course_lib.media.video import FrameReader, VideoInfo


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    """`len(kept) + len(left_out)` files were looked at."""

    kept: tuple[VideoInfo, ...]
    left_out: tuple[str, ...]
    """One line per file: its path and the reason."""

    def sentence(self) -> str:
        total = len(self.kept) + len(self.left_out)
        return f"{len(self.left_out)} of {total} files left out"


def survey_videos(
    paths: Iterable[Path | str],
    *,
    on_bad_file: Literal["stop", "skip"] = "stop",
    reader: FrameReader | None = None,
    progress: Callable[[int], None] | None = None,
) -> Survey:
    """Look at every file once: header, timestamps, first frame.

    Args:
        on_bad_file: "stop": the first bad file is raised as its CourseError; "skip": it is left out and reported.
        progress: called with the number of files looked at so far.
    Raises CourseError when every file is bad: a run without data is not a run.
    """
    if reader is None:
        with FrameReader() as own:
            return survey_videos(paths, on_bad_file=on_bad_file, reader=own, progress=progress)
    kept: list[VideoInfo] = []
    left_out: list[str] = []
    for path in paths:
        try:
            kept.append(reader.info(path))
        except CourseError as error:
            if on_bad_file == "stop":
                raise
            left_out.append(error.line())
        if progress is not None:
            progress(len(kept) + len(left_out))
    if left_out and not kept:
        raise CourseError(f"none of {len(left_out)} files can be read; the first: {left_out[0]}")
    return Survey(kept=tuple(kept), left_out=tuple(left_out))
