"""Questions that only a fresh process can answer: does torch load with torchvision, does a video decode.

Each probe is a child with its own interpreter state; all run side by side and share one time limit.
"""

import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from course_lib.train.ranks import end_group

TORCH = """
import json, torch, torchvision, torchvision.ops
kept = torchvision.ops.nms(torch.tensor([[0., 0., 1., 1.]]), torch.tensor([1.]), 0.5).tolist()
print(json.dumps({"kept": kept, "torch": torch.__version__, "torchvision": torchvision.__version__,
                  "cuda": torch.version.cuda, "gpus": torch.cuda.device_count()}))
"""

VIDEO = """
import json, sys, tempfile
from pathlib import Path
import av, numpy
frames = 6
with tempfile.TemporaryDirectory() as folder:
    path = str(Path(folder) / "probe.mp4")
    with av.open(path, "w") as out:
        stream = out.add_stream("mpeg4", rate=6)
        stream.width = stream.height = 32
        stream.pix_fmt = "yuv420p"
        for shade in range(frames):
            picture = numpy.full((32, 32, 3), 40 * shade, dtype=numpy.uint8)
            out.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        out.mux(stream.encode())
    try:
        import decord
        reader, read = "decord " + decord.__version__, len(decord.VideoReader(path, num_threads=1))
    except (ImportError, OSError):
        with av.open(path) as video:
            reader, read = "PyAV " + av.__version__, sum(1 for _ in video.decode(video=0))
print(json.dumps({"reader": reader, "frames_read": read, "frames_written": frames}))
"""

CPP = "#include <Python.h>\n#include <vector>\nint main() { std::vector<int> v{1}; return v.size() == 1 ? 0 : 1; }\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a probe said: its JSON, or the last line of what went wrong."""

    record: dict
    problem: str = ""
    timed_out: bool = False


def commands() -> dict[str, list[str]]:
    """The probes by name, as command lines."""
    compiler = os.environ.get("CXX", "c++").split()
    include = sysconfig.get_paths()["include"]
    return {
        "torch": [sys.executable, "-c", TORCH],
        "video": [sys.executable, "-c", VIDEO],
        # What torch's extension builder needs: a C++ compiler called CXX or c++, its headers and Python's.
        "compiler": [*compiler, "-std=c++17", "-fsyntax-only", f"-I{include}", "-x", "c++", "-"],
    }


def ask(probes: Mapping[str, list[str]], *, time_limit_seconds: float) -> dict[str, Answer]:
    """Run every probe at once; one that is not done when the limit ends is stopped."""
    deadline = time.monotonic() + time_limit_seconds
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "probe.cpp"
        source.write_text(CPP)
        started = {name: _start(command, source, environment) for name, command in probes.items()}
        return {name: _collect(child, deadline) for name, child in started.items()}


def _start(command: list[str], stdin: Path, environment: dict) -> subprocess.Popen | OSError:
    try:
        with stdin.open() as source:
            return subprocess.Popen(
                command,
                stdin=source,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
                start_new_session=True,
            )
    except OSError as error:
        return error


def _collect(child: subprocess.Popen | OSError, deadline: float) -> Answer:
    if isinstance(child, OSError):
        return Answer(record={}, problem=str(child))
    try:
        out, err = child.communicate(timeout=max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        end_group(child)
        child.communicate()
        return Answer(record={}, problem="no answer within the time limit", timed_out=True)
    if child.returncode != 0:
        return Answer(record={}, problem=_reason(err) or f"exit code {child.returncode}")
    try:
        return Answer(record=json.loads(out.splitlines()[-1]) if out.strip() else {})
    except ValueError:
        return Answer(record={}, problem=f"unexpected answer: {out.strip()[:200]}")


def _reason(err: str) -> str:
    """The line that says why: a compiler's first error, or the last line of a traceback."""
    lines = [line.strip() for line in err.splitlines() if line.strip()]
    errors = [line for line in lines if "error:" in line]
    return (errors or lines[-1:] or [""])[0][:300]
