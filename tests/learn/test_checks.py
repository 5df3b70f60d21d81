"""A check says which case failed and which mistake it looks like; a registered mistake is never called right."""

import math

import pytest

from course_lib.errors import CourseError
from course_lib.learn import check, hint, progress, reveal
from course_lib.learn.checks import examine, same
from course_lib.learn.exercise import Exercise, Help, Misconception, exercise, lesson, lessons

EXERCISES = [task for one in lessons() for task in one.exercises]
MISTAKES = [(task, index) for task in EXERCISES for index in range(len(task.misconceptions))]


def mistaken_answer(task: Exercise, index: int):
    formula = task.misconceptions[index].formula
    return formula() if task.is_value else formula


@pytest.mark.parametrize("task", EXERCISES, ids=lambda task: task.name)
def test_the_solution_passes_its_own_check(task):
    answer = task.solution() if task.is_value else task.solution
    assert examine(task, answer).passed


@pytest.mark.parametrize(("task", "index"), MISTAKES, ids=lambda value: getattr(value, "name", value))
def test_every_misconception_fails_and_is_named(task, index):
    outcome = examine(task, mistaken_answer(task, index))
    assert not outcome.passed
    # Two formulas may stand for one mistake, so the words are compared, not the formula.
    case = task.cases[outcome.case]
    names = dict.fromkeys(case, "‹any›")
    words = task.misconceptions[index].says.format(**names).split("‹any›")
    assert all(part.strip() in outcome.misconception for part in words), outcome.misconception


@pytest.mark.parametrize("task", EXERCISES, ids=lambda task: task.name)
@pytest.mark.parametrize("nothing", [..., None])
def test_an_untouched_stub_fails(task, nothing):
    assert not examine(task, nothing).passed
    if not task.is_value:
        assert not examine(task, lambda **arguments: nothing).passed


@pytest.mark.parametrize("task", EXERCISES, ids=lambda task: task.name)
def test_the_help_quotes_an_error_that_python_really_gives(task):
    for known in task.helps:
        outcome = examine(task, known.produced_by)
        assert known.error in outcome.headline
        assert known.remedy in outcome.lines


def test_the_style_guides_example_names_the_failed_case_and_the_idea():
    outcome = examine(exercise("zero_stage_bytes"), lambda psi, stage, ranks: 16 * psi / (ranks if stage else 1))
    assert outcome.headline.startswith("zero_stage_bytes(psi=7.5e9, stage=1, ranks=4): got 27.9 GiB")
    assert "expected 48.9 GiB" in outcome.headline
    assert "You divided everything by 4." in outcome.misconception
    assert 'hint("zero_stage_bytes")  ·  reveal("zero_stage_bytes")' in outcome.lines


@pytest.mark.parametrize(
    ("factor", "said"), [(1e-9, "GB (10⁹"), (2**-30, "GiB (2³⁰"), (8, "bits"), (2**30 / 1e9, "mixed GB and GiB")]
)
def test_a_slipped_unit_is_recognised_for_bytes(factor, said):
    task = exercise("zero_stage_bytes")
    assert said in examine(task, lambda **case: task.solution(**case) * factor).misconception


def test_a_mistake_nobody_registered_is_not_given_a_false_name():
    assert examine(exercise("zero_stage_bytes"), lambda psi, stage, ranks: 3 * psi + stage).misconception == ""


def value_exercise() -> Exercise:
    return Exercise(
        name="floor",
        task="Find the floor.",
        difficulty=1,
        minutes=1,
        unit="GB",
        solution=lambda: 30.0,
        why="Because.",
        misconceptions=(Misconception(formula=lambda: 15.0, says="The gradients stay whole too."),),
        hints=("one", "two"),
        helps=(),
    )


def test_a_value_is_checked_without_printing_the_answer():
    task = value_exercise()
    assert examine(task, 30).passed
    outcome = examine(task, 15)
    assert outcome.headline == "floor: 15 GB is not it (too small)"
    assert outcome.misconception == "The gradients stay whole too."
    assert not any("30" in line for line in (outcome.headline, *outcome.lines))
    assert "got a function" in examine(task, lambda: 30).headline


def test_calling_the_function_by_mistake_is_explained():
    outcome = examine(exercise("cards_needed"), 3)
    assert "Pass the function itself" in outcome.lines[0]


def test_wrong_parameter_names_are_explained():
    outcome = examine(exercise("cards_needed"), lambda model, card: 3)
    assert "The function must take: psi, card_gib." in outcome.lines


def test_a_learners_function_cannot_spoil_the_cases():
    task = Exercise(
        name="largest",
        task="Find the largest.",
        difficulty=1,
        minutes=1,
        solution=max_of,
        why="Because.",
        cases=({"values": [3, 1, 2]}, {"values": [1]}),
        misconceptions=(),
        hints=("one", "two"),
        helps=(Help(error="IndexError", remedy="…", produced_by=None),),
    )

    def greedy(values):
        values.sort()
        return values.pop()

    assert examine(task, greedy).passed
    assert task.cases[0]["values"] == [3, 1, 2]


def max_of(values):
    return max(values)


@pytest.mark.parametrize(
    ("got", "right", "equal"),
    [
        (1, 1.0, True),
        (1.0000001, 1, True),
        (1.1, 1, False),
        (True, 1, False),
        (1, True, False),
        ("Yes ", "yes", True),
        ([1, 2], (1, 2), True),
        ((1, 2, 3), (1, 2), False),
        (5, (1, 2), False),
        ({"a": 1}, {"a": 1.0}, True),
        ({"a": 1, "b": 2}, {"a": 1}, False),
        ("12", 12, True),
        ("twelve", 12, False),
        (None, 0, False),
        (math.nan, 1.0, False),
    ],
)
def test_equality_is_about_what_matters(got, right, equal):
    assert same(got, right, 1e-6) is equal


def test_check_records_attempts_and_keeps_a_pass(cards):
    check("cards_needed", lambda psi, card_gib: 1)
    check("cards_needed", exercise("cards_needed").solution)
    check("cards_needed", ...)
    entry = progress.load()["exercises"]["cards_needed"]
    assert (entry["passed"], entry["attempts"]) == (True, 3)
    assert [card.kind for card in cards] == ["bad", "good", "bad"]
    assert cards[1].facts == {"exercise": "cards_needed", "passed": True, "case": None}


def test_hints_come_one_by_one_and_the_solution_last(cards):
    task = exercise("cards_needed")
    hint("cards_needed")
    assert task.hints[0] in cards[-1].text()
    assert task.hints[1] not in cards[-1].text()
    hint("cards_needed")
    hint("cards_needed")
    assert task.hints[1] in cards[-1].text()
    reveal("cards_needed")
    assert "return math.ceil(16 * psi / (card_gib * 2**30))" in cards[-1].text()
    entry = progress.load()["exercises"]["cards_needed"]
    assert (entry["hints"], entry["revealed"], entry["passed"]) == (2, True, False)


def test_an_unknown_exercise_names_the_nearest():
    with pytest.raises(CourseError, match="cards_needed"):
        check("card_needed", 1)
    with pytest.raises(CourseError, match="00"):
        lesson("99")


def test_names_are_the_courses_own():
    names = [task.name for task in EXERCISES]
    predictions = [name for one in lessons() for name in one.predictions]
    assert len(set(names)) == len(names)
    assert len(set(predictions)) == len(predictions)


def test_an_exercise_without_cases_or_with_a_wild_difficulty_is_refused():
    with pytest.raises(ValueError, match="cannot fail"):
        Exercise(**{**fields(value_exercise()), "cases": ()})
    with pytest.raises(ValueError, match="difficulty"):
        Exercise(**{**fields(value_exercise()), "difficulty": 4})


def fields(task: Exercise) -> dict:
    return {name: getattr(task, name) for name in Exercise.__slots__}
