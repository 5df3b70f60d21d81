"""One small card per answer: a rich table in a terminal, HTML in a notebook, plain text for every other reader."""

import html
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

MARKS = {"good": "✓", "bad": "✗", "ask": "?", "note": "·"}
"""A mark and a word carry the meaning; the colour of the edge only repeats it."""
EDGES = {"good": "#1b7837", "bad": "#b2182b", "ask": "#b35806", "note": "#4d4d4d"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """What is shown: a headline, an optional table, lines of text. `facts` goes into the output's metadata."""

    kind: str
    """good | bad | ask | note."""
    headline: str
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    lines: Sequence[str] = ()
    code: str = ""
    """Python source shown as it is, after the lines."""
    svg: str = ""
    """A figure, with its own alt text, above the table."""
    facts: dict = field(default_factory=dict)

    def text(self) -> str:
        """The whole card as plain text; the table's columns are aligned."""
        out = [f"{MARKS[self.kind]} {self.headline}"]
        table = [list(map(str, row)) for row in ([self.columns] if self.columns else []) + list(self.rows)]
        widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))] if table else []
        out += [
            "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in table
        ]
        out += [f"  {line}" for line in self.lines]
        out += [f"    {line}" for line in self.code.splitlines()]
        return "\n".join(out)

    def html(self) -> str:
        """The card as HTML that needs neither a style sheet nor a script."""
        head = f'<div style="font-weight:600">{MARKS[self.kind]} {html.escape(self.headline)}</div>'
        lines = "".join(f'<div style="margin-top:.3em">{html.escape(line)}</div>' for line in self.lines)
        code = f"<pre style='margin:.4em 0 0 0'>{html.escape(self.code)}</pre>" if self.code else ""
        style = f"border-left:4px solid {EDGES[self.kind]};padding:.4em .8em;margin:.3em 0;line-height:1.45"
        return f'<div role="note" style="{style}">{head}{self.svg}{self._html_table()}{lines}{code}</div>'

    def _html_table(self) -> str:
        if not self.rows:
            return ""
        cell = "padding:.15em .9em .15em 0;text-align:left;background:transparent"
        head = "".join(f'<th scope="col" style="{cell}">{html.escape(str(c))}</th>' for c in self.columns)
        body = ""
        for row in self.rows:
            first, *rest = (html.escape(str(c)) for c in row)
            body += f'<tr><th scope="row" style="{cell};font-weight:400">{first}</th>'
            body += "".join(f'<td style="{cell};font-variant-numeric:tabular-nums">{c}</td>' for c in rest) + "</tr>"
        caption = f'<caption style="position:absolute;left:-10000px">{html.escape(self.headline)}</caption>'
        style = "border-collapse:collapse;margin:.4em 0 0 0;position:relative"
        return f'<table style="{style}">{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def in_notebook() -> bool:
    """True inside a Jupyter kernel. IPython is asked only when it is already there."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return bool(shell and getattr(shell, "kernel", None))


def show(card: Card) -> None:
    """Show `card` where the reader is."""
    if in_notebook():
        from IPython.display import display

        bundle = {"text/html": card.html(), "text/plain": card.text()}
        display(bundle, raw=True, metadata={"course": card.facts} if card.facts else {})
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False)
    console.print(f"[bold]{escape(f'{MARKS[card.kind]} {card.headline}')}[/bold]")
    if card.rows:
        table = Table(*card.columns)
        for row in card.rows:
            table.add_row(*(escape(str(cell)) for cell in row))
        console.print(table)
    for line in [*card.lines, *card.code.splitlines()]:
        console.print(f"  {escape(line)}")
