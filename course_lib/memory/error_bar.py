"""How far predictions were off where they could be checked, and what that says about a case nearby.

The measurements are those of measured_errors.json, written by benchmarks/memory/errors.py.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_lib.memory.case import MemoryCase

FLOOR = 0.005
"""No bar is narrower: another patch release of torch or transformers moves a few buffers."""
SEVERAL_RANKS = 0.05
NEAREST = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorBar:
    """Relative bounds around a predicted peak: the truth lies between peak·(1+low) and peak·(1+high)."""

    low: float
    high: float
    source: str
    nearest: tuple[str, ...]

    def as_record(self) -> dict[str, Any]:
        return {"low": self.low, "high": self.high, "source": self.source, "nearest": list(self.nearest)}


def traits(case: MemoryCase, stage: int, *, offloads: bool) -> dict[str, Any]:
    """What makes two cases near: family, stage, checkpointing, adapters, video, attention, offload."""
    family = case.model["model_type"] if isinstance(case.model, dict) and "model_type" in case.model else case.name
    return {
        "family": str(family).split("-")[0].replace(".", "_"),
        "stage": stage,
        "checkpointing": case.gradient_checkpointing,
        "lora": case.lora is not None,
        "video": bool(case.video_grids),
        "attention": case.attention,
        "offload": offloads,
        "loss": case.loss,
    }


@functools.cache
def measured_errors() -> list[dict[str, Any]]:
    """Records {"name", "traits", "steady_error"} of every measured case; empty when none were shipped."""
    path = Path(__file__).parent / "measured_errors.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []


def error_bar(case: MemoryCase, stage: int, *, offloads: bool) -> ErrorBar:
    """The spread of errors of the measurements nearest to `case`, widened where nothing near was measured."""
    own = traits(case, stage, offloads=offloads)
    ranked = sorted(
        (sum(own[key] != record["traits"].get(key) for key in own), record["name"], record["steady_error"])
        for record in measured_errors()
    )
    near = ranked[:NEAREST]
    if not near:
        return ErrorBar(low=-0.1, high=0.1, source="no measurement to compare with", nearest=())
    differing = near[0][0]
    # The recorded error is predicted/measured − 1, so the truth is predicted/(1 + error).
    shifts = [1 / (1 + error) - 1 for _, _, error in near]
    low, high = min(0.0, *shifts) - FLOOR, max(0.0, *shifts) + FLOOR
    if differing > 1:
        low, high = low * differing, high * differing
    source = f"errors of the {len(near)} nearest measured cases (the nearest differs in {differing} traits)"
    if case.world_size > 1:
        low, high = min(low, -SEVERAL_RANKS), max(high, SEVERAL_RANKS)
        source += "; widened to 5 % because several ranks were not measured"
    return ErrorBar(low=round(low, 4), high=round(high, 4), source=source, nearest=tuple(name for _, name, _ in near))
