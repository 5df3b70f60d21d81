"""The learner's progress, notebook by notebook, as one record (`course progress --json` prints it as it is)."""

from course_lib.learn import progress
from course_lib.learn.exercise import Lesson, lessons


def summary() -> dict:
    """{"file", "done", "notebooks": [{"number", "title", "done", "predictions", "predictions_made",
    "predictions_compared", "exercises_passed", "exercises": {name: {"passed", "attempts", "hints", "revealed"}}}]}.

    A notebook is done when every prediction has been compared and every exercise has passed.
    """
    record = progress.load()
    notebooks = [_of_lesson(lesson, record) for lesson in lessons()]
    done = sum(one["done"] for one in notebooks)
    return {"file": str(progress.progress_path()), "done": done, "notebooks": notebooks}


def _of_lesson(lesson: Lesson, record: dict) -> dict:
    made = [record["predictions"][name] for name in lesson.predictions if name in record["predictions"]]
    compared = sum(bool(entry.get("compared_at")) for entry in made)
    kept = ("passed", "attempts", "hints", "revealed")
    exercises = {}
    for task in lesson.exercises:
        entry = progress.exercise_entry(record, task.name)
        exercises[task.name] = {key: entry[key] for key in kept}
    passed = sum(entry["passed"] for entry in exercises.values())
    return {
        "number": lesson.number,
        "title": lesson.title,
        "done": compared == len(lesson.predictions) and passed == len(exercises),
        "predictions": len(lesson.predictions),
        "predictions_made": len(made),
        "predictions_compared": compared,
        "exercises_passed": passed,
        "exercises": exercises,
    }
