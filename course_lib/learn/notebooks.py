"""The learners' notebooks, made from the solutions: `python -m course_lib.learn.notebooks build | check | run`.

Source of truth: notebooks/solutions/*.ipynb, committed without outputs. In a cell tagged "solution" the
metadata key "stub" holds what the learner gets instead. notebooks/*.ipynb are generated and never edited.
"""

import argparse
import copy
import json
import sys
from pathlib import Path

from course_lib.errors import CourseError
from course_lib.files import read_json, write_text
from course_lib.learn.contract import problems
from course_lib.learn.progress import course_root

SOLUTION = "solution"
KEPT_METADATA = ("course", "kernelspec", "language_info")
KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}


def solutions_folder() -> Path:
    return course_root() / "notebooks" / "solutions"


def learner_path(solution: Path) -> Path:
    """Where the learner's copy of a solution lies: one folder up, same name."""
    return solution.parent.parent / solution.name


def solutions(numbers: list[str] | None = None) -> list[Path]:
    """The solution notebooks by number, all or those asked for. Raises CourseError for a number without one."""
    found = sorted(solutions_folder().glob("[0-9][0-9]_*.ipynb"))
    known = {path.name[:2]: path for path in found}
    for number in numbers or []:
        if number not in known:
            raise CourseError(f"no notebook {number!r}", fix="Known: " + ", ".join(known))
    return [known[number] for number in numbers] if numbers else found


def cleaned(notebook: dict) -> dict:
    """The notebook as it is committed: no outputs, no counters, only the metadata that means something."""
    clean = copy.deepcopy(notebook)
    kept = {key: clean["metadata"][key] for key in KEPT_METADATA if key in clean["metadata"]}
    # The version of Python that the author happened to run is not part of a lesson.
    clean["metadata"] = kept | {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    clean["nbformat"], clean["nbformat_minor"] = 4, 5
    for cell in clean["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None
        cell["metadata"] = {key: cell["metadata"][key] for key in ("tags", "stub") if key in cell["metadata"]}
        cell["source"] = source(cell).splitlines(keepends=True)
    return clean


def learner_copy(solution: dict) -> dict:
    """The cleaned notebook with a stub in place of every solution; cell ids stay those of the solution."""
    learner = cleaned(solution)
    for cell in learner["cells"]:
        tags = cell["metadata"].get("tags", [])
        if SOLUTION in tags:
            cell["source"] = cell["metadata"].pop("stub").splitlines(keepends=True)
            # "stub" marks the place where the learner writes; the tests look for it.
            cell["metadata"]["tags"] = ["stub" if tag == SOLUTION else tag for tag in tags]
    return learner


def source(cell: dict) -> str:
    """A cell's text, whether the file keeps it as one string or as lines."""
    text = cell["source"]
    return text if isinstance(text, str) else "".join(text)


def as_text(notebook: dict) -> str:
    """The file's bytes for a notebook: keys sorted, one space of indent, as nbformat writes it."""
    return json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def build() -> list[Path]:
    """Clean every solution in place and write its learner's copy. Returns the files that changed."""
    changed = []
    for path in solutions():
        solution = read_json(path)
        wanted = {path: as_text(cleaned(solution)), learner_path(path): as_text(learner_copy(solution))}
        for target, text in wanted.items():
            if not target.exists() or target.read_text(encoding="utf-8") != text:
                write_text(target, text)
                changed.append(target)
    return changed


def findings() -> list[str]:
    """Everything that is out of step or missing, one line each; empty when all is well."""
    found = []
    for path in solutions():
        solution = read_json(path)
        if path.read_text(encoding="utf-8") != as_text(cleaned(solution)):
            found.append(f"{path.name}: the solution has outputs or stray metadata; run build")
        learner = learner_path(path)
        if not learner.exists() or learner.read_text(encoding="utf-8") != as_text(learner_copy(solution)):
            found.append(f"{path.name}: the learner's copy is out of step with the solution; run build")
        found += [f"{path.name}: {problem}" for problem in problems(solution)]
    names = {path.name for path in solutions()}
    strays = sorted(p.name for p in solutions_folder().parent.glob("*.ipynb") if p.name not in names)
    return found + [f"{name}: has no solution in notebooks/solutions" for name in strays]


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code: 0 fine, 1 a finding, 2 wrong usage."""
    parser = argparse.ArgumentParser(prog="python -m course_lib.learn.notebooks", description=__doc__)
    parser.add_argument("action", choices=("build", "check", "run"))
    parser.add_argument("numbers", nargs="*", help="run: which notebooks, for example 00 22 (default: all)")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.action == "build":
            for path in build():
                print(f"wrote {path.relative_to(course_root())}")
            return 0
        if chosen.action == "check":
            found = findings()
            print("\n".join(found) if found else f"{len(solutions())} notebooks in step")
            return 1 if found else 0
        from course_lib.learn.runner import run_notebook

        return max([0 if run_notebook(path).failed_cell is None else 1 for path in solutions(chosen.numbers)])
    except CourseError as error:
        print(f"notebooks: {error.line()}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
