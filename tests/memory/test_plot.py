"""The picture of a report adds up to its table."""

from pathlib import Path

import pytest

from course_lib.memory.case import read_case
from course_lib.memory.plot import PARTS, plot_report
from course_lib.memory.report import plan_case
from course_lib.units import GIB

CASE = Path(__file__).parents[1] / "data/memory/l8_z3_ckpt_4k.json"


def test_bars_are_as_high_as_the_phases_and_the_card_is_a_line(tmp_path):
    case, measured = read_case(CASE)
    report = plan_case(case)
    figure = plot_report(report, capacity_bytes=24 * GIB, measured=measured)
    axes = figure.axes[0]
    tops: dict[float, float] = {}
    for bar in axes.patches:
        tops[bar.get_x()] = max(tops.get(bar.get_x(), 0), bar.get_y() + bar.get_height())
    expected = [sum(parts.values()) / GIB for parts in report.phases.values()]
    assert sorted(tops.values()) == pytest.approx(sorted(expected))
    assert any(line.get_ydata()[0] == 24 for line in axes.lines)
    figure.savefig(tmp_path / "report.svg")


def test_every_part_of_a_report_has_its_place():
    report = plan_case(read_case(CASE)[0])
    assert {part for parts in report.phases.values() for part in parts} <= set(PARTS)
