"""The headers of all clips of a run, by several readers at once: which can be used, which cannot and why.

PyAV alone: nothing of a clip but its first picture is decoded, and decord would build an index that nobody needs yet.
"""

import queue
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from course_lib.data.windows import Annotation
from course_lib.errors import FINDING, CourseError
from course_lib.media.video import FrameReader, VideoInfo

READERS = 2
SHORT_SECONDS = 0.1
"""Containers round, and annotations are written with one decimal."""


def read_infos(
    clips: Iterable[Path],
    *,
    readers: int = READERS,
    timeout_seconds: float = 20.0,
    progress: Callable[[int], None] | None = None,
) -> dict[Path, VideoInfo | CourseError]:
    """The header of each clip, or why it cannot be read; in the order of `clips`, each once.

    Args:
        readers: child processes that read at the same time. progress: called with the number of clips done.
    """
    distinct = list(dict.fromkeys(clips))
    waiting: queue.SimpleQueue[Path] = queue.SimpleQueue()
    for clip in distinct:
        waiting.put(clip)
    found: dict[Path, VideoInfo | CourseError] = {}
    faults: list[BaseException] = []

    def work() -> None:
        with FrameReader(timeout_seconds, backend="pyav") as reader:
            while not faults:
                try:
                    clip = waiting.get_nowait()
                except queue.Empty:
                    return
                try:
                    found[clip] = reader.info(clip)
                except CourseError as error:
                    found[clip] = error
                except Exception as error:  # noqa: BLE001 - raised again in the thread that asked
                    faults.append(error)
                    return
                if progress is not None:
                    progress(len(found))

    threads = [threading.Thread(target=work) for _ in range(max(1, min(readers, len(distinct))))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]
    return {clip: found[clip] for clip in distinct}


def usable(
    annotations: Iterable[Annotation], infos: Mapping[Path, VideoInfo | CourseError]
) -> tuple[list[Annotation], list[dict[str, str]]]:
    """Annotations whose clip can be read and is as long as they say, and {"clip", "reason"} of the others."""
    kept, left_out = [], []
    for annotation in annotations:
        info = infos[annotation.video]
        problem = info if isinstance(info, CourseError) else _too_short(info, annotation)
        if problem is None:
            kept.append(annotation)
        else:
            left_out.append({"clip": str(annotation.video), "reason": problem.line()})
    return kept, left_out


def _too_short(info: VideoInfo, annotation: Annotation) -> CourseError | None:
    if info.duration_seconds >= annotation.duration_seconds - SHORT_SECONDS:
        return None
    return CourseError(
        f"lasts {info.duration_seconds:.2f} s, but its annotation says {annotation.duration_seconds:.2f} s",
        where=str(annotation.video),
        fix="Correct duration_seconds in the annotation",
        exit_code=FINDING,
    )
