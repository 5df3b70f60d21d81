"""Notebook 21's cards say what the data say: events in their window, graded tokens, repeats and drops."""

import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from course_lib.data.coverage import SamplerSettings, cover
from course_lib.data.windows import Annotation, cut_windows
from course_lib.learn import data_plots

EVENTS = ((9.0, 12.0), (24.0, 25.0), (31.0, 35.0))
FILM = Annotation(video=Path("film.mp4"), duration_seconds=48.0, question="Which parts?", events=EVENTS)
WINDOW = cut_windows([FILM], 8, 8, keep_empty=True).windows[3]
PAD = 9


@pytest.fixture
def cards(monkeypatch):
    shown = []
    monkeypatch.setattr(data_plots, "show", shown.append)
    return shown


def test_a_window_says_what_became_of_every_event_of_the_film(cards):
    data_plots.show_window(FILM, WINDOW)
    rows = [("9 to 12", "outside"), ("24 to 25", "0 to 1"), ("31 to 35", "7 to 8 (cut at the edge)")]
    assert cards[0].rows == rows
    assert "0.0-1.0, 7.0-8.0" in cards[0].lines[0]
    assert "In the window from 24 to 32 s: 0 to 1, 7 to 8 s." in ET.fromstring(cards[0].svg).get("aria-label")


@pytest.mark.parametrize(("event", "shown"), [((20.0, 27.0), "0 to 3"), ((20.0, 40.0), "0 to 8")])
def test_an_event_that_runs_when_the_window_opens_is_cut(cards, event, shown):
    film = Annotation(video=Path("film.mp4"), duration_seconds=48.0, question="?", events=(event,))
    data_plots.show_window(film, cut_windows([film], 8, 8, keep_empty=True).windows[3])
    assert [row[1] for row in cards[0].rows] == [f"{shown} (cut at the edge)"]


def test_a_sample_counts_each_token_once_and_shows_what_is_graded(cards):
    tokenizer = SimpleNamespace(decode=lambda ids: " ".join(f"<{token}>" for token in ids))
    item = {"input_ids": torch.tensor([1, PAD, PAD, 2, 7, 8]), "labels": torch.tensor([-100] * 4 + [7, 8])}
    data_plots.show_sample(item, tokenizer, PAD)
    assert [row[1] for row in cards[0].rows] == ["2", "2", "2", "6"]
    assert f'style="{data_plots.GRADED}">&lt;7&gt; &lt;8&gt;</span>' in cards[0].svg
    assert "▦▦" in cards[0].svg


def test_repeats_are_marked_and_drops_are_said(cards):
    data_plots.show_coverage(cover(3, SamplerSettings(ranks=2, batch_size=1)))
    assert cards[0].rows == [("step 0", "0", "1"), ("step 1", "2", "0 again")]
    data_plots.show_coverage(cover(3, SamplerSettings(ranks=2, batch_size=1, drop_last=True)))
    assert cards[1].rows == [("step 0", "0", "1")]
    assert "dropped 2" in cards[1].lines[0]


def test_an_epoch_without_a_step_says_so(cards):
    data_plots.show_coverage(cover(1, SamplerSettings(ranks=2, batch_size=1, kind="torch", drop_last=True)))
    assert cards[0].rows == []
    assert "No step, so no rank gets anything." in cards[0].lines
