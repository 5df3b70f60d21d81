"""Whether every declared package is there, in a version that the declaration admits, without importing it.

The declaration is the installed course-lib's own metadata, or pyproject.toml when the course runs from its folder.
"""

import importlib.metadata
import importlib.util
import sys
from pathlib import Path

from course_lib.doctor.lines import Line, fail, ok, warn

INSTALL = f"{sys.executable} -m pip install -e ."


def declared() -> list[str]:
    """Requirement strings of the course itself, extras included with their markers."""
    pyproject = Path(__file__).parents[2] / "pyproject.toml"
    if pyproject.is_file():
        import tomllib

        return list(tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]["dependencies"])
    return importlib.metadata.requires("course-lib") or []


def package_lines(requirements: list[str] | None = None) -> list[Line]:
    """One line for all packages that are well, and one for each that is not."""
    try:
        from packaging.requirements import Requirement
    except ImportError:
        return [fail("packages", "'packaging' is missing, so versions cannot be compared", f"Run: {INSTALL}")]
    well, lines = [], []
    for text in declared() if requirements is None else requirements:
        requirement = Requirement(text)
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        problem = _problem(requirement)
        if problem:
            lines.append(problem)
        else:
            well.append(f"{requirement.name} {importlib.metadata.version(requirement.name)}")
    lines += _decord_twins()
    if well:
        lines.insert(0, ok("packages", f"{len(well)} as declared: " + ", ".join(well)))
    return lines


def _problem(requirement) -> Line | None:
    name = requirement.name
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return fail(name, f"not installed (wanted {requirement})", f"Run: {INSTALL}")
    modules = _modules_of(name)
    if not any(importlib.util.find_spec(module) for module in modules):
        return fail(
            name,
            f"{version} is recorded as installed but its module ({', '.join(modules)}) is not there",
            f"Run: {sys.executable} -m pip install --force-reinstall --no-deps {name}",
        )
    if requirement.specifier.contains(version, prereleases=True):
        return None
    # A vendor's container carries torch as '2.12.0a0+...': older than 2.12.0 by the letter, not in fact.
    base = version.split("+")[0]
    for mark in ("a", "b", "rc", ".dev"):
        base = base.split(mark)[0]
    if base != version and requirement.specifier.contains(base):
        return warn(name, f"{version} is a pre-release of {base}", "Fine in a vendor's container; untested here")
    return fail(
        name, f"{version} is outside {requirement.specifier}", f'Run: {sys.executable} -m pip install "{requirement}"'
    )


def _modules_of(name: str) -> list[str]:
    """Top-level modules of a distribution: of its own name, else as its metadata lists them (pillow: PIL)."""
    own = name.lower().replace("-", "_")
    if importlib.util.find_spec(own):
        return [own]
    distribution = importlib.metadata.distribution(name)
    listed = (distribution.read_text("top_level.txt") or "").split()
    for file in [] if listed else distribution.files or []:
        top = file.parts[0]
        if file.suffix in (".py", ".so") and top not in ("..", "__pycache__") and not top.endswith(".dist-info"):
            listed.append(top.split(".")[0])
    return sorted(set(listed)) or [own]


def _decord_twins() -> list[Line]:
    """decord2 and eva-decord install a module of the same name, and the last one installed wins."""
    present = []
    for name in ("decord", "decord2", "eva-decord"):
        try:
            present.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    if len(present) < 2:
        return []
    return [fail("decord", f"{' and '.join(present)} share one import name", "Uninstall all but one of them")]
