"""What every notebook owes its learner, as a list of what is missing.

One question, objectives one could measure, minutes, versions first, a prediction before each comparison,
two checked exercises with hints and the exact error people get, a summary, and where to go next.
"""

import ast
import re

from course_lib.errors import CourseError
from course_lib.learn.exercise import Exercise, Lesson, lesson

MOST_LINES = 15
"""Lines of one code cell, solution and stub alike."""
VAGUE_VERBS = {
    "understand",
    "know",
    "learn",
    "appreciate",
    "grasp",
    "explore",
    "see",
    "be",
    "become",
    "get",
    "discover",
}


def problems(notebook: dict) -> list[str]:
    """What a solution notebook lacks, one line each. Sources may be strings or lists of lines."""
    facts = notebook["metadata"].get("course", {})
    missing = [key for key in ("number", "question", "minutes", "time_limit_seconds") if key not in facts]
    if missing:
        return [f"metadata course lacks {', '.join(missing)}"]
    try:
        declared = lesson(facts["number"])
    except CourseError as error:
        return [error.line()]
    cells = [(cell, _text(cell)) for cell in notebook["cells"]]
    prose = [text for cell, text in cells if cell["cell_type"] == "markdown"]
    code = [(cell, text) for cell, text in cells if cell["cell_type"] == "code"]
    found = _opening(prose, facts) + _ending(prose) + _cells(code) + _ids(notebook)
    found += _predictions(code, declared) + _exercises(code, prose, declared, facts)
    return found


def _text(cell: dict) -> str:
    return cell["source"] if isinstance(cell["source"], str) else "".join(cell["source"])


def _opening(prose: list[str], facts: dict) -> list[str]:
    first, found = prose[0] if prose else "", []
    if not first.startswith(f"# {facts['number']} · "):
        found.append(f"the first cell must begin with '# {facts['number']} · ' and the title")
    if f"**The question:** {facts['question']}" not in first:
        found.append(f"the first cell must say '**The question:** {facts['question']}'")
    objectives = re.findall(r"^- (\w+)", first.partition("**After this notebook you can**")[2], flags=re.MULTILINE)
    if len(objectives) < 2:
        found.append("the first cell needs '**After this notebook you can**' and at least two '- ' objectives")
    vague = sorted({verb.lower() for verb in objectives} & VAGUE_VERBS)
    found += [f"the objective that begins with '{verb}' cannot be measured" for verb in vague]
    said = re.search(r"\*\*Minutes:\*\* (\d+) to read, (\d+) to run, (\d+) to exercise", first)
    minutes = tuple(facts["minutes"].get(key) for key in ("read", "run", "exercise"))
    if not said or tuple(map(int, said.groups())) != minutes:
        found.append(f"the first cell must say '**Minutes:** R to read, R to run, E to exercise' with {minutes}")
    return found


def _ending(prose: list[str]) -> list[str]:
    text = "\n".join(prose)
    return [f"there is no heading '{h}'" for h in ("## What you can say now", "## Next") if f"{h}\n" not in text + "\n"]


def _cells(code: list[tuple[dict, str]]) -> list[str]:
    found = []
    if not code or "environment()" not in code[0][1]:
        found.append("the first code cell must call environment()")
    for index, (cell, text) in enumerate(code, start=1):
        tags, stub = cell["metadata"].get("tags", []), cell["metadata"].get("stub")
        if ("solution" in tags) != (stub is not None):
            found.append(f"code cell {index}: the tag 'solution' and the metadata 'stub' come together")
        for kind, lines in (("", text), (" (stub)", stub or "")):
            if len(lines.splitlines()) > MOST_LINES:
                found.append(f"code cell {index}{kind}: {len(lines.splitlines())} lines, at most {MOST_LINES}")
            if any(len(line) > 100 for line in lines.splitlines()):
                found.append(f"code cell {index}{kind}: a line is longer than 100 characters")
    return found


def _ids(notebook: dict) -> list[str]:
    ids = [cell.get("id") for cell in notebook["cells"]]
    return [] if all(ids) and len(set(ids)) == len(ids) else ["every cell needs an id of its own"]


def calls(text: str, function: str) -> list[ast.Call]:
    """The calls of `function` by that bare name in a cell's code, in order."""
    found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    return [call for call in found if isinstance(call.func, ast.Name) and call.func.id == function]


def _named(code: list[tuple[dict, str]], function: str) -> list[tuple[str, int]]:
    """(first argument, index of the cell) of every call of `function`."""
    return [
        (call.args[0].value, index)
        for index, (_, text) in enumerate(code)
        for call in calls(text, function)
        if call.args and isinstance(call.args[0], ast.Constant)
    ]


def _predictions(code: list[tuple[dict, str]], declared: Lesson) -> list[str]:
    predicted, compared = dict(_named(code, "predict")), dict(_named(code, "compare"))
    found = [] if predicted else ["there is no predict → compare"]
    if list(predicted) != list(declared.predictions):
        found.append(f"predicts {list(predicted)}, its LESSON declares {list(declared.predictions)}")
    for name in sorted(set(predicted) ^ set(compared)):
        found.append(f"{name!r} is predicted or compared, but not both")
    found += [f"{n!r} is compared before it is predicted" for n, i in predicted.items() if i > compared.get(n, i)]
    for cell, text in code:
        stub = cell["metadata"].get("stub", "")
        if calls(text, "predict") and not all(_is_open(call) for call in calls(stub, "predict")):
            found.append("a stub gives the prediction away: its number must be ...")
        if calls(text, "predict") and not stub:
            found.append("a cell with predict() needs the tag 'solution' and a stub with ... for the number")
    return found


def _is_open(call: ast.Call) -> bool:
    return len(call.args) > 1 and isinstance(call.args[1], ast.Constant) and call.args[1].value is ...


def _exercises(code: list[tuple[dict, str]], prose: list[str], declared: Lesson, facts: dict) -> list[str]:
    checked, text = [name for name, _ in _named(code, "check")], "\n".join(prose)
    found = [] if len(declared.exercises) >= 2 else ["a notebook has at least two checked exercises"]
    if checked != [task.name for task in declared.exercises]:
        found.append(f"checks {checked}, its LESSON declares {[task.name for task in declared.exercises]}")
    for task in declared.exercises:
        found += _exercise(task, text)
    minutes = sum(task.minutes for task in declared.exercises)
    if minutes > facts["minutes"]["exercise"]:
        found.append(f"the exercises take {minutes} minutes, the notebook says {facts['minutes']['exercise']}")
    return found


def heading(task: Exercise) -> str:
    """The heading an exercise has in its notebook: '### Exercise `name` · ●●○ · 3 min'."""
    dots = "●" * task.difficulty + "○" * (3 - task.difficulty)
    return f"### Exercise `{task.name}` · {dots} · {task.minutes} min"


def _exercise(task: Exercise, text: str) -> list[str]:
    found = []
    section = re.split(r"\n##", text.partition(heading(task))[2])[0]
    if not section.strip():
        return [f"there is no section '{heading(task)}'"]
    if len(task.hints) != 2 or not all(task.hints):
        found.append(f"{task.name}: needs two hints")
    if f'hint("{task.name}")' not in section:
        found.append(f'{task.name}: its section must mention hint("{task.name}")')
    if not task.helps:
        found.append(f"{task.name}: needs a 'Help: I get <exact error>'")
    for known in task.helps:
        if "Help: I get" not in section or known.error not in section:
            found.append(f"{task.name}: its section lacks 'Help: I get {known.error}'")
    if not task.misconceptions:
        found.append(f"{task.name}: names no misconception")
    return found
