"""docs/doctor.md and the code say the same."""

import re
from pathlib import Path

from course_lib.doctor.autopsy.diagnose import diagnose
from course_lib.doctor.autopsy.findings import VERDICTS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "doctor.md").read_text(encoding="utf-8")


def test_the_table_of_verdicts_is_the_order_of_precedence():
    section = PAGE.split("### Verdicts")[1].split("### JSON")[0]
    assert tuple(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == VERDICTS


def test_every_key_of_the_json_is_on_the_page():
    section = PAGE.split("### JSON")[1].split("###")[0]
    named = set(re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in section.splitlines() if "|" in line)))
    record = diagnose([ROOT / "tests" / "data" / "logs" / "host_killed.log"])
    assert set(record) == named


def test_the_number_of_healthy_logs_is_the_one_on_the_page():
    healthy = len(list((ROOT / "tests" / "data" / "logs" / "healthy").iterdir()))
    assert f"{healthy} healthy logs" in PAGE
