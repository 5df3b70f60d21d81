"""`course measure`: cases on a GPU of this machine, beside the prediction."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from course_lib.cli.output import JsonFlag, print_json, print_table


def register(app: typer.Typer) -> None:
    @app.command("measure")
    def measure(
        cases: Annotated[list[Path], typer.Argument(help="Case files (JSON).")],
        ranks: Annotated[int, typer.Option(help="GPUs to use.")] = 1,
        steps: Annotated[int, typer.Option(help="Training steps; peaks are those of the last.")] = 3,
        append: Annotated[Path | None, typer.Option(help="Results file to add the measurements to.")] = None,
        as_json: JsonFlag = False,
    ) -> None:
        """Measure peaks by phase in a fresh process per case, and show the prediction beside them."""
        from course_lib.evaluate.measure import append_results, measure_case

        records = [measure_case(path, ranks=ranks, steps=steps) for path in cases]
        if append is not None:
            append_results(records, append)
        if as_json:
            print_json(records)
            return
        rows = []
        for record in records:
            last = record["measured"]["steps"][-1]
            predicted = record["predicted"]
            rows.append(
                [
                    record["name"],
                    f"{last['peak_allocated']:.2f}",
                    f"{predicted['steady_peak_allocated_bytes'] / 2**30:.2f}",
                    f"{100 * record['errors']['steady_peak_allocated']:+.2f} %",
                    f"{last['peak_reserved']:.2f}",
                    f"{record['measured']['card_used']:.2f}",
                ]
            )
        columns = ["case", "measured", "predicted", "error", "reserved", "card"]
        print_table("GiB on the GPU: peak allocated of the last step", columns, rows, right=range(1, 6))
