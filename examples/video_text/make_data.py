"""Draw the sample clips of this example and write their annotations.

    python make_data.py                # data/train.jsonl, data/held_out.jsonl and their mp4 files

Each clip is a 48-second film of three shapes that come and go; the events are the seconds in which two or more
are on screen (the house rule, which only the annotations know). Clips are drawn in random order from one seed per
set; no held-out clip shows a cast of shapes that a training clip shows.
"""

import argparse
import json
import random
from pathlib import Path

import av
from scenes import HOUSE_QUESTION, Scene, house_events, random_scene, render

from course_lib.files import whole_file, write_text

CLIP_SECONDS, FRAMES_PER_SECOND, PICTURE = 48.0, 8, 96
ON_SECONDS, OFF_SECONDS = (2.0, 5.0), (3.0, 7.0)
CUT_SECONDS = 1.0
"""This editor cuts on whole seconds, which is also one grid step of the model (two frames, half a second apart)."""
SETS = {"train": (11, 40), "held_out": (22, 24)}
"""Set → (seed, clips)."""


def cast(scene: Scene) -> frozenset[tuple[str, str, int]]:
    """Who plays: colour, shape and lane of every actor."""
    return frozenset((actor.colour, actor.shape, actor.lane) for actor in scene.actors)


def draw_scenes() -> dict[str, list[Scene]]:
    """The scenes of both sets; a held-out cast that training has seen is drawn again."""
    seen: set[frozenset] = set()
    sets = {}
    for name, (seed, clips) in SETS.items():
        rng = random.Random(seed)
        scenes: list[Scene] = []
        while len(scenes) < clips:
            scene = random_scene(rng, CLIP_SECONDS, 3, ON_SECONDS, OFF_SECONDS, CUT_SECONDS)
            if house_events(scene) and cast(scene) not in seen:
                scenes.append(scene)
        seen |= {cast(scene) for scene in scenes}
        sets[name] = scenes
    return sets


def write_clip(scene: Scene, path: Path) -> None:
    """One H.264 file of the scene, a key frame every two seconds so that windows start quickly."""
    count = round(scene.seconds * FRAMES_PER_SECOND)
    times = [(index + 0.5) / FRAMES_PER_SECOND for index in range(count)]
    frames = render([scene], times, PICTURE)[0].permute(0, 2, 3, 1).numpy()
    with whole_file(path) as temporary, av.open(str(temporary), "w", format="mp4") as container:
        options = {"crf": "20", "preset": "slow", "g": str(2 * FRAMES_PER_SECOND)}
        stream = container.add_stream("libx264", rate=FRAMES_PER_SECOND, options=options)
        stream.width = stream.height = PICTURE
        stream.pix_fmt = "yuv420p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "data")
    out = parser.parse_args().out
    for name, scenes in draw_scenes().items():
        lines = []
        for number, scene in enumerate(scenes):
            clip = f"clips/{name}_{number:03d}.mp4"
            write_clip(scene, out / clip)
            events = [[start, end] for start, end in house_events(scene)]
            record = {"video": clip, "duration_seconds": scene.seconds, "question": HOUSE_QUESTION, "events": events}
            lines.append(json.dumps(record))
        write_text(out / f"{name}.jsonl", "\n".join(lines) + "\n")
        print(f"{name}: {len(scenes)} clips")


if __name__ == "__main__":
    main()
