"""FrameReader on clips whose every frame and timestamp is known, good and bad, with both backends."""

import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import time
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.errors import CourseError
from course_lib.media import video
from course_lib.media.video import (
    FrameReader,
    VideoInfo,
    load_video_frames,
    nearest_indices,
    spread_indices,
    window_indices,
)

sys.path.insert(0, str(Path(__file__).parent))
from clips import grey, numbers, write_clip

VARIABLE_TIMES = [0, 40, 100, 500, 1000, 1033, 2833]


def _assert_frames_are(frames: np.ndarray, indices) -> None:
    assert [abs(a - grey(b)) <= 5 for a, b in zip(numbers(frames), indices, strict=True)] == [True] * len(indices)


def _refusal(reader: FrameReader, path: Path) -> str:
    with pytest.raises(CourseError) as caught:
        reader.frames(path, range(reader.info(path).frames))
    line = str(caught.value)
    assert "\n" not in line
    assert str(path) in line
    return line


@pytest.mark.parametrize(
    ("name", "settings_of_clip"),
    [
        ("plain.mp4", {}),
        ("b_frames.mp4", {"options": {"preset": "veryfast", "bf": "3"}, "frames": 60}),
        ("sound.mp4", {"audio": True, "fps": Fraction(30000, 1001)}),
        ("odd_size.mkv", {"width": 63, "height": 47, "pixel_format": "yuv444p"}),
        ("ten_bit.mp4", {"pixel_format": "yuv420p10le"}),
        ("transport.ts", {"audio": True}),
        ("old.avi", {"codec": "mpeg4"}),
        ("web.webm", {"codec": "libvpx-vp9", "frames": 12}),
        ("one_frame.mp4", {"frames": 1}),
        ("variable.mkv", {"frames": 7, "times": VARIABLE_TIMES, "time_base": Fraction(1, 1000)}),
    ],
)
def test_every_index_gives_its_own_frame_in_any_order(reader, tmp_path, name, settings_of_clip):
    path = write_clip(tmp_path / name, **settings_of_clip)
    info = reader.info(path)
    assert info.frames == settings_of_clip.get("frames", 30)
    assert (info.width, info.height) == (settings_of_clip.get("width", 64), settings_of_clip.get("height", 48))
    assert info.has_audio == settings_of_clip.get("audio", False)
    _assert_frames_are(reader.frames(path, range(info.frames)), range(info.frames))
    scattered = [info.frames - 1, 0, info.frames // 2, 0, info.frames // 3]
    _assert_frames_are(reader.frames(path, scattered), scattered)


@pytest.mark.parametrize("fps", [30, Fraction(30000, 1001), Fraction(3000003, 100000), Fraction(25, 2)])
def test_timestamps_are_the_files_own(reader, tmp_path, fps):
    info = reader.info(write_clip(tmp_path / "rate.mp4", fps=fps, frames=40))
    np.testing.assert_allclose(info.timestamps_seconds, np.arange(40) / float(fps), atol=1e-4)
    assert info.average_fps == pytest.approx(float(fps), rel=1e-6)
    assert info.duration_seconds == pytest.approx(40 / float(fps), abs=1e-3)


def test_variable_rate_is_placed_by_time_not_by_average(reader, tmp_path):
    path = write_clip(tmp_path / "v.mkv", frames=7, times=VARIABLE_TIMES, time_base=Fraction(1, 1000))
    info = reader.info(path)
    assert info.timestamps_seconds.tolist() == [tick / 1000 for tick in VARIABLE_TIMES]
    assert nearest_indices(info.timestamps_seconds, [0.0, 0.75, 0.76, 2.0, 99.0]).tolist() == [0, 3, 4, 6, 6]


@pytest.mark.parametrize("name", ["t.ts", "t.mkv"])
def test_time_counts_from_the_start_of_the_file_not_of_its_clock(reader, tmp_path, name):
    late = [42 + number for number in range(12)]
    path = write_clip(tmp_path / name, frames=12, times=late, time_base=Fraction(1, 30))
    info = reader.info(path)
    np.testing.assert_allclose(info.timestamps_seconds, np.arange(12) / 30, atol=2e-3)
    assert info.duration_seconds == pytest.approx(0.4, abs=0.01)
    _assert_frames_are(reader.frames(path, [0, 7, 11]), [0, 7, 11])


@pytest.mark.parametrize(
    ("stored", "clockwise", "corner"),
    [(-90, 90, (0, -1)), (90, 270, (-1, 0)), (180, 180, (-1, -1))],
)
@pytest.mark.parametrize("name", ["r.mov", "r.mp4", "r.mkv"])
def test_rotation_is_applied_exactly_once(reader, tmp_path, name, stored, clockwise, corner):
    path = write_clip(tmp_path / name, rotation=stored, corner=True)
    info = reader.info(path)
    assert info.rotation_degrees == clockwise
    assert (info.width, info.height) == ((64, 48) if clockwise == 180 else (48, 64))
    frames = reader.frames(path, [0, 20])
    assert frames.shape == (2, info.height, info.width, 3)
    for row in (0, -1):
        for column in (0, -1):
            red = frames[1, row, column, 0] > 200 and frames[1, row, column, 1] < 60
            assert red == ((row, column) == corner)


def test_both_backends_agree_on_pixels(tmp_path):
    path = write_clip(tmp_path / "p.mp4", corner=True, frames=20)
    with FrameReader(backend="decord") as one, FrameReader(backend="pyav") as other:
        difference = one.frames(path, range(20)).astype(int) - other.frames(path, range(20))
    assert np.abs(difference).max() <= 3


def test_decord_is_the_reader_where_it_has_a_wheel(tmp_path):
    pytest.importorskip("decord")
    from course_lib.media.decode_worker import Clip

    assert Clip(str(write_clip(tmp_path / "p.mp4")), "decord").sampled is not None


def _remuxed_at_the_front(source: Path, target: Path) -> bytes:
    """The header before the pictures (faststart): such a file can be cut and still open."""
    with av.open(str(source)) as old, av.open(str(target), "w", options={"movflags": "faststart"}) as new:
        stream = new.add_stream_from_template(old.streams.video[0])
        for packet in old.demux(old.streams.video[0]):
            if packet.dts is not None:
                packet.stream = stream
                new.mux(packet)
    return target.read_bytes()


@pytest.fixture(scope="module")
def bad_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bad")
    long = {"frames": 300, "width": 128, "height": 96}
    whole = write_clip(folder / "whole.mp4", **long).read_bytes()
    front = _remuxed_at_the_front(folder / "whole.mp4", folder / "front.mp4")
    matroska = write_clip(folder / "whole.mkv", **long).read_bytes()
    noise = np.random.default_rng(0)
    damaged = bytearray(front)
    for place in noise.integers(len(front) // 4, len(front), 400):
        damaged[place] ^= 255
    with av.open(str(folder / "audio_only.mp4"), "w") as container:
        stream = container.add_stream("aac", rate=16000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 16000), dtype=np.float32), format="fltp", layout="mono")
        frame.sample_rate = 16000
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    with av.open(str(folder / "no_frame.mkv"), "w") as container:
        stream = container.add_stream("libx264", rate=30)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        container.start_encoding()
    for name, content in {
        "cut_before_header.mp4": whole[: len(whole) // 2],
        "header_longer.mp4": front[: int(len(front) * 0.65)],
        "cut.mkv": matroska[: int(len(matroska) * 0.6)],
        "damaged.mp4": bytes(damaged),
        "noise.mp4": noise.bytes(5000),
        "empty.mp4": b"",
        "text.mp4": b"this is not a video\n" * 50,
    }.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("cut_before_header.mp4", "Invalid data"),
        ("header_longer.mp4", "is truncated: its header promises 300 frames"),
        ("cut.mkv", "is truncated: its header promises 10.00 s"),
        ("damaged.mp4", ""),
        ("noise.mp4", "Invalid data"),
        ("text.mp4", "Invalid data"),
        ("empty.mp4", "is empty"),
        ("audio_only.mp4", "has no video stream"),
        ("no_frame.mkv", "holds no frame"),
        ("missing.mp4", "No such file"),
        ("", "is not a regular file"),
    ],
)
def test_a_bad_file_gives_one_line_with_path_and_reason_and_the_reader_goes_on(reader, bad_files, name, reason):
    assert reason in _refusal(reader, bad_files / name)
    assert reader.frames(bad_files / "whole.mp4", [3]).shape == (1, 96, 128, 3)


@pytest.mark.parametrize("indices", [[30], [-1], [0, 99], [], [0.5], [[0]]])
def test_an_index_outside_the_file_is_refused(reader, tmp_path, indices):
    path = write_clip(tmp_path / "p.mp4")
    with pytest.raises(CourseError, match=r"has no frame|indices must be"):
        reader.frames(path, indices)


def test_a_stuck_decoder_is_killed_within_the_limit_and_the_next_request_works(tmp_path):
    path, other = write_clip(tmp_path / "p.mp4"), write_clip(tmp_path / "o.mp4")
    with FrameReader(timeout_seconds=1.0) as reader:
        reader.info(path)
        child = reader._child.pid
        os.kill(child, signal.SIGSTOP)
        started = time.monotonic()
        with pytest.raises(CourseError, match=f"{other}: the decoder made no progress for 1 s"):
            reader.info(other)
        assert time.monotonic() - started < 3
        assert not psutil.pid_exists(child)
        reader.timeout_seconds = 20.0
        assert reader.frames(other, [1]).shape == (1, 48, 64, 3)


def test_a_dead_decoder_is_an_error_that_names_the_signal(tmp_path, monkeypatch):
    script = tmp_path / "crash.py"
    script.write_text("import os, signal, sys\nsys.stdin.readline()\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    monkeypatch.setattr(video, "WORKER", script)
    with FrameReader() as reader, pytest.raises(CourseError, match="the decoder process died \\(signal 11\\)"):
        reader.info(write_clip(tmp_path / "p.mp4"))


SLOW_WORKER = """
import json, os, struct, sys, time
def send(record):
    head = json.dumps(record).encode()
    os.write(1, struct.pack("<I", len(head)) + head)
sys.stdin.readline()
for _ in range(5):
    time.sleep(0.4)
    send({"alive": True})
send({"error": "reached its end"})
sys.stdin.readline()
"""


def test_a_long_file_that_goes_on_is_not_a_hang(tmp_path, monkeypatch):
    (tmp_path / "slow.py").write_text(SLOW_WORKER)
    monkeypatch.setattr(video, "WORKER", tmp_path / "slow.py")
    # Two seconds of work under a limit of one and a half: only silence counts.
    with FrameReader(timeout_seconds=1.5) as reader, pytest.raises(CourseError, match="reached its end"):
        reader.info(write_clip(tmp_path / "p.mp4"))


def test_a_native_hang_ends_by_itself_when_nobody_is_left_to_kill_it(tmp_path):
    os.mkfifo(tmp_path / "never.mp4")
    child = subprocess.Popen([sys.executable, "-P", str(video.WORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    request = f'{{"do": "info", "path": "{tmp_path}/never.mp4", "backend": "pyav", "alarm_seconds": 0.5}}\n'
    child.stdin.write(request.encode())
    child.stdin.flush()
    assert child.wait(timeout=15) == -signal.SIGALRM
    child.stdin.close()
    child.stdout.close()


@pytest.mark.parametrize("ending", ["sys.exit(0)", "os.kill(os.getpid(), signal.SIGKILL)", "raise ValueError"])
def test_no_child_is_left_behind_however_the_owner_ends(tmp_path, ending):
    path = write_clip(tmp_path / "p.mp4")
    code = (
        "import os, signal, sys\nfrom course_lib.media.video import FrameReader\n"
        f"r = FrameReader()\nr.info({str(path)!r})\nprint(r._child.pid, flush=True)\n{ending}\n"
    )
    owner = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    child = int(owner.stdout)
    deadline = time.monotonic() + 5
    while psutil.pid_exists(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not psutil.pid_exists(child)


def test_two_readers_and_two_threads_do_not_mix_answers(tmp_path):
    path = write_clip(tmp_path / "p.mp4", frames=30)
    results = []
    with FrameReader() as one, FrameReader() as other:

        def ask(reader, index):
            for _ in range(10):
                results.append(abs(numbers(reader.frames(path, [index]))[0] - grey(index)) <= 5)

        threads = [threading.Thread(target=ask, args=(r, i)) for r in (one, other) for i in (3, 25)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == [True] * 40


def test_a_forked_process_gets_its_own_child(tmp_path):
    path = write_clip(tmp_path / "p.mp4")
    with FrameReader() as reader:
        reader.info(path)
        mine = reader._child.pid
        receive, send = os.pipe()
        forked = os.fork()
        if forked == 0:
            try:
                right = abs(numbers(reader.frames(path, [7]))[0] - grey(7)) <= 5 and reader._child.pid != mine
                reader.close()
                os.write(send, b"1" if right else b"0")
            finally:
                os._exit(0)
        os.waitpid(forked, 0)
        assert select.select([receive], [], [], 5)[0]
        assert os.read(receive, 1) == b"1"
        _assert_frames_are(reader.frames(path, [9]), [9])
        assert reader._child.pid == mine


def test_a_reader_travels_to_a_spawned_worker_without_its_child(tmp_path):
    with FrameReader(timeout_seconds=7.0, backend="pyav") as reader:
        reader.info(write_clip(tmp_path / "p.mp4"))
        copy = pickle.loads(pickle.dumps(reader))
    assert (copy.timeout_seconds, copy.backend, copy._child) == (7.0, "pyav", None)


def test_a_file_that_changed_is_read_anew(reader, tmp_path):
    path = write_clip(tmp_path / "p.mp4", frames=30)
    assert reader.info(path).frames == 30
    write_clip(path, frames=12)
    assert reader.info(path).frames == 12


def test_an_interrupted_answer_is_never_taken_for_the_next(tmp_path, monkeypatch):
    path = write_clip(tmp_path / "p.mp4")
    with FrameReader() as reader:
        reader.info(path)
        fill = reader._fill
        monkeypatch.setattr(reader, "_fill", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            reader.frames(path, [20])
        monkeypatch.setattr(reader, "_fill", fill)
        _assert_frames_are(reader.frames(path, [2]), [2])


@pytest.mark.slow
def test_memory_of_the_child_does_not_grow_with_the_length_of_the_clip(reader, tmp_path):
    path = write_clip(tmp_path / "p.mp4", frames=900, width=320, height=240)
    reader.frames(path, range(300))
    child = psutil.Process(reader._child.pid)
    before = child.memory_info().rss
    frames = reader.frames(path, range(900))
    assert frames.nbytes > 190 * 2**20
    assert child.memory_info().rss - before < 110 * 2**20


def _info(times: list[float]) -> VideoInfo:
    return VideoInfo(
        path=Path("x.mp4"), width=4, height=4, frames=len(times), duration_seconds=times[-1] + 0.1, average_fps=10.0,
        rotation_degrees=0, has_audio=False, timestamps_seconds=np.array(times),
    )  # fmt: skip


@given(
    st.lists(st.floats(0, 100), min_size=1, max_size=50, unique=True).map(sorted),
    st.lists(st.floats(-5, 105), min_size=1, max_size=10),
)
@settings(max_examples=200, deadline=None)
def test_nearest_means_no_other_frame_is_nearer(times, wanted):
    for index, time_wanted in zip(nearest_indices(times, wanted), wanted, strict=True):
        assert abs(times[index] - time_wanted) == min(abs(t - time_wanted) for t in times)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=60, unique=True).map(sorted), st.data())
@settings(max_examples=200, deadline=None)
def test_a_spread_is_distinct_ascending_and_reaches_both_ends(times, data):
    count = data.draw(st.integers(1, len(times)))
    indices = spread_indices(np.array(times), count)
    assert len(indices) == count
    assert (np.diff(indices) > 0).all()
    assert indices[0] == 0
    assert count == 1 or indices[-1] == len(times) - 1
    assert indices.min() >= 0
    assert indices.max() < len(times)


@given(st.integers(2, 200), st.data())
@settings(max_examples=100, deadline=None)
def test_at_a_constant_rate_a_spread_is_the_even_one(total, data):
    count = data.draw(st.integers(2, total))
    ideal = np.linspace(0, total - 1, count)
    assert np.abs(spread_indices(np.arange(total) / 25.0, count) - ideal).max() <= 0.5 + 1e-6


@given(st.lists(st.floats(0, 20), min_size=3, max_size=80, unique=True).map(sorted), st.integers(1, 40), st.data())
@settings(max_examples=200, deadline=None)
def test_a_window_never_shows_a_frame_from_outside(times, frames, data):
    start = data.draw(st.floats(0, 15))
    end = start + data.draw(st.floats(0.1, 10))
    inside = [t for t in times if start + 1e-6 < t < end - 1e-5]
    info = _info(times)
    if not inside:
        return
    indices = window_indices(info, start, end, frames)
    chosen = info.timestamps_seconds[indices]
    assert len(indices) == frames
    assert (np.diff(indices) >= 0).all()
    assert ((chosen >= start - 1e-6) & (chosen < end)).all()
    if frames > 1:
        assert chosen[-1] == max(inside)


def test_windows_of_30_00003_fps_start_inside():
    times = (np.arange(300) / 30.00003).tolist()
    indices = window_indices(_info(times), 4.0, 8.0, 8)
    assert times[indices[0]] >= 4.0 - 1e-5
    assert times[indices[-1]] < 8.0
    neighbour = window_indices(_info(times), 8.0, 9.9, 8)
    assert indices[-1] < neighbour[0]


def test_a_window_without_frames_is_an_error():
    with pytest.raises(CourseError, match=r"has no frame between 3 s and 4 s; it is 2\.10 s long"):
        window_indices(_info([0.0, 1.0, 2.0]), 3.0, 4.0, 4)


def test_load_video_frames_spreads_over_time(tmp_path):
    path = write_clip(tmp_path / "v.mkv", frames=7, times=VARIABLE_TIMES, time_base=Fraction(1, 1000))
    frames, times = load_video_frames(path, max_frames=3)
    assert times.tolist() == [0.0, 1.033, 2.833]
    _assert_frames_are(frames, [0, 5, 6])
    frames, times = load_video_frames(write_clip(tmp_path / "one.mp4", frames=1))
    assert (frames.shape, times.tolist()) == ((1, 48, 64, 3), [0.0])
    frames, _ = load_video_frames(write_clip(tmp_path / "many.mp4", frames=30), max_frames=8)
    assert len(frames) == 8


def test_importing_the_reader_loads_no_heavy_library():
    code = "import sys, course_lib.media.video; print({'torch', 'numpy', 'av', 'decord'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"
