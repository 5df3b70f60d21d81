"""Notebook 20's figure: what it says is what the plans cost, and it is whole without a slider."""

import builtins
import sys
import xml.etree.ElementTree as ET

import pytest

from course_lib.learn import budget_plots
from course_lib.tokens.families import video_model

MODEL = video_model("qwen3-vl-4b")
CHOICE = {"frames": 32, "cap": 196, "height": 1152, "width": 640}


@pytest.fixture
def outputs(monkeypatch):
    """What IPython would display, in order."""
    shown = []
    monkeypatch.setattr(budget_plots, "in_notebook", lambda: True)
    monkeypatch.setattr(budget_plots, "show", shown.append)
    monkeypatch.setattr("IPython.display.display", lambda bundle, **how: shown.append(bundle))
    return shown


def test_the_card_offers_nothing_that_costs_more_than_the_choice():
    card = budget_plots.budget_card(MODEL, **CHOICE)
    totals = [int(row[-1].replace(",", "")) for row in card.rows]
    # The practitioner's clip: 16 steps of 18 × 10 tokens, and 130 tokens of text around them.
    assert totals[0] == 16 * 18 * 10 + 130
    assert len(totals) > 3
    assert max(totals) == totals[0]


def test_a_smaller_cap_makes_the_choice_cheaper():
    cheaper = budget_plots.budget_card(MODEL, **{**CHOICE, "cap": 96})
    total = int(cheaper.rows[0][-1].replace(",", ""))
    assert total <= 16 * 96 + 130


def test_the_figure_is_one_svg_that_says_the_choice():
    root = ET.fromstring(budget_plots.budget_card(MODEL, **CHOICE).svg)
    assert root.get("role") == "img"
    assert "Your choice: 32 frames of 180 tokens a step." in root.get("aria-label")


def test_sliders_stand_under_the_figure_and_are_named_where_they_cannot_be_shown(outputs):
    budget_plots.show_budget(MODEL)
    card, bundle = outputs
    assert "3,010 tokens" in card.headline
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert "sliders where the notebook is live" in bundle["text/plain"]


def test_a_moved_slider_draws_the_figure_again(outputs, monkeypatch):
    import ipywidgets

    boxes, real = [], ipywidgets.VBox
    monkeypatch.setattr(ipywidgets, "VBox", lambda children: boxes.append(children) or real(children))
    budget_plots.show_budget(MODEL)
    frames, cap, size, page = boxes[0]
    assert "32 frames of 640×1152, at most 196" in page.value
    frames.value, cap.value, size.value = 64, 96, (640, 360)
    assert "64 frames of 640×360, at most 96" in page.value


def test_without_ipywidgets_the_figure_stands_alone(outputs, monkeypatch):
    real = builtins.__import__

    def refuse(name, *rest, **more):
        if name == "ipywidgets":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.delitem(sys.modules, "ipywidgets", raising=False)
    monkeypatch.setattr(builtins, "__import__", refuse)
    budget_plots.show_budget(MODEL)
    assert len(outputs) == 1
