"""Configs of public models, each with source, licence and date.

One JSON file per model; names are the short names of the course, HF ids are accepted too.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class CatalogueEntry:
    """One public model, as far as its config tells."""

    name: str
    hub_ids: tuple[str, ...]
    model_type: str
    config: dict[str, Any]
    """The fields of config.json that the shape depends on; what is absent is transformers' class default."""
    source: str
    licence: str
    date: str
    """When the source was read (year-month)."""
    notes: tuple[str, ...] = ()
    checkpoint_parameters: int | None = None
    """Parameters that the published checkpoint holds, where it differs from what transformers allocates."""


@functools.cache
def catalogue() -> dict[str, CatalogueEntry]:
    """Every entry by its short name."""
    entries = {}
    for path in sorted(Path(__file__).parent.glob("*.json")):
        values = json.loads(path.read_text(encoding="utf-8"))
        values["hub_ids"] = tuple(values.get("hub_ids", ()))
        values["notes"] = tuple(values.get("notes", ()))
        entries[path.stem] = CatalogueEntry(name=path.stem, **values)
    return entries


def find_entry(name: str) -> CatalogueEntry | None:
    """The entry of a short name or HF id, letter case ignored; None when there is none."""
    wanted = name.strip().lower()
    for entry in catalogue().values():
        if wanted == entry.name.lower() or wanted in (hub_id.lower() for hub_id in entry.hub_ids):
            return entry
    return None
