"""Adapters on disk: gathered by all ranks, written whole, and compared tensor by tensor with what the ranks held.

Under ZeRO-3 a rank that saves alone writes tensors of shape (0,) and exits with 0. Here every rank takes part in
gathering each trainable parameter, every rank hashes what it received, and rank 0 writes. Not here: optimizer states
(Trainer checkpoints have them).
"""

import hashlib
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from course_lib.errors import FINDING, CourseError
from course_lib.files import read_json, whole_folder, write_json

WEIGHTS_FILE = "adapter_model.safetensors"
"""What peft calls the adapter's tensors."""
HELD_FILE = "tensors_held.json"
"""Beside the adapter: name → dtype, shape and SHA-256 of the bytes that the ranks held when it was saved."""


def tensor_record(tensor: torch.Tensor) -> dict[str, Any]:
    """dtype, shape and SHA-256 of a tensor's bytes, independent of device and strides."""
    plain = tensor.detach().cpu().contiguous()
    data = plain.reshape(-1).view(torch.uint8).numpy().tobytes()
    return {
        "dtype": str(plain.dtype).removeprefix("torch."),
        "shape": list(plain.shape),
        "sha256": hashlib.sha256(data).hexdigest(),
    }


def gather_trainable(model: nn.Module) -> dict[str, torch.Tensor]:
    """Every trainable parameter whole, on the CPU, by its name in `model`. All ranks must call this together.

    Parameters are gathered one at a time, in the model's order, so that the peak is one parameter.
    """
    import contextlib

    gathered = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if hasattr(parameter, "ds_id"):
            import deepspeed

            context: Any = deepspeed.zero.GatheredParameters([parameter])
        else:
            context = contextlib.nullcontext()
        with context:
            gathered[name] = parameter.detach().cpu().clone()
    return gathered


def saved_name(name: str, adapter: str = "default") -> str:
    """The key under which peft saves an adapter parameter: without the adapter's own name (peft save_and_load.py)."""
    return name.replace(f".{adapter}.", ".")


def save_adapter(model: nn.Module, folder: Path, extra: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Save the adapter of a peft model, whole or not at all. All ranks must call this together.

    Args:
        model: the peft model (not the engine). folder: takes adapter_model.safetensors, adapter_config.json,
            tensors_held.json and one JSON file per entry of `extra` (name → record).

    Returns: the records of what this rank held. Raises CourseError for an empty tensor, ranks that held different
    bytes, or a folder that cannot be written.
    """
    tensors = gather_trainable(model)
    held = {saved_name(name): tensor_record(tensor) for name, tensor in tensors.items()}
    _require_whole(held)
    _require_same_on_all_ranks(held)
    error = None
    if _rank() == 0:
        try:
            with whole_folder(folder) as temporary:
                model.save_pretrained(temporary, state_dict=tensors, safe_serialization=True)
                # peft adds a model card with nothing in it.
                (temporary / "README.md").unlink(missing_ok=True)
                write_json(temporary / HELD_FILE, held)
                for name, record in extra.items():
                    write_json(temporary / f"{name}.json", record)
        except CourseError as problem:
            error = problem
        except SafetensorError as problem:
            # A full disk reaches safetensors first, and its error is no OSError.
            error = CourseError(f"cannot write ({problem})", where=str(folder), fix="Free disk space")
    _raise_everywhere(error)
    return held


def compare_with_held(folder: Path, loaded: dict[str, torch.Tensor]) -> int:
    """Compare tensors of a model loaded in a fresh process with what the ranks held; returns how many are equal.

    Args:
        folder: of the adapter. loaded: trainable parameters by name in the peft model, in any dtype that holds the
            saved one exactly (peft loads bf16 adapters as fp32).

    Raises CourseError naming the first tensors that are missing, unexpected, of another shape, or different, in the
    model or (peft passes over a missing or unexpected name) in the file.
    """
    held = read_json(folder / HELD_FILE)
    found = {saved_name(name): tensor for name, tensor in loaded.items()}
    problems = [f"{name} was held but not loaded" for name in held.keys() - found.keys()]
    problems += [f"{name} was loaded but not held" for name in found.keys() - held.keys()]
    written = names_in_file(folder)
    problems += [f"{name} was held but is not in the file" for name in held.keys() - written]
    problems += [f"{name} is in the file but was not held" for name in written - held.keys()]
    for name in sorted(held.keys() & found.keys()):
        record = tensor_record(found[name].to(getattr(torch, held[name]["dtype"])))
        if record != held[name]:
            problems.append(f"{name} differs ({record['shape']} against {held[name]['shape']})")
    if problems:
        shown = "; ".join(sorted(problems)[:3])
        raise CourseError(
            f"{len(problems)} of {len(held)} adapter tensors are not what the ranks held: {shown}",
            where=str(folder),
            exit_code=FINDING,
        )
    return len(held)


def names_in_file(folder: Path) -> set[str]:
    """Names of the tensors in a saved adapter. Raises CourseError when the file is missing or cut short."""
    path = folder / WEIGHTS_FILE
    if not path.is_file():
        raise CourseError("holds no adapter", where=str(folder), fix="Did the training finish?", exit_code=FINDING)
    try:
        with safe_open(path, framework="pt") as file:
            return set(file.keys())
    except (SafetensorError, OSError) as error:
        raise CourseError(
            f"cannot be read ({error})", where=str(path), fix="The file is damaged: copy it again", exit_code=FINDING
        ) from error


def _require_whole(held: dict[str, dict[str, Any]]) -> None:
    empty = [name for name, record in held.items() if 0 in record["shape"]]
    if empty or not held:
        what = f"{len(empty)} adapter tensors are empty, first {empty[0]}" if empty else "there is no trainable tensor"
        raise CourseError(what, where="saving the adapter", exit_code=FINDING)


def _require_same_on_all_ranks(held: dict[str, dict[str, Any]]) -> None:
    if not _distributed():
        return
    digests: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(digests, hashlib.sha256(repr(sorted(held.items())).encode()).hexdigest())
    for rank, digest in enumerate(digests):
        if digest != digests[0]:
            raise CourseError(
                f"rank {rank} gathered other adapter values than rank 0", where="saving the adapter", exit_code=FINDING
            )


def _raise_everywhere(error: CourseError | None) -> None:
    """Raise rank 0's error on every rank, so that no rank waits in the next collective for one that stopped."""
    lines: list[Any] = [error.line() if error else None]
    if _distributed():
        torch.distributed.broadcast_object_list(lines, src=0)
    if error:
        raise error
    if lines[0]:
        raise CourseError(f"rank 0 could not save: {lines[0]}", exit_code=FINDING)


def _distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _rank() -> int:
    return torch.distributed.get_rank() if _distributed() else 0
