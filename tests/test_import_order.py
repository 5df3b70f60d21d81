"""The order of imports that CONTRIBUTING.md fixes, and the price of the first import."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "course_lib"


def _order() -> list[str]:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    line = next(line for line in text.splitlines() if line.startswith("`errors`"))
    return re.findall(r"`(\w+)`", line)


def _imports_of(path: Path) -> set[str]:
    """Top-level names under course_lib that a module imports anywhere, functions included."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module] if node.module != "course_lib" else [f"course_lib.{a.name}" for a in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("course_lib.")}
        assert not any(name.split(".")[0] in {"examples", "tests"} for name in names), f"{path} imports {names}"
    return found


def _misplaced(order: list[str], part: str, imported: set[str]) -> set[str]:
    allowed = set(order[: order.index(part) + 1])
    return {name for name in imported if name in order and name not in allowed}


MODULES = sorted(p for p in PACKAGE.rglob("*.py") if p != PACKAGE / "__init__.py")


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_module_imports_only_from_above(path):
    order = _order()
    part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    assert part in order, f"{part} has no place in the order of CONTRIBUTING.md"
    assert not _misplaced(order, part, _imports_of(path))


def test_the_order_check_can_fail():
    assert _misplaced(_order(), "units", {"train"}) == {"train"}


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_module_has_one_reason_to_exist(path):
    assert len(path.read_text().splitlines()) <= 350


def test_importing_course_lib_or_the_command_line_loads_nothing_heavy():
    heavy = ("torch", "transformers", "deepspeed", "peft", "matplotlib", "numpy", "decord", "IPython")
    code = (
        "import sys, course_lib, course_lib.cli as c; c.load_commands(); "
        f"print([m for m in {heavy!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
