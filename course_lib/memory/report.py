"""The memory report: what a case needs on each GPU and host, by phase and part, and how sure that is.

`plan_case` is the one entry; `course plan`, `course fit` and the notebooks print what it returns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from course_lib.errors import CourseError
from course_lib.memory.case import MemoryCase
from course_lib.memory.error_bar import ErrorBar, error_bar
from course_lib.memory.host import host_parts
from course_lib.memory.settings import ZeroSettings, zero_settings
from course_lib.memory.simulate import Simulated, simulate
from course_lib.memory.timeline import PHASES, Phase
from course_lib.shapes.config import max_positions, text_config
from course_lib.shapes.parameters import ModelShape, read_shape
from course_lib.units import gib

NOT_COUNTED = (
    "CUDA context and driver (0.5 to 2 GiB outside torch's allocator; 1.6 GiB seen on an H200)",
    "NCCL buffers after the first collective on several ranks (about 1 to 1.5 GiB)",
    "the Python process itself on the host (3 to 5 GiB with torch, transformers and DeepSpeed loaded)",
    "data loader workers, page cache and pinned batches",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryReport:
    """Predicted bytes of one rank. The parts of each phase sum to its peak."""

    case: MemoryCase
    parameters: int
    trainable: int
    by_part: dict[str, int]
    peak_allocated_bytes: int
    """Largest allocation over all phases, the first step included (torch.cuda.max_memory_allocated)."""
    steady_peak_allocated_bytes: int
    """Forward to step, from the third step on."""
    peak_reserved_bytes: int
    """What torch's allocator holds (torch.cuda.max_memory_reserved)."""
    host_bytes: int
    host: dict[str, int]
    phases: dict[str, dict[str, int]]
    error_bar: ErrorBar
    assumptions: tuple[str, ...]
    not_counted: tuple[str, ...]
    versions: dict[str, str]

    @property
    def peak_phase(self) -> str:
        """The phase with the largest peak."""
        return max(self.phases, key=lambda name: sum(self.phases[name].values()))

    def as_record(self) -> dict[str, Any]:
        """Plain JSON, the answer of `course plan --case FILE --json`."""
        return {
            "peak_allocated_bytes": self.peak_allocated_bytes,
            "steady_peak_allocated_bytes": self.steady_peak_allocated_bytes,
            "peak_reserved_bytes": self.peak_reserved_bytes,
            "host_bytes": self.host_bytes,
            "host": self.host,
            "phases": self.phases,
            "peak_phase": self.peak_phase,
            "error_bar": self.error_bar.as_record(),
            "parameters": self.parameters,
            "trainable": self.trainable,
            "parameters_by_part": self.by_part,
            "assumptions": list(self.assumptions),
            "not_counted": list(self.not_counted),
            "versions": self.versions,
            "label": "predicted",
        }

    def lines(self) -> list[str]:
        """The report in words, one line per fact."""
        bar = self.error_bar
        return [
            f"{self.case.name}: {self.parameters / 1e9:.2f} B parameters, {self.trainable / 1e6:.1f} M trainable",
            f"peak allocated {gib(self.peak_allocated_bytes)} (in {self.peak_phase}), "
            f"steady {gib(self.steady_peak_allocated_bytes)}, reserved {gib(self.peak_reserved_bytes)} per GPU",
            f"host {gib(self.host_bytes)} per rank, beside the process itself",
            f"between {gib(self.peak_allocated_bytes * (1 + bar.low))} and "
            f"{gib(self.peak_allocated_bytes * (1 + bar.high))}: {bar.source}",
        ]


def plan_case(case: MemoryCase, *, capability: int = 9, shape: ModelShape | None = None) -> MemoryReport:
    """Predict the memory of a case.

    Args:
        capability: major compute capability of the GPU, for cuBLAS's workspace.
        shape: what read_shape returned for the same model and adapters, to save its 0.1 s.

    Raises CourseError for a model, adapter, sequence or ds_config that a run would refuse.
    """
    assumptions: list[str] = []
    shape = shape or read_shape(
        case.model, lora=case.lora, dtype=case.dtype, attention=case.attention, thinker_only=True
    )
    if shape.config.model_type.endswith("_thinker"):
        assumptions.append("the thinker alone is loaded and trained: transformers trains no talker")
    _check_positions(case, shape)
    settings = zero_settings(case.ds_config, hidden_size=text_config(shape.config).hidden_size, assumptions=assumptions)
    run = simulate(shape, case, settings, capability=capability)
    host = host_parts(run.host, run.pinned)
    assumptions += _assumptions(case, settings)
    every = [run.load, run.init, *(phase for step in run.steps for phase in step)]
    return MemoryReport(
        case=case,
        parameters=shape.total,
        trainable=shape.trainable,
        by_part=shape.by_part(),
        peak_allocated_bytes=max(phase.peak_bytes for phase in every),
        steady_peak_allocated_bytes=run.peak(len(run.steps) - 1),
        peak_reserved_bytes=max(phase.reserved_bytes for phase in every),
        host_bytes=sum(host.values()),
        host=host,
        phases=_phases(run, every),
        error_bar=error_bar(case, settings.stage, offloads=bool(settings.offload_optimizer or settings.offload_param)),
        assumptions=tuple(assumptions),
        not_counted=NOT_COUNTED,
        versions=_versions(),
    )


def _phases(run: Simulated, every: list[Phase]) -> dict[str, dict[str, int]]:
    """Parts of each phase at its peak: load and init once, the others of the last step, then eval and save."""
    found = {"load": run.load, "init": run.init}
    found |= {phase.name: phase for phase in run.steps[-1]}
    found |= {phase.name: phase for phase in run.after}
    return {
        name: {part: nbytes for part, nbytes in sorted(found[name].parts.items(), key=lambda item: -item[1]) if nbytes}
        for name in PHASES
        if name in found
    }


def _check_positions(case: MemoryCase, shape: ModelShape) -> None:
    limit = max_positions(shape.config)
    if limit and case.sequence_length > limit:
        raise CourseError(
            f"sequence_length {case.sequence_length} is beyond the {limit} positions of {case.name}",
            fix="Shorten the sequence or raise max_position_embeddings with the model's RoPE scaling",
        )


def _assumptions(case: MemoryCase, settings: ZeroSettings) -> list[str]:
    lines = [
        "every sample has sequence_length tokens; ranks are alike",
        "sdpa runs cuDNN's fused attention, as torch chooses on Hopper and Blackwell for half precision without a mask",
    ]
    if case.attention == "flash_attention_2":
        lines.append("flash_attention_2 keeps what the fused sdpa kernel keeps")
    if case.world_size > 1:
        lines.append("gathers and reductions on several ranks are derived from DeepSpeed's source, not measured")
    if not case.outputs_kept:
        lines.append("the step's output object is dropped before backward, as the HF Trainer does")
    if case.quantization:
        lines.append(f"{case.quantization}: linear layers of the frozen base are quantized, lm_head and embeddings not")
    if settings.gradient_accumulation_steps > 1:
        lines.append("gradient accumulation: the peak is that of the last micro step")
    return lines


def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in ("torch", "transformers", "peft", "deepspeed"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    found["models"] = (
        "model code and peft as installed; DeepSpeed 0.19.8's order of allocations; torch 2.11 to 2.14's allocator; "
        "measured on torch 2.11, transformers 5.17 and 5.24"
    )
    return found
