"""docs/lint.md and the code say the same."""

import re
from pathlib import Path

from course_lib.config.findings import CODES, codes_table

ROOT = Path(__file__).parents[2]


def test_the_page_holds_the_table_of_codes():
    assert codes_table() in (ROOT / "docs" / "lint.md").read_text()


def test_every_code_is_used_and_every_used_code_is_explained():
    sources = "\n".join(
        p.read_text() for p in (ROOT / "course_lib" / "config").rglob("*.py") if p.name != "findings.py"
    )
    used = set(re.findall(r'"([a-z_]+)"', sources))
    assert set(CODES) - used - {"optimizer_refused", "scheduler_refused"} == set()
    assert set(re.findall(r'found\(\s*"([a-z_]+)"', sources)) <= set(CODES)
