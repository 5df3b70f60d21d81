"""What a run config points to: model directory, data, ds_config, and the file systems they are on."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from course_lib.config.run_config import RunConfig
from course_lib.doctor import machine
from course_lib.doctor.lines import Line, fail, ok, warn
from course_lib.errors import CourseError
from course_lib.files import read_json
from course_lib.units import GIB, human_bytes

MEDIA_KEYS = ("video", "audio", "clip", "image", "path", "wav")
MOST_FILES = 2000
"""Media files that are looked for; beyond that their number is said, not their presence."""
PROCESSOR_FILES = ("preprocessor_config.json", "video_preprocessor_config.json", "processor_config.json")
WEIGHT_SUFFIXES = (".safetensors", ".bin")


def model_line(config: RunConfig, base: Path) -> Line:
    """Whether the model is a directory with all that training reads, or a name that has to be in the cache."""
    folder = Path(config.model) if Path(config.model).is_absolute() else base / config.model
    if not folder.is_dir():
        cached = hub_folder() / f"models--{config.model.replace('/', '--')}"
        if cached.is_dir():
            return ok("model", f"{config.model} is in the cache ({cached})")
        fix = "Put the model's directory into 'model:' (nothing is downloaded during a run)"
        return fail("model", f"'{config.model}' is no directory here and not in {hub_folder()}", fix)
    names = {path.name for path in folder.iterdir()}
    missing = [] if "config.json" in names else ["config.json"]
    if not any(name.endswith(WEIGHT_SUFFIXES) for name in names):
        missing.append("weights (*.safetensors)")
    if config.task != "text" and not names & set(PROCESSOR_FILES):
        missing.append("a processor (preprocessor_config.json)")
    if not any(name.startswith(("tokenizer", "vocab")) or name.endswith(".model") for name in names):
        missing.append("a tokenizer")
    if missing:
        return fail("model", f"{folder} lacks {', '.join(missing)}", "Copy the whole model directory")
    size = sum(path.stat().st_size for path in folder.iterdir() if path.suffix in WEIGHT_SUFFIXES)
    return ok("model", f"{folder}, {human_bytes(size)} of weights")


def hub_folder() -> Path:
    """Where huggingface_hub keeps its cache: HF_HUB_CACHE, HF_HOME/hub, ~/.cache/huggingface/hub."""
    home = os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface"
    return Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub")


def data_lines(config: RunConfig) -> list[Line]:
    named = [("train data", config.data.train)]
    if config.data.held_out:
        named.append(("held-out data", config.data.held_out))
    lines = [_annotations_line(name, path) for name, path in named]
    samples = _count(config.data.train)
    needed = config.ranks * config.train.micro_batch_size
    if lines[0].level == "OK" and samples < config.ranks and not config.train.smoke:
        fix = f"At least one sample per rank and micro batch ({needed}), or train.smoke: true"
        lines.append(warn("samples", f"{samples} clips for {config.ranks} ranks: a rank may get no batch", fix))
    return lines


def _annotations_line(name: str, path: Path) -> Line:
    if not path.exists():
        return fail(name, f"{path} is not there", "Make it (see the example's make_data.py) or correct the path")
    try:
        records = list(_records(path))
    except CourseError as error:
        return fail(name, error.line(), "Correct that line")
    if not records:
        return fail(name, f"{path} has no annotation", "An empty file trains nothing")
    media = [path.parent / str(value) for record in records for value in _media_of(record)]
    absent = [file for file in media[:MOST_FILES] if not file.exists()]
    if absent:
        found = f"{len(absent)} of {len(media)} media files are not there, the first: {absent[0]}"
        return fail(name, found, "Copy the clips beside the annotations")
    empty = [file for file in media[:MOST_FILES] if file.is_file() and file.stat().st_size == 0]
    if empty:
        return fail(name, f"{len(empty)} media files are empty, the first: {empty[0]}", "Copy them again")
    return ok(name, f"{len(records)} annotations in {path}, {len(media)} media files present")


def _records(path: Path) -> Iterator[dict[str, Any]]:
    """Annotations of a JSONL file; of a folder, of every JSONL in it."""
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    for file in files:
        try:
            with file.open(encoding="utf-8") as lines:
                for number, line in enumerate(lines, start=1):
                    if line.strip():
                        yield _record(line, f"{file}:{number}")
        except (OSError, UnicodeDecodeError) as error:
            raise CourseError(f"cannot be read ({error})", where=str(file)) from error


def _record(line: str, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise CourseError(f"is not valid JSON: {error.msg}", where=where) from error
    if not isinstance(record, dict):
        raise CourseError("is not a JSON object", where=where)
    return record


def _media_of(record: dict[str, Any]) -> list[str]:
    return [record[key] for key in MEDIA_KEYS if isinstance(record.get(key), str)]


def _count(path: Path) -> int:
    try:
        return sum(1 for _ in _records(path))
    except CourseError:
        return 0


def disk_lines(config: RunConfig, ds_config: dict[str, Any]) -> list[Line]:
    """Space and kind of the file systems under the output, the model cache and NVMe offload."""
    lines = [_disk_line("disk: output", config.output, needs_writing=True), _disk_line("disk: HF_HOME", hub_folder())]
    for name in ("offload_optimizer", "offload_param"):
        block = ds_config.get("zero_optimization", {}).get(name, {}) if ds_config else {}
        if isinstance(block, dict) and block.get("device") == "nvme":
            lines.append(_nvme_line(name, block.get("nvme_path")))
    return lines


def _disk_line(name: str, path: Path, *, needs_writing: bool = False) -> Line:
    disk = machine.space(path)
    shown = f"{human_bytes(disk.free_bytes)} free under {path} ({disk.kind} at {disk.mount or '?'})"
    if needs_writing and not _is_writable(path):
        return fail(name, f"{shown}; not writable", "Choose another output folder, or change its permissions")
    if needs_writing and disk.free_bytes < GIB:
        return fail(name, shown, "Free at least 1 GiB: checkpoints and logs are written there")
    if disk.is_network:
        fix = "Works, but saving and loading are slower for all ranks; a local disk is better"
        return warn(name, f"{shown}, a network file system", fix)
    if disk.free_bytes < 5 * GIB:
        return warn(name, shown, "Enough for adapters; ZeRO checkpoints of a large model need far more")
    return ok(name, shown)


def _is_writable(path: Path) -> bool:
    existing = path
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    return existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)


def _nvme_line(block: str, path: str | None) -> Line:
    name = f"disk: {block}.nvme_path"
    if not path:
        return fail(name, "device is nvme and no nvme_path is given", "Give the path of a local NVMe disk")
    if not Path(path).is_dir():
        return fail(name, f"{path} is not a folder here", "Mount the NVMe disk, or change nvme_path")
    disk = machine.space(Path(path))
    shown = f"{human_bytes(disk.free_bytes)} free on {path} ({disk.kind})"
    if disk.is_network or disk.kind in ("tmpfs", "overlay"):
        return fail(name, f"{shown} is no local NVMe disk", "Offload to a disk of this machine")
    return ok(name, shown)


def read_ds_config(config: RunConfig) -> tuple[dict[str, Any], Line | None]:
    """The ds_config as it stands, and a line when it cannot be read."""
    try:
        ds_config = read_json(config.ds_config)
    except CourseError as error:
        return {}, fail("ds_config", error.line(), "Correct ds_config: in the run config")
    if not isinstance(ds_config, dict):
        return {}, fail("ds_config", f"{config.ds_config} is not a JSON object", "See course lint")
    return ds_config, None
