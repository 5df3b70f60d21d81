"""`course tokens RUN.yaml`: what every sample of a run will cost, and whether its answer is in the batch."""

import sys
from pathlib import Path
from typing import Any

from course_lib.cli.output import print_json, print_table
from course_lib.cli.train import parse_overrides
from course_lib.errors import FINDING
from course_lib.units import human_bytes

RUN_SUFFIXES = (".yaml", ".yml")
_BAR = 40


def tokens_of_run(run: Path, *, overrides: list[str], model: str | None, max_tokens: int | None, json: bool) -> int:
    """Audit a run config and print it; returns the exit code."""
    from course_lib.config.run_config import load_run_config
    from course_lib.data.audit_run import audit_run

    values = parse_overrides(overrides) | ({"model": _model(model)} if model else {})
    config = load_run_config(run, values)
    with _Bars() as bars:
        record = audit_run(config, max_tokens=max_tokens, progress=bars.show).as_record()
    if json:
        print_json(record)
    else:
        _print(record)
    return FINDING if record["findings"] else 0


def _model(name: str) -> str:
    # A folder is meant from here, not from where the run config stands.
    return str(Path(name).resolve()) if Path(name).is_dir() else name


class _Bars:
    """Progress on standard error, for people only: standard output stays one table or one JSON object."""

    def __enter__(self) -> "_Bars":
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
            console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty(),
        )  # fmt: skip
        self._tasks: dict[str, Any] = {}
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, what: str, done: int, total: int) -> None:
        if what not in self._tasks:
            self._tasks[what] = self._progress.add_task(what, total=total)
        self._progress.update(self._tasks[what], completed=done)


def _print(record: dict[str, Any]) -> None:
    requested, effective = record["requested"], record["effective"]
    batches, coverage = record["batches"], record["coverage"]
    longest, limit = record["train"]["longest"], record["max_tokens"]
    rows = [
        ("model", f"{record['model']} ({record['family']})"),
        ("requested", _budget(requested)),
        ("effective", _budget(effective)),
        *(row for name in ("train", "held_out") if record[name] for row in _set_rows(record[name], name)),
        ("longest sample", f"{longest['tokens']:,} tokens ({longest['where']}); limit {limit or 'unknown'}"),
        ("largest batch", f"{batches['largest_tokens']:,} tokens a rank; {batches['padding_share']:.1%} padding"),
    ]  # fmt: skip
    if "logits_bytes_all_positions" in batches:
        kept, every = (human_bytes(batches[f"logits_bytes_{name}"]) for name in ("with_this_loss", "all_positions"))
        rows.append(("its logits, fp32", f"{kept} with this loss, {every} for all positions (predicted)"))
    rows += [
        (
            "one epoch",
            f"{coverage['samples']} samples on {coverage['ranks']} ranks × {coverage['batch_size']}: "
            f"{coverage['steps']} steps; {len(coverage['dropped'])} dropped, {len(coverage['repeated'])} repeated",
        ),
        (
            "checked",
            f"labels of {record['checked']['labels_of_samples']} built samples, grids of "
            f"{record['checked']['sizes_by_the_processor']} sizes by the installed processor",
        ),
        ("settings from", record["settings_source"]),
    ]
    print_table(record["run"], ("", ""), rows)
    most = max(bin_["samples"] for bin_ in record["train"]["histogram"])
    bars = [
        (f"{b['from']:,} to {b['to']:,}", b["samples"], "█" * round(_BAR * b["samples"] / most))
        for b in record["train"]["histogram"]
    ]
    print_table("Training samples by tokens", ("tokens", "samples", ""), bars, right=(0, 1))
    for note in record["notes"]:
        print(f"· {note}")
    for finding in record["findings"]:
        print(f"✗ {finding}")


def _budget(values: dict[str, Any]) -> str:
    frames = values["frames"]
    padded = values.get("padded_frames", frames)
    return (
        f"{frames} frames" + (f", padded to {padded}" if padded != frames else "")
        + f", at most {values['max_tokens_per_frame']:g} and at least {values['min_tokens_per_frame']:g} tokens a frame"
    )  # fmt: skip


def _set_rows(audited: dict[str, Any], name: str) -> list[tuple[str, str]]:
    tokens, supervised = audited["tokens"], audited["supervised_tokens"]
    first = audited["per_sample"][0]
    return [
        (name, f"{audited['samples']} samples of {audited['clips']} clips, {len(audited['left_out'])} clips left out"),
        (f"{name} tokens", f"{tokens['least']:,} to {tokens['most']:,}, median {tokens['median']:,}"),
        (f"{name} supervised", f"{supervised['least']:,} to {supervised['most']:,}, median {supervised['median']:,}"),
        (f"{name} first grid", f"{first['grid']} × {first['tokens_per_step']} tokens ({first['limited_by']})"),
    ]
