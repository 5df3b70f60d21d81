"""`course progress`: which notebooks and exercises are done, from the learner's own file."""

from collections.abc import Mapping

import typer

from course_lib.cli.output import JsonFlag, print_json, print_table


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @app.command("progress")
    def progress(json_output: JsonFlag = False) -> None:
        """Which notebooks and exercises are done. Nothing leaves this machine."""
        from course_lib.learn.summary import summary

        record = summary()
        if json_output:
            print_json(record)
            return
        rows = [
            [
                one["number"],
                one["title"],
                f"{one['predictions_compared']} of {one['predictions']}",
                f"{one['exercises_passed']} of {len(one['exercises'])}",
                "✓ done" if one["done"] else "",
            ]
            for one in record["notebooks"]
        ]
        print_table("Notebooks", ["", "notebook", "compared", "exercises", ""], rows)
        rows = [
            _exercise_row(one["number"], name, e) for one in record["notebooks"] for name, e in one["exercises"].items()
        ]
        print_table("Exercises", ["", "exercise", "", "attempts", "hints", "solution seen"], rows, right=(3, 4))
        typer.echo(f"Kept in {record['file']}")


def _exercise_row(number: str, name: str, entry: Mapping) -> list[str]:
    state = "✓" if entry["passed"] else "not yet" if entry["attempts"] else ""
    return [number, name, state, str(entry["attempts"]), str(entry["hints"]), "yes" if entry["revealed"] else ""]
