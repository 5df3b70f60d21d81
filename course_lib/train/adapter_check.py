"""Is there anything in this adapter, and would the base use it? Any peft LoRA directory, ours or not.

Read from the files first: tensors of size zero (a save on one rank under ZeRO-3), prefixes that no peft model has,
values that are not finite, a lora_B that is zero everywhere (never trained). With a base directory the adapter is then
attached to its architecture on the meta device, and every tensor must find a place of its name and shape. No weight of
the base is read.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from course_lib.errors import CourseError
from course_lib.files import read_json

PREFIX = "base_model.model."
"""What peft puts before the base's own parameter names (peft 0.21.2 `PeftModel.base_model`)."""
WEIGHTS = "adapter_model.safetensors"


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterFinding:
    """One thing that is wrong with an adapter directory."""

    code: str
    what: str
    fix: str


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterReport:
    """What an adapter directory holds."""

    tensors: int
    parameters: int
    dtypes: tuple[str, ...]
    layers: int
    placed: int | None
    """Tensors that find their place in the base; None without a base."""
    held: int | None
    """Tensors equal to tensors_held.json, where the course saved one."""
    findings: tuple[AdapterFinding, ...]

    def as_record(self) -> dict[str, Any]:
        """Plain JSON types."""
        return asdict(self)


def check_adapter(folder: Path, base: Path | None = None) -> AdapterReport:
    """Read an adapter directory and judge it.

    Args:
        folder: with adapter_config.json and adapter_model.safetensors. base: directory of the model it belongs to.

    Raises CourseError for a folder that is no adapter, or a file that cannot be read.
    """
    config, tensors = _read(folder)
    findings = [*_empty(tensors), *_prefixes(tensors), *_values(tensors), *_targets(config, tensors)]
    held, held_findings = _held(folder, tensors)
    placed = None
    if base is not None and not findings:
        placed, attached = _attach(folder, config, tensors, base)
        findings += attached
    return AdapterReport(
        tensors=len(tensors),
        parameters=sum(tensor.numel() for tensor in tensors.values()),
        dtypes=tuple(sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()})),
        layers=len({name.split(".lora_")[0] for name in tensors if ".lora_" in name}),
        placed=placed,
        held=held,
        findings=(*findings, *held_findings),
    )


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not folder.is_dir():
        raise CourseError("is not a folder", where=str(folder))
    if not (folder / WEIGHTS).is_file():
        others = sorted(path.name for path in folder.glob("adapter_model.*"))
        fix = f"Only safetensors are read, found {others[0]}" if others else "Name the folder that peft saved into"
        raise CourseError(f"has no {WEIGHTS}", where=str(folder), fix=fix)
    config = read_json(folder / "adapter_config.json")
    try:
        return config, load_file(folder / WEIGHTS)
    except (SafetensorError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise CourseError(
            f"is damaged ({reason})", where=str(folder / WEIGHTS), fix="Take an older checkpoint"
        ) from error


def _empty(tensors: dict[str, Any]) -> list[AdapterFinding]:
    empty = [name for name, tensor in tensors.items() if tensor.numel() == 0]
    if tensors and not empty:
        return []
    what = (
        f"{len(empty)} of {len(tensors)} tensors have no element, first {empty[0]}" if empty else "there is no tensor"
    )
    return [
        AdapterFinding(
            code="empty", what=what, fix="Under ZeRO-3 every rank must take part in saving: consolidate first"
        )
    ]


def _prefixes(tensors: dict[str, Any]) -> list[AdapterFinding]:
    wrong = [name for name in tensors if not name.startswith(PREFIX)]
    if not wrong:
        return []
    return [
        AdapterFinding(
            code="prefix",
            what=f"{len(wrong)} names do not begin with '{PREFIX}', first {wrong[0]}: peft would ignore them",
            fix="Save with the peft model's own save_pretrained, or rename the keys",
        )
    ]


def _values(tensors: dict[str, Any]) -> list[AdapterFinding]:
    findings = []
    broken = [name for name, tensor in tensors.items() if tensor.is_floating_point() and not tensor.isfinite().all()]
    if broken:
        what = f"{len(broken)} tensors hold nan or inf, first {broken[0]}"
        findings.append(AdapterFinding(code="not_finite", what=what, fix="Take an older checkpoint"))
    ups = [tensor for name, tensor in tensors.items() if ".lora_B." in name and tensor.numel()]
    if ups and not any(tensor.any() for tensor in ups):
        what = f"all {len(ups)} lora_B tensors are zero: the adapter changes nothing"
        fix = "It was saved before a step with a learning rate above zero, or nothing trained"
        findings.append(AdapterFinding(code="untrained", what=what, fix=fix))
    return findings


def _targets(config: dict[str, Any], tensors: dict[str, Any]) -> list[AdapterFinding]:
    findings = []
    rank = config.get("r")
    patterned = config.get("rank_pattern") or {}
    wrong = [n for n, t in tensors.items() if ".lora_A." in n and t.ndim == 2 and t.shape[0] and t.shape[0] != rank]
    if wrong and not patterned:
        what = f"{wrong[0]} has rank {tensors[wrong[0]].shape[0]}, adapter_config.json says r={rank}"
        findings.append(AdapterFinding(code="rank", what=what, fix="Config and weights come from two runs"))
    for name in config.get("modules_to_save") or []:
        if not any(f".{name}." in f".{key}" for key in tensors):
            what = f"modules_to_save names '{name}', but no tensor of it was saved"
            findings.append(
                AdapterFinding(code="module_missing", what=what, fix="Save again with that module gathered")
            )
    return findings


def _held(folder: Path, tensors: dict[str, Any]) -> tuple[int | None, list[AdapterFinding]]:
    from course_lib.train.adapter_files import HELD_FILE, tensor_record

    if not (folder / HELD_FILE).is_file():
        return None, []
    held = read_json(folder / HELD_FILE)
    other = [name for name in held if name not in tensors or tensor_record(tensors[name]) != held[name]]
    other += [name for name in tensors if name not in held]
    if not other:
        return len(held), []
    what = f"{len(other)} tensors are not what the ranks held when they saved, first {other[0]}"
    return len(held) - len(other), [AdapterFinding(code="changed", what=what, fix="The file was altered or damaged")]


def _attach(
    folder: Path, config: dict[str, Any], tensors: dict[str, Any], base: Path
) -> tuple[int, list[AdapterFinding]]:
    """How many tensors find their place, by name and shape, in peft's model around the base's architecture."""
    import torch
    import transformers
    from peft import PeftConfig, get_peft_model, get_peft_model_state_dict

    if not (base / "config.json").is_file():
        raise CourseError("is not a model directory (no config.json)", where=str(base))
    model_config = transformers.AutoConfig.from_pretrained(base)
    auto = transformers.AutoModelForCausalLM
    if type(model_config) in transformers.AutoModelForImageTextToText._model_mapping:
        auto = transformers.AutoModelForImageTextToText
    with torch.device("meta"):
        try:
            model = get_peft_model(auto.from_config(model_config), PeftConfig.from_pretrained(folder))
        except ValueError as error:
            raise CourseError(f"does not fit the base: {str(error).splitlines()[0]}", where=str(folder)) from error
    places = {name: tensor.shape for name, tensor in get_peft_model_state_dict(model).items()}
    lost = [name for name, tensor in tensors.items() if places.get(name) != tensor.shape]
    unfilled = [name for name in places if name not in tensors]
    if not lost and not unfilled:
        return len(tensors), []
    what = f"{len(lost)} of {len(tensors)} tensors have no place of their name and shape in this base"
    what += f", first {lost[0]}" if lost else f"; {len(unfilled)} of its places stay empty, first {unfilled[0]}"
    fix = "Names or layers differ: is this the base it was trained on?"
    return len(tensors) - len(lost), [AdapterFinding(code="unused", what=what, fix=fix)]
