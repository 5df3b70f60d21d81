"""`course check`: can this environment run the course."""

import time

import typer

from course_lib.cli.output import JsonFlag, print_json
from course_lib.errors import FINDING


def register(app: typer.Typer) -> None:
    @app.command("check")
    def check(as_json: JsonFlag = False) -> None:
        """Can this environment run the course: one line per requirement, with a remedy."""
        run_check(as_json)


def run_check(as_json: bool) -> None:
    """Print the lines; exit with FINDING when one of them is FAIL. Also `course doctor` without a path."""
    from course_lib.doctor import environment, lines

    started = time.monotonic()
    found = environment.environment_lines()
    worst = lines.verdict(found)
    if as_json:
        seconds = round(time.monotonic() - started, 2)
        print_json({"verdict": worst.lower(), "lines": lines.as_record(found), "seconds": seconds})
    else:
        print(lines.as_text(found))
        bad = sum(line.level == "FAIL" for line in found)
        said = f"not ready: {bad} of {len(found)} lines FAIL" if bad else "ready"
        print(f"\n{said}")
    if worst == "FAIL":
        raise typer.Exit(FINDING)
