"""`course doctor PATH`: why did a run die, stall, or not learn."""

from pathlib import Path
from typing import Annotated, Any

import typer

from course_lib.cli.output import JsonFlag, print_json
from course_lib.errors import FINDING, CourseError

Paths = Annotated[
    list[Path] | None,
    typer.Argument(metavar="[PATH]...", help="A log, a run folder, or several ranks' logs of one run."),
]
Settings = Annotated[
    Path | None,
    typer.Option(
        help="JSON with max_steps, resumed_from, save_steps, eval_steps, save_total_limit, early_stopping_patience."
    ),
]

MOST_POSITIONS = 3
"""Vocabularies shown to people; --json has them all."""

FigureFile = Annotated[
    Path | None, typer.Option("--figure", metavar="FILE", help="Draw loss and seconds per step (svg, png, pdf).")
]


def register(app: typer.Typer) -> None:
    @app.command("doctor")
    def doctor(
        paths: Paths = None, settings: Settings = None, figure: FigureFile = None, as_json: JsonFlag = False
    ) -> None:
        """Why did it die, stall, or not learn: one verdict with evidence and advice (without PATH: course check)."""
        if not paths:
            from course_lib.cli.check import run_check

            return run_check(as_json)
        from course_lib.doctor.autopsy.diagnose import QUIET, diagnose

        record = diagnose(paths, _settings(settings), figure)
        if as_json:
            print_json(record)
        else:
            _show(record)
        if record["verdict"] not in QUIET:
            raise typer.Exit(FINDING)


def _settings(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    from course_lib.files import read_json

    record = read_json(path)
    if not isinstance(record, dict):
        raise CourseError("must be a JSON object of settings", where=str(path), fix='For example {"max_steps": 600}')
    return record


def _show(record: dict[str, Any]) -> None:
    from course_lib.units import human_bytes, human_seconds

    named = [f"phase {record['phase']}"] if record["phase"] else []
    named += [f"cause {record['cause']}"] if record["cause"] else []
    named += [f"rank {', '.join(map(str, record['ranks']))}"] if record["ranks"] else []
    named += [f"at step {', '.join(map(str, record['at_steps'][:12]))}"] if record["at_steps"] else []
    print(f"{record['verdict']}" + (f"  ({'; '.join(named)})" if named else ""))
    quiet = record["verdict"] in ("healthy", "unknown")
    print(("\n" if quiet else "\nDo this first: ") + record["advice"][0])
    for line in record["advice"][1:]:
        print(f"  then: {line}")
    if record["evidence"]:
        print("\nBecause:")
    for line in record["evidence"]:
        print(f"  {line}")
    positions = [name for name in record["numbers"] if name.startswith("positions_if_vocab_")]
    for name, value in record["numbers"].items():
        if name in positions[MOST_POSITIONS:]:
            continue
        print(f"  {name}: {human_bytes(value) if name.endswith('_bytes') and value > 64 else value}")
    if record["seconds_per_step"]:
        print(f"\n{record['seconds_per_step']:.3g} s per step without pauses", end="")
        print(f"; {human_seconds(record['eta_seconds'])} left" if record["eta_seconds"] is not None else "")
    if record["also"]:
        print(f"\nAlso seen: {', '.join(record['also'])}")
