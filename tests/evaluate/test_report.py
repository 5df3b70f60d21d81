"""The report: one page that needs nothing else, says what was not reached, and agrees with its JSON."""

import base64
import json
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from course_lib.data.intervals import format_intervals, parse_intervals
from course_lib.errors import CourseError
from course_lib.evaluate.grounding import CONTROLS, best_constant_answer, judge, score_answers
from course_lib.evaluate.report import ClipRow, RunReport, html_page, write_report

SECONDS = 8.0


def make_rows(count=120):
    rows = []
    for number in range(count):
        start = (number * 7 % 50) / 10
        truth = ((start, start + 1.0 + number % 3),)
        after = format_intervals([(truth[0][0], truth[0][1] - 0.1)])
        before = "0.0-1.0, 0.0-1.0" if number == 0 else "0.0-1.0"
        rows.append(
            ClipRow(
                clip=f"held_{number // 3:02d}.mp4",
                start_seconds=number % 3 * SECONDS,
                seconds=SECONDS,
                question="When is <b>it</b> & the other there?",
                truth=truth,
                before_text=before,
                before=parse_intervals(before, SECONDS),
                after_text=after,
                after=parse_intervals(after, SECONDS),
            )
        )
    return rows


def make_report(rows=None, **changes):
    rows = make_rows() if rows is None else rows
    truths, clips = [row.truth for row in rows], [row.clip for row in rows]
    constant = best_constant_answer(truths, SECONDS, grid_seconds=0.5)
    answers = {
        "before": [row.before for row in rows],
        "after": [row.after for row in rows],
        "best_constant": [constant.answer] * len(rows),
        "shuffled": [rows[index - 4].after for index in range(len(rows))],
        "blank": [parse_intervals("2.0-3.0", SECONDS)] * len(rows),
    }
    values = {
        "title": "video_text <two ranks>",
        "scores": {name: score_answers(truths, given, clips) for name, given in answers.items()},
        "constant": constant,
        "rows": rows,
        "machine": {"cores": 2},
        "versions": {"torch": "2.14.1"},
        "run": {"steps": 100, "seconds": 92.349},
    }
    return RunReport(**(values | changes))


class Page(HTMLParser):
    """Tags that are open at the end, links, and the cells of every table."""

    VOID = frozenset({"meta", "br", "img", "link"})

    def __init__(self, text):
        super().__init__()
        self.open, self.sources, self.tables, self.images, self.in_cell = [], [], [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if tag not in self.VOID:
            self.open.append(tag)
        self.sources += [attrs[name] for name in ("src", "href", "action", "data") if attrs.get(name)]
        if tag in {"svg", "video", "img"}:
            self.images.append((tag, attrs.get("aria-label") or attrs.get("alt")))
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in {"td", "th"}:
            self.tables[-1][-1].append("")
            self.in_cell = True

    def handle_startendtag(self, tag, attrs):
        self.sources += [value for name, value in attrs if name in {"src", "href"}]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        if tag in {"td", "th"}:
            self.in_cell = False

    def handle_data(self, data):
        if self.in_cell:
            self.tables[-1][-1][-1] += data


@pytest.fixture(scope="module")
def text():
    return html_page(make_report())


@pytest.fixture(scope="module")
def page(text):
    return Page(text)


def test_the_page_is_well_formed_and_needs_nothing_outside_itself(text, page):
    assert page.open == []
    assert all(source.startswith("#") for source in page.sources)
    assert "<script" not in text
    # URLs in the page are names of XML namespaces only.
    assert set(re.findall(r'"(https?://[^"]+)"', text)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }


def test_every_figure_has_a_text_alternative_with_its_numbers(page):
    alternatives = [said for tag, said in page.images if tag == "svg"]
    assert len(alternatives) == 2
    report = make_report()
    for name in CONTROLS:
        assert f"{report.scores[name].mean_iou:.2f}" in alternatives[0]
    first = report.rows[0]
    assert (
        f"truth {format_intervals(first.truth)}, before no answer that can be read, after {first.after_text}"
        in (alternatives[1])
    )


def test_the_figures_are_valid_svg_whose_references_resolve(text):
    for element in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        ElementTree.fromstring(element)
        ids = set(re.findall(r' id="([^"]+)"', element))
        assert set(re.findall(r"url\(#([^)]+)\)", element)) <= ids


def test_the_same_run_gives_the_same_page(text):
    assert html_page(make_report()) == text


def test_the_tables_say_what_the_scores_are(page):
    report = make_report()
    scores = page.tables[0]
    for row, name in zip(scores[1:], CONTROLS, strict=True):
        assert row[1] == f"{report.scores[name].mean_iou:.3f}"
        assert row[3] == f"{report.scores[name].parse_rate:.1%}"
    assert len(page.tables[2]) == 1 + len(report.rows)
    assert page.tables[2][1][2] == "When is <b>it</b> & the other there?"


def test_what_a_person_wrote_is_shown_and_not_executed(text):
    assert "<b>it</b>" not in text
    assert "<two ranks>" not in text


def test_json_and_page_are_written_and_agree(tmp_path):
    report = make_report()
    page_path, json_path = write_report(tmp_path / "out", report)
    record = json.loads(json_path.read_text())
    assert list(record["scores"]) == list(CONTROLS)
    for name in CONTROLS:
        assert record["scores"][name]["mean_iou"] == report.scores[name].mean_iou
    assert record["clips"][1]["after"]["iou"] == pytest.approx(report.scores["after"].ious[1])
    assert record["clips"][0]["before"] == {"text": "0.0-1.0, 0.0-1.0", "status": "repeated", "iou": 0.0}
    assert f"{record['scores']['after']['mean_iou']:.3f}" in page_path.read_text()
    assert sorted(entry.name for entry in page_path.parent.iterdir()) == ["report.html", "report.json"]


def test_the_reels_become_part_of_the_page(tmp_path):
    (tmp_path / "after.mp4").write_bytes(b"a film")
    page = Page(html_page(make_report(reels={"after": tmp_path / "after.mp4"})))
    (source,) = [source for source in page.sources if source.startswith("data:video/mp4;base64,")]
    assert base64.b64decode(source.partition(",")[2]) == b"a film"
    assert [said for tag, said in page.images if tag == "video"] == [
        "Held-out clips as the answers after training would cut them"
    ]
    with pytest.raises(CourseError, match="reel cannot be read"):
        html_page(make_report(reels={"after": tmp_path / "gone.mp4"}))


def test_a_run_that_reached_everything_says_so_and_one_that_did_not_says_what(text):
    assert "Every claim below was reached." in text
    poor = make_report(rows=make_rows(30))
    assert "Not reached: held-out samples." in html_page(poor)


def test_each_claim_can_fail_by_itself():
    good = dict(make_report().scores)
    assert all(verdict.reached for verdict in judge(good))
    truths = [((0.0, 1.0),)] * 120
    perfect = score_answers(truths, [parse_intervals("0.0-1.0", SECONDS)] * 120)
    useless = score_answers(truths, [parse_intervals("?", SECONDS)] * 120)
    failed = {
        name: [verdict.claim for verdict in judge(good | {name: scores}) if not verdict.reached]
        for name, scores in (("before", useless), ("after", useless), ("best_constant", perfect))
    }
    assert failed["before"] == ["base answers that can be read"]
    assert failed["after"] == ["mean IoU after", "mean IoU after, above the constant"]
    assert failed["best_constant"] == ["mean IoU after, above the constant"]
    for name in ("shuffled", "blank"):
        (claim,) = [verdict.claim for verdict in judge(good | {name: perfect}) if not verdict.reached]
        assert name in claim


def test_a_missing_control_is_no_report():
    scores = dict(make_report().scores)
    del scores["blank"]
    with pytest.raises(KeyError, match="blank"):
        html_page(make_report(scores=scores))
