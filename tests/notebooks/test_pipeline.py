"""Learners' copies in step with the solutions, and every rule about notebooks seen failing."""

import copy
import json
import shutil
from pathlib import Path

import nbformat
import pytest
from nbstripout import strip_output

from course_lib.errors import CourseError
from course_lib.learn import notebooks
from course_lib.learn.checks import examine
from course_lib.learn.contract import MOST_LINES, calls, problems
from course_lib.learn.exercise import exercise, lesson, lessons

SOLUTIONS = notebooks.solutions()
BY_NUMBER = pytest.mark.parametrize("path", SOLUTIONS, ids=lambda path: path.name[:2])


def read(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def test_all_notebooks_are_in_step_and_whole():
    assert notebooks.findings() == []


def test_every_lesson_has_its_notebook():
    assert [one.number for one in lessons()] == [path.name[:2] for path in SOLUTIONS]


def test_nbstripout_finds_nothing_to_strip():
    files = sorted(notebooks.solutions_folder().parent.rglob("[0-9]*.ipynb"))
    files = [path for path in files if ".ipynb_checkpoints" not in path.parts]
    assert len(files) == 2 * len(SOLUTIONS)
    assert [path.name for path in files if would_be_stripped(nbformat.read(path, as_version=4))] == []


def test_nbstripout_would_find_an_output():
    notebook = nbformat.read(SOLUTIONS[0], as_version=4)
    cell = next(cell for cell in notebook.cells if cell.cell_type == "code")
    cell.outputs = [nbformat.v4.new_output("stream", text="hello")]
    assert would_be_stripped(notebook)


def would_be_stripped(notebook) -> bool:
    before = nbformat.writes(notebook)
    return nbformat.writes(strip_output(notebook, keep_output=False, keep_count=False, keep_id=True)) != before


def answers(notebook: dict, tag: str) -> dict[str, object]:
    """Exercise name → what the notebook's own cell gives it; each cell with `tag` runs by itself."""
    namespace, found = {}, {}
    for cell in notebook["cells"]:
        text = notebooks.source(cell)
        if cell["cell_type"] != "code":
            continue
        if tag in cell["metadata"].get("tags", []) and not calls(text, "predict"):
            exec(compile(text, f"cell {cell['id']}", "exec"), namespace)
        for call in calls(text, "check"):
            found[call.args[0].value] = namespace[call.args[1].id]
    return found


@BY_NUMBER
def test_every_solution_passes_its_check(path):
    found = answers(read(path), "solution")
    assert set(found) == {task.name for task in lesson(path.name[:2]).exercises}
    for name, answer in found.items():
        assert examine(exercise(name), answer).passed, name


@BY_NUMBER
def test_every_stub_fails_its_check(path):
    found = answers(read(notebooks.learner_path(path)), "stub")
    assert set(found) == {task.name for task in lesson(path.name[:2]).exercises}
    for name, answer in found.items():
        assert not examine(exercise(name), answer).passed, name


@BY_NUMBER
def test_a_learners_copy_holds_no_solution_and_no_prediction(path):
    solution, learner = read(path), read(notebooks.learner_path(path))
    assert [cell["id"] for cell in solution["cells"]] == [cell["id"] for cell in learner["cells"]]
    for solved, open_cell in zip(solution["cells"], learner["cells"], strict=True):
        if "solution" in solved["metadata"].get("tags", []):
            assert notebooks.source(solved) != notebooks.source(open_cell)
            assert "stub" not in open_cell["metadata"]


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A copy of the notebooks that a test may break."""
    shutil.copytree(notebooks.solutions_folder().parent, tmp_path / "notebooks")
    monkeypatch.setattr(notebooks, "course_root", lambda: tmp_path)
    return tmp_path / "notebooks"


def test_building_twice_changes_nothing(checkout):
    assert notebooks.build() == []


def test_an_edited_learners_copy_is_found_and_built_again(checkout):
    learner = checkout / "00_start_here.ipynb"
    learner.write_text(learner.read_text().replace("Can this laptop", "Can that laptop"))
    assert any("out of step" in line for line in notebooks.findings())
    assert notebooks.build() == [learner]
    assert notebooks.findings() == []


def test_a_solution_saved_with_outputs_is_found_and_cleaned(checkout):
    path = checkout / "solutions" / "00_start_here.ipynb"
    notebook = read(path)
    cell = next(cell for cell in notebook["cells"] if cell["cell_type"] == "code")
    cell["outputs"] = [{"output_type": "stream", "name": "stdout", "text": "hello"}]
    cell["execution_count"], cell["metadata"]["scrolled"] = 3, True
    notebook["metadata"]["language_info"] = {"name": "python", "version": "3.11.7"}
    path.write_text(json.dumps(notebook))
    assert any("outputs or stray metadata" in line for line in notebooks.findings())
    assert notebooks.build() == [path]
    assert notebooks.findings() == []


def test_a_copy_without_a_solution_is_found(checkout):
    (checkout / "99_stray.ipynb").write_text("{}")
    assert notebooks.findings() == ["99_stray.ipynb: has no solution in notebooks/solutions"]


def test_the_command_line_says_what_is_wrong_and_exits_1(checkout, capsys):
    assert notebooks.main(["check"]) == 0
    (checkout / "00_start_here.ipynb").unlink()
    assert notebooks.main(["check"]) == 1
    assert "out of step" in capsys.readouterr().out
    assert notebooks.main(["run", "77"]) == 2
    assert "no notebook '77'. Known: 00" in capsys.readouterr().err


def edit(text: str, new: str):
    def change(notebook):
        for cell in notebook["cells"]:
            cell["source"] = notebooks.source(cell).replace(text, new)

    return change


def in_cell(text: str, change):
    def apply(notebook):
        cell = next(cell for cell in notebook["cells"] if text in notebooks.source(cell))
        change(cell)

    return apply


def drop_metadata(notebook):
    del notebook["metadata"]["course"]["minutes"]


def repeat_an_id(notebook):
    notebook["cells"][1]["id"] = notebook["cells"][0]["id"]


BROKEN = [
    (edit("# 00 · Start here", "# Start here"), "must begin with '# 00 · '"),
    (edit("**The question:**", "Question:"), "**The question:**"),
    (edit("- name what", "- understand what"), "'understand' cannot be measured"),
    (edit("**After this notebook you can**", "**Goals**"), "at least two '- ' objectives"),
    (edit("4 to read", "9 to read"), "R to read"),
    (edit("## What you can say now", "## Summary"), "## What you can say now"),
    (edit("## Next", "## More"), "'## Next'"),
    (edit("environment()", "print()"), "must call environment()"),
    (edit('compare("bytes_per_parameter"', 'print("bytes_per_parameter"'), "predicted or compared, but not both"),
    (edit('predict("bytes_per_parameter"', 'predict("other_name"'), "its LESSON declares"),
    (edit('check("cards_needed", cards_needed)', "pass"), "its LESSON declares"),
    (edit("●●○ · 3 min", "●○○ · 3 min"), "there is no section"),
    (edit('hint("cards_needed")', "a hint"), 'must mention hint("cards_needed")'),
    (edit("Help: I get NameError", "Help with NameError"), "Help: I get NameError"),
    (in_cell("operator = ", lambda cell: cell.update(source="x = 1\n" * (MOST_LINES + 1))), "16 lines, at most 15"),
    (in_cell("operator = ", lambda cell: cell.update(source="x = 1" + " + 1" * 30)), "longer than 100"),
    (in_cell("def cards", lambda cell: cell["metadata"].pop("stub")), "come together"),
    (in_cell("def cards", lambda cell: cell["metadata"].update(stub="x = 1\n" * 16)), "(stub): 16 lines"),
    (
        in_cell('predict("stage', lambda cell: cell["metadata"].update(stub='predict("a", 5)')),
        "gives the prediction away",
    ),
    (in_cell('predict("stage', lambda cell: cell.update(metadata={})), "needs the tag 'solution'"),
    (drop_metadata, "metadata course lacks minutes"),
    (repeat_an_id, "an id of its own"),
    (lambda notebook: notebook["metadata"]["course"].update(number="98"), "no lesson '98'"),
    (lambda notebook: notebook["metadata"]["course"]["minutes"].update(exercise=4), "the exercises take 5 minutes"),
    (lambda notebook: notebook["cells"].reverse(), "is compared before it is predicted"),
]


@pytest.mark.parametrize(("change", "said"), BROKEN, ids=[said for _, said in BROKEN])
def test_every_rule_about_notebooks_can_fail(change, said):
    notebook = copy.deepcopy(read(SOLUTIONS[0]))
    assert problems(notebook) == []
    change(notebook)
    assert any(said in problem for problem in problems(notebook)), problems(notebook)


def test_an_unknown_number_names_those_that_exist():
    with pytest.raises(CourseError, match="Known: 00"):
        notebooks.solutions(["55"])
