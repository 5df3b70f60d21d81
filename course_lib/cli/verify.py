"""course verify adapter: element-wise proof that an adapter is what it should be."""

from pathlib import Path
from typing import Annotated

import typer

from course_lib.cli.output import JsonFlag, print_json, print_table
from course_lib.errors import FINDING


def register(app: typer.Typer) -> None:
    verify = typer.Typer(help="Element-wise proofs in a fresh process.", no_args_is_help=True)
    app.add_typer(verify, name="verify")

    @verify.callback()
    def _group() -> None:
        """Element-wise proofs in a fresh process."""

    @verify.command("adapter")
    def adapter(
        folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder that peft saved an adapter into.")],
        base: Annotated[Path | None, typer.Option(help="Directory of the base model; only its config is read.")] = None,
        as_json: JsonFlag = False,
    ) -> None:
        """Is there anything in this adapter, is it what the ranks held, and would the base use it."""
        from course_lib.train.adapter_check import check_adapter

        report = check_adapter(folder, base)
        if as_json:
            print_json(report.as_record())
        else:
            rows = [
                ("tensors", f"{report.tensors} ({', '.join(report.dtypes)})"),
                ("parameters", f"{report.parameters:,} in {report.layers} LoRA layers"),
                ("equal to what the ranks held", "not recorded" if report.held is None else str(report.held)),
                ("find their place in the base", "no base given" if report.placed is None else str(report.placed)),
            ]
            print_table(str(folder), ("adapter", ""), rows)
            for finding in report.findings:
                print(f"✗ {finding.what}. {finding.fix}")
            print("not usable as it is" if report.findings else "every check passed")
        if report.findings:
            raise typer.Exit(FINDING)
