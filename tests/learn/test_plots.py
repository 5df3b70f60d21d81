"""Figures that can be read in grey, heard, and looked up in a table."""

import itertools
import re
import xml.etree.ElementTree as ET

import pytest

from course_lib.errors import CourseError
from course_lib.learn import plots

BARS = {
    "stage 0": {"optimizer": 8 * 2**30, "weights": 2 * 2**30, "gradients": 2 * 2**30},
    "stage 3": {"weights": 2**30, "gradients": 2**30, "optimizer": 4 * 2**30, "buffers": 2**29},
}


def test_every_part_has_a_hatch_of_its_own():
    hatches = [hatch for _, hatch in plots.PARTS.values()]
    assert len(set(hatches)) == len(hatches)


def test_neighbours_differ_in_grey():
    greys = [plots.lightness(colour) for colour, _ in plots.PARTS.values()]
    assert all(abs(a - b) > 0.1 for a, b in itertools.pairwise(greys)), greys


def test_parts_are_stacked_in_one_order_whatever_the_order_of_the_dict():
    assert plots.used_parts(BARS) == ["weights", "gradients", "optimizer", "buffers"]


def test_the_table_has_a_column_per_bar_and_its_total():
    columns, rows = plots.bars_table(BARS)
    assert columns == ["part", "stage 0", "stage 3"]
    assert rows[-1] == ["total", "12.00 GiB", "6.50 GiB"]


def test_the_figure_is_one_labelled_svg_with_the_capacity_line():
    svg = plots.bars_svg("Memory & more", BARS, capacity_bytes=10 * 2**30, capacity_label="a 10 GiB card")
    root = ET.fromstring(svg)
    assert root.get("role") == "img"
    label = root.get("aria-label")
    for expected in ("Memory & more", "stage 0: 12.00 GiB", "optimizer 4.00 GiB", "The line stands at 10.00 GiB."):
        assert expected in label
    assert "a 10 GiB card" in svg
    assert "stroke-dasharray" in svg


def test_the_widths_are_those_of_the_numbers():
    svg = plots.bars_svg("x", {"one": {"weights": 3 * 2**30, "gradients": 6 * 2**30}})
    paths = re.findall(r'<path d="([^"]+)"[^>]*clip-path', svg)
    corners = [[float(x) for x, _ in re.findall(r"[ML] ([\d.]+) ([\d.]+)", path)] for path in paths]
    widths = [max(xs) - min(xs) for xs in corners if len(xs) == 4]
    assert sorted(widths)[-1] == pytest.approx(2 * sorted(widths)[-2], rel=1e-3)


def test_the_same_numbers_give_the_same_figure():
    assert plots.bars_svg("x", BARS) == plots.bars_svg("x", BARS)


def test_an_unknown_part_names_the_nearest():
    with pytest.raises(CourseError, match="gradients"):
        plots.used_parts({"a": {"gradient": 1}})


def test_the_card_has_figure_table_and_source(cards):
    plots.memory_bars("Memory", BARS, capacity_bytes=12 * 2**30, capacity_label="a 12 GiB card", source="measured")
    html, text = cards[0].html(), cards[0].text()
    assert html.count("<svg") == 1
    assert "<th scope=" in html
    assert "measured" in text
    assert "a 12 GiB card: 12.00 GiB." in text


def test_curves_have_lines_of_their_own_a_table_and_words(cards):
    series = {"rank 0": [(step, 4 / step) for step in range(1, 31)], "rank 1": [(1, 5.0), (30, 1.0)]}
    plots.curves("Loss", "step", "loss", series)
    label = ET.fromstring(cards[0].svg).get("aria-label")
    assert "rank 0 from 4 at step 1 to 0.133 at 30; rank 1 from 5 at step 1 to 1 at 30" in label
    assert [row[0] for row in cards[0].rows] == ["rank 0"] * 8 + ["rank 1"] * 2
    assert len({line for line, _ in plots.DASHES}) == len(plots.DASHES)


@pytest.mark.parametrize("wrong", [{}, {"a": []}, {str(i): [(0, 0)] for i in range(5)}])
def test_curves_that_cannot_be_told_apart_are_refused(wrong):
    with pytest.raises(CourseError):
        plots.curves_svg("x", "x", "y", wrong)
