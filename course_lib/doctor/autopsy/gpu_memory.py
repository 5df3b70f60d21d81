"""Verdict oom_gpu: in which phase, what the size that did not fit probably was, and by how much it missed."""

import re
from dataclasses import dataclass

from course_lib.doctor.autopsy.events import Line, Log
from course_lib.doctor.autopsy.findings import Finding, last_step_before, phase_at, quote, went_on_after
from course_lib.doctor.autopsy.tracebacks import Frame, frames_before, phase_of
from course_lib.units import GIB, KIB, MIB

OOM = re.compile(
    # With its colon: source code that raises such an error is no error.
    r"(?:Error\W{0,2}: *|^\s*)(?:CUDA|HIP|XPU)(?: error:)? out of memory|Error\W{0,2}: *CUDA error: out of memory|"
    r"CUBLAS_STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation",
    re.IGNORECASE,
)
SIZE = r"([\d.]+) ?(GiB|MiB|KiB|GB|MB|KB|bytes)"
UNIT_BYTES = {"gib": GIB, "mib": MIB, "kib": KIB, "gb": GIB, "mb": MIB, "kb": KIB, "bytes": 1}
"""torch before 2.1 wrote 'GiB' for the same binary unit; 'GB' in its messages is binary too."""
PARTS = {
    "tried_bytes": re.compile(rf"Tried to allocate {SIZE}"),
    "total_bytes": re.compile(rf"total capaci?ty of {SIZE}|{SIZE} total capacity"),
    "free_bytes": re.compile(rf"of which {SIZE} is free|{SIZE} free"),
    "process_bytes": re.compile(rf"this process has {SIZE} memory in use"),
    "allocated_bytes": re.compile(rf"Of the allocated memory {SIZE} is allocated by PyTorch|{SIZE} already allocated"),
    "reserved_unallocated_bytes": re.compile(rf"{SIZE} is reserved by PyTorch but unallocated"),
    "reserved_bytes": re.compile(rf"{SIZE} reserved in total by PyTorch"),
}
OTHER_PROCESS = re.compile(rf"Process (\d+) has {SIZE} memory in use")
GPU = re.compile(r"\bGPU (\d+)\b")

VOCABULARIES = {
    151936: "Qwen2.5, Qwen3, Qwen3-VL",
    152064: "Qwen2.5 7B and up, Qwen2.5-VL-7B",
    248320: "Qwen3.5",
    128256: "Llama 3",
    131072: "Mistral Nemo, LongCat",
    129280: "DeepSeek-V3",
    262144: "Gemma 3",
    256000: "Gemma 2",
    200064: "Phi-4-mini",
    201088: "gpt-oss",
    163840: "Kimi-K2",
    100352: "Phi-4",
    32768: "Mistral v0.3",
    32000: "Llama 2, Mistral v0.1",
}
"""vocab_size of public configs: rows of the logits, so a size can be turned into positions."""
VOCAB_IN_LOG = re.compile(r"[\"']?vocab_size[\"']?\s*[:=]\s*(\d{4,7})")

EXPERT_TENSORS = {
    "LongCat-Flash gate_up_proj, 768 rows": 768 * 2 * 2048 * 6144,
    "LongCat-Flash gate_up_proj, 512 experts": 512 * 2 * 2048 * 6144,
    "Qwen3-30B-A3B gate_up_proj": 128 * 2 * 768 * 2048,
    "Qwen3-235B-A22B gate_up_proj": 128 * 2 * 1536 * 4096,
    "Mixtral-8x7B gate_up_proj": 8 * 2 * 14336 * 4096,
    "DeepSeek-V3 gate_up_proj": 256 * 2 * 2048 * 7168,
    "gpt-oss-120b gate_up_proj": 128 * 2 * 2880 * 2880,
    "Llama-4-Scout gate_up_proj": 16 * 2 * 8192 * 5120,
}
"""Elements of ONE fused tensor of one layer: experts × 2 × intermediate × hidden, from the public configs."""
EXPERT_WORDS = re.compile(r"experts?\b|moe|gate_up_proj|sparse_moe|mixtral|longcat|a3b|a22b", re.I)
GATHER_WORDS = re.compile(
    r"all_gather|fetch_sub_module|partition_parameters|_allgather|GatheredParameters|partitioned_param"
)
EVAL_BATCH = re.compile(r"^\s*(?:\[[^\]]*\]\s*(?:>>)?\s*)?Batch size = (\d+)")
EVAL_BATCH_SET = re.compile(r"per_device_eval_batch_size['\"]?\s*[=: ]\s*(\d+)")
DEFAULT_EVAL_BATCH = 8
"""transformers TrainingArguments.per_device_eval_batch_size, whatever the training batch is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OutOfMemory:
    """One out-of-memory line, read."""

    line: Line
    frames: list[Frame]
    phase: str
    numbers: dict[str, int]
    others_bytes: int
    """What other processes hold on the same GPU."""


def detect(log: Log) -> Finding | None:
    """The first out-of-memory error that training did not survive."""
    lines = [line for line in log.notable if OOM.search(line.text) and not went_on_after(log, line)]
    if not lines:
        return None
    oom = _read(log, _first_with_size(lines))
    cause = _cause(log, oom)
    numbers = {**oom.numbers, **_sizes(log, oom, cause)}
    ranks = sorted({line.rank for line in lines if line.rank is not None})
    return Finding(
        verdict="oom_gpu",
        phase=oom.phase,
        cause=cause,
        numbers=numbers,
        ranks=ranks,
        evidence=_evidence(log, oom, cause),
        facts={"others_bytes": oom.others_bytes},
    )


def _first_with_size(lines: list[Line]) -> Line:
    return next((line for line in lines if "Tried to allocate" in line.text), lines[0])


def _read(log: Log, line: Line) -> OutOfMemory:
    frames = frames_before(log, line)
    numbers = {name: size for name, pattern in PARTS.items() if (size := _size(pattern, line.text)) is not None}
    if "reserved_bytes" in numbers and "allocated_bytes" in numbers:
        numbers["reserved_unallocated_bytes"] = numbers.pop("reserved_bytes") - numbers["allocated_bytes"]
    if "tried_bytes" in numbers and "free_bytes" in numbers:
        numbers["short_by_bytes"] = max(0, numbers["tried_bytes"] - numbers["free_bytes"])
    gpu = GPU.search(line.text)
    if gpu:
        numbers["gpu"] = int(gpu[1])
    others = _others_bytes(line.text, numbers)
    return OutOfMemory(line=line, frames=frames, phase=_phase(log, line, frames), numbers=numbers, others_bytes=others)


def _others_bytes(text: str, numbers: dict[str, int]) -> int:
    """What other processes hold. Without 'this process has' (in a container) the largest one listed is our own."""
    held = sorted(_bytes(amount, unit) for _, amount, unit in OTHER_PROCESS.findall(text))
    if held and "process_bytes" not in numbers and held[-1] >= numbers.get("allocated_bytes", 0):
        held.pop()
    return sum(held)


def _phase(log: Log, line: Line, frames: list[Frame]) -> str:
    told = phase_of(frames)
    around = phase_at(log, line)
    # A stack that only shows a model's forward also stands inside an evaluation that announced itself.
    if told in ("forward", "loss") and around == "eval" and not any(f.function == "training_step" for f in frames):
        return "eval"
    if told:
        return told
    return {"train": "forward", None: "load" if log.last_step is None else "forward"}.get(around, around)


def _size(pattern: re.Pattern, text: str) -> int | None:
    match = pattern.search(text)
    if not match:
        return None
    amount, unit = [group for group in match.groups() if group][:2]
    return _bytes(amount, unit)


def _bytes(amount: str, unit: str) -> int:
    return round(float(amount) * UNIT_BYTES[unit.lower()])


def _cause(log: Log, oom: OutOfMemory) -> str:
    """The usual cause for this phase and size, most specific first; '' when nothing speaks for one."""
    numbers = oom.numbers
    if oom.phase == "load" and _had_a_model(log, oom.line):
        return "second_model"
    if oom.others_bytes > 0.1 * numbers.get("total_bytes", oom.others_bytes or 1):
        return "other_process"
    if numbers.get("reserved_unallocated_bytes", 0) >= numbers.get("tried_bytes", 1 << 62):
        return "fragmentation"
    stack = " ".join(f"{f.file} {f.function} {f.code}" for f in oom.frames)
    if oom.phase != "loss" and _is_expert_tensor(numbers.get("tried_bytes", 0), stack + " " + oom.line.text):
        return "expert_tensor"
    if oom.phase == "eval":
        if re.search(r"nested_concat|pad_across_processes|torch_pad_and_concatenate", stack):
            return "eval_logits_kept"
        return "eval_batch"
    if re.search(r"logits\.float\(\)|logits\.to\(torch\.float|upcast", stack):
        return "logits_upcast"
    if oom.phase == "loss" or "lm_head" in stack:
        return "logits"
    usual = {
        "load": "whole_model_per_rank",
        "init": "optimizer_states",
        "step": "optimizer_states",
        "save": "gathered_for_saving",
    }
    return usual.get(oom.phase, "activations")


def _had_a_model(log: Log, line: Line) -> bool:
    """Whether this process trained, or had finished loading another model, before it loaded again."""
    before = [e for e in log.events if e.line.source == line.source and e.line.number < line.number]
    worked = ("train", "eval", "summary")
    if any(e.kind in worked or e.phase == "save" or (e.phase == "train" and (e.step or 0) > 0) for e in before):
        return True
    bars = [e for e in before if e.kind == "bar" and e.phase == "load"]
    finished = [n for n, e in enumerate(bars) if e.values["done"] == e.total]
    return bool(finished) and any(e.values["done"] < (e.total or 0) for e in bars[finished[0] + 1 :])


def _is_expert_tensor(tried_bytes: int, words: str) -> bool:
    if not tried_bytes:
        return False
    if EXPERT_WORDS.search(words):
        return tried_bytes >= 256 * MIB
    return bool(GATHER_WORDS.search(words)) and bool(_expert_names(tried_bytes))


def _expert_names(tried_bytes: int) -> list[str]:
    """Known fused expert tensors of this size: their bf16 bytes, or twice that (a gather of several; fp32)."""
    names = []
    for name, elements in EXPERT_TENSORS.items():
        for factor, what in ((2, "bf16"), (4, "fp32 or gathered twice")):
            # The message rounds to 0.01 of its unit.
            if abs(tried_bytes - factor * elements) <= max(0.005 * GIB, 0.002 * factor * elements):
                names.append(f"{name} ({what})")
    return names


def _sizes(log: Log, oom: OutOfMemory, cause: str) -> dict[str, object]:
    """The size in other words: positions × vocabulary, expert elements, what a smaller evaluation batch gives back."""
    tried = oom.numbers.get("tried_bytes")
    if not tried:
        return {}
    if cause in ("logits", "logits_upcast"):
        element_bytes = 2 if oom.phase == "forward" else 4
        return {"element_bytes": element_bytes, **_positions(log, tried, element_bytes)}
    if cause == "expert_tensor":
        return {"elements_if_bf16": tried // 2, "matches": _expert_names(tried)}
    if cause in ("eval_batch", "eval_logits_kept"):
        batch = _eval_batch(log)
        sizes = {"eval_batch_size": batch, "freed_by_batch_of_1_bytes": tried - tried // batch}
        return {**sizes, **_positions(log, tried, 4)} if _in_loss(oom) else sizes
    if oom.phase == "backward":
        return _positions(log, tried, 4) if any("loss" in f.function.lower() for f in oom.frames) else {}
    return {}


def _in_loss(oom: OutOfMemory) -> bool:
    return any(re.search(r"logits|Loss|cross_entropy", f.function + f.code) for f in oom.frames)


def _positions(log: Log, size_bytes: int, element_bytes: int) -> dict[str, int]:
    """positions = bytes / (vocabulary × bytes per element), to three digits: the message has no more."""
    stated = [int(m[1]) for line in _head_lines(log) if (m := VOCAB_IN_LOG.search(line))]
    known = [*dict.fromkeys(stated), *(v for v in VOCABULARIES if v not in stated)]
    return {f"positions_if_vocab_{v}": three_digits(size_bytes / (v * element_bytes)) for v in known}


def _head_lines(log: Log) -> list[str]:
    return [line for source in log.sources for line in source.lines[:2000]]


def three_digits(value: float) -> int:
    """Rounded to three significant digits: 86571.5 → 86600."""
    return int(float(f"{value:.3g}"))


def _eval_batch(log: Log) -> int:
    for source in log.sources:
        in_evaluation = False
        for text in source.lines:
            given = EVAL_BATCH_SET.search(text)
            if given:
                return max(1, int(given[1]))
            in_evaluation = in_evaluation or "Running Evaluation" in text
            said = EVAL_BATCH.match(text) if in_evaluation else None
            if said:
                return max(1, int(said[1]))
    return int(log.settings.get("per_device_eval_batch_size") or DEFAULT_EVAL_BATCH)


def _evidence(log: Log, oom: OutOfMemory, cause: str) -> list[str]:
    lines = [quote(oom.line)]
    if oom.frames:
        frame = oom.frames[-1]
        lines.append(f"in {frame.function} ({frame.file}:{frame.line_number}): {frame.code}".rstrip(": "))
    step = last_step_before(log, oom.line)
    if step is not None:
        lines.append(f"last step seen before it: step {step}")
    if cause == "second_model":
        lines.append("this process had a model on the GPU before: it had trained or loaded one")
    return lines
