"""`course preflight RUN`: this run against this node, before it starts."""

import time
from pathlib import Path
from typing import Annotated

import typer

from course_lib.cli.output import JsonFlag, print_json
from course_lib.errors import FINDING

Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A value over the run config's: train.max_steps=3. Repeatable."),
]


def register(app: typer.Typer) -> None:
    @app.command("preflight")
    def preflight(
        run: Annotated[Path, typer.Argument(metavar="RUN", help="Run config (YAML).")],
        overrides: Overrides = None,
        as_json: JsonFlag = False,
    ) -> None:
        """What this run needs against what this node has, in one verdict; nothing is asked, nothing started."""
        from course_lib.cli.train import parse_overrides
        from course_lib.config.run_config import load_run_config
        from course_lib.doctor import lines
        from course_lib.doctor.preflight import preflight_lines

        started = time.monotonic()
        config = load_run_config(run, parse_overrides(overrides or []))
        found = preflight_lines(config, run.resolve().parent)
        worst = lines.verdict(found)
        bad = [line.name for line in found if line.level == "FAIL"]
        if as_json:
            seconds = round(time.monotonic() - started, 2)
            print_json({"verdict": worst.lower(), "lines": lines.as_record(found), "seconds": seconds})
        else:
            print(lines.as_text(found))
            print(f"\n{'do not start: ' + ', '.join(bad) if bad else 'ready to start'}")
        if bad:
            raise typer.Exit(FINDING)
