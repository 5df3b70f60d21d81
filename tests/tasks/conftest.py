"""One small run config, derived from run_cpu.yaml: two training clips and one held-out clip, paths of its own."""

import copy
import json

import pytest
import yaml

CLIP_SECONDS = 48.0


class SmallRun:
    """A run config in a folder of its own that a test may spoil before it is written."""

    def __init__(self, folder, example):
        self.folder, self.example = folder, example
        folder.mkdir()
        values = yaml.safe_load((example / "run_cpu.yaml").read_text())
        values["model"] = str(example / values["model"])
        values["ds_config"] = str(example / values["ds_config"])
        values["data"] |= {"train": "train.jsonl", "held_out": "held_out.jsonl"}
        values["output"] = "out"
        values["train"]["micro_batch_size"] = 2  # two clips have six windows with an event: enough for two ranks
        self.values = copy.deepcopy(values)
        self.annotations = {
            name: [
                {"video": str(clip), "duration_seconds": CLIP_SECONDS, "question": "What?", "events": [[1.0, 6.0]]}
                for clip in sorted((example / "data" / "clips").glob(f"{name}_*.mp4"))[:count]
            ]
            for name, count in (("train", 2), ("held_out", 1))
        }

    def write(self):
        for name, records in self.annotations.items():
            (self.folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        path = self.folder / "run.yaml"
        path.write_text(yaml.safe_dump(self.values))
        return path


@pytest.fixture(scope="session")
def new_small_run(tmp_path_factory, example_folder):
    """Makes a SmallRun by name."""
    root = tmp_path_factory.mktemp("small_runs")
    return lambda name: SmallRun(root / name, example_folder)
