"""A learner's first minutes, in the real JupyterLab: open notebook 00, Run All, reach the end without an error."""

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from course_lib.learn.notebooks import learner_path, solutions
from course_lib.learn.progress import course_root
from course_lib.train.ranks import end_group, free_port

CHROMIUM = Path("/usr/bin/chromium")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.notebook,
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"no browser: {CHROMIUM} is missing (apt-get install chromium)"),
]
SETTINGS = {
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    # Cells outside the window would not be on the page at all.
    "notebook-extension/tracker": {"windowingMode": "none"},
}


@contextlib.contextmanager
def jupyter_lab(folder: Path):
    """A JupyterLab on a copy of the learner's notebook; yields its address with the token."""
    (folder / "work").mkdir()
    shutil.copy(learner_path(solutions(["00"])[0]), folder / "work")
    for name, value in SETTINGS.items():
        path = folder / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value))
    own = {
        "COURSE_PROGRESS": folder / "progress.json",
        "JUPYTER_CONFIG_DIR": folder / "config",
        "JUPYTER_RUNTIME_DIR": folder / "runtime",
        "JUPYTERLAB_SETTINGS_DIR": folder / "settings",
        "JUPYTERLAB_WORKSPACES_DIR": folder / "workspaces",
        "JUPYTER_TOKEN": secrets.token_hex(8),
    }
    own = {key: str(value) for key, value in own.items()}
    port = free_port()
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}"]
    log = (folder / "lab.log").open("wb")
    process = subprocess.Popen(
        [*command, f"--ServerApp.root_dir={folder / 'work'}"],
        env=os.environ | own,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        wait_until_it_answers(f"http://127.0.0.1:{port}/api", process)
        yield f"http://127.0.0.1:{port}/lab/tree/00_start_here.ipynb?token={own['JUPYTER_TOKEN']}"
    finally:
        process.terminate()  # first politely, so that the server ends its kernels
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=15)
        end_group(process)
        log.close()


def wait_until_it_answers(address: str, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=5):
            return
        time.sleep(0.3)
    raise AssertionError("JupyterLab did not start")


@pytest.mark.timeout(300)
def test_run_all_reaches_the_end_of_notebook_00_without_an_error(tmp_path):
    from playwright.sync_api import sync_playwright

    with jupyter_lab(tmp_path) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        page.set_default_timeout(60_000)
        page.goto(address)
        status = page.locator("#jp-main-statusbar")
        status.get_by_text("Idle").wait_for()
        page.get_by_role("menuitem", name="Run", exact=True).click()
        page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
        last = page.locator(".jp-Cell-outputArea").get_by_text("cards_needed(", exact=False)
        last.last.wait_for(timeout=150_000)
        errors = page.locator("[data-mime-type='application/vnd.jupyter.error']").count()
        figure = page.locator("svg[role=img][aria-label^='Stacked bars']")
        figure.scroll_into_view_if_needed()
        picture = course_root() / "runs" / "notebooks" / "00_browser.png"
        picture.parent.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=str(picture))
        outputs = page.locator(".jp-Cell-outputArea").all_inner_texts()
        browser.close()
    assert errors == 0
    assert picture.stat().st_size > 20_000
    text = "\n".join(outputs)
    assert "2 ranks, 2,135,104 parameters" in text
    assert "No number yet for 'bytes_per_parameter'." in text
    assert text.count("✗") == 2
