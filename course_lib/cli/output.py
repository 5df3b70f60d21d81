"""How commands speak: a table for people, stable JSON for machines.

A command builds one plain record (dict) and, for people, rich renderables made from the same record.
"""

import json
from collections.abc import Iterable
from typing import Annotated, Any

import typer

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
"""The `--json` option every command takes."""


def print_json(record: Any) -> None:
    """Print `record` as indented JSON on standard output; nothing else goes there in JSON mode."""
    print(json.dumps(record, indent=1, ensure_ascii=False, default=str))


def print_table(
    title: str, columns: Iterable[str], rows: Iterable[Iterable[Any]], *, right: Iterable[int] = ()
) -> None:
    """Print a rich table. `right` lists the indices of right-aligned columns."""
    from rich.console import Console
    from rich.table import Table

    right = set(right)
    table = Table(title=title, title_justify="left", title_style="bold")
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_escape(cell) for cell in row))
    Console().print(table)


def _escape(cell: Any) -> str:
    from rich.markup import escape

    return escape(str(cell))
