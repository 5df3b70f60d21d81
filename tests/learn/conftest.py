"""Every test of learn/ gets a progress file of its own."""

import pytest


@pytest.fixture(autouse=True)
def progress_file(tmp_path, monkeypatch):
    path = tmp_path / "progress.json"
    monkeypatch.setenv("COURSE_PROGRESS", str(path))
    return path


@pytest.fixture
def cards(monkeypatch):
    """The cards that were shown, in order."""
    shown = []
    for module in ("predictions", "checks", "plots", "first_cell"):
        monkeypatch.setattr(f"course_lib.learn.{module}.show", shown.append)
    return shown
