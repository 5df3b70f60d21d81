"""`course lint`: does a ds_config do what it says?"""

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from course_lib.cli.output import JsonFlag, print_json, print_table
from course_lib.errors import FINDING, CourseError
from course_lib.files import write_json

if TYPE_CHECKING:
    from course_lib.config.findings import Finding
    from course_lib.config.lint import Report
    from course_lib.config.lint_request import Request

STYLES = {"error": "✗ error", "warning": "! warning", "note": "· note"}


def register(app: typer.Typer) -> None:
    @app.command("lint")
    def lint(
        files: Annotated[
            list[Path] | None, typer.Argument(metavar="FILE…", help="ds_config JSON, or a run config (YAML).")
        ] = None,
        framework: Annotated[str, typer.Option(help="Who reads the file: trainer (HF Trainer) or raw.")] = "trainer",
        args: Annotated[
            Path | None, typer.Option(metavar="YAML", help="The training arguments to compare with.")
        ] = None,
        model: Annotated[str | None, typer.Option(help="Catalogue name or directory.")] = None,
        world_size: Annotated[int | None, typer.Option(min=1, metavar="N", help="Ranks of the run.")] = None,
        case: Annotated[
            list[Path] | None, typer.Option(metavar="FILE", help="A case file: a ds_config and its use.")
        ] = None,
        fix: Annotated[bool, typer.Option("--fix", help="Write a corrected copy beside the file.")] = False,
        json: JsonFlag = False,
    ) -> None:
        """Check a DeepSpeed config against the installed DeepSpeed, the Trainer, the model and LoRA."""
        # Lint judges for the node that trains; asking for an accelerator here would only start a driver.
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
        if framework not in ("trainer", "raw"):
            raise CourseError(f"unknown --framework '{framework}'", fix="One of: trainer, raw")
        if not files and not case:
            raise CourseError("no file was given", fix="course lint ds_config.json, or course lint --case FILE")
        # DeepSpeed and transformers print while they are imported; stdout belongs to the answer.
        with contextlib.redirect_stdout(sys.stderr):
            answers = _answers(files or [], case or [], framework, args, model, world_size, fix)
        if json:
            print_json(_record(answers))
        else:
            for answer in answers:
                _show(*answer)
        if any(finding.level == "error" for _, report, _ in answers for finding in report.findings):
            raise typer.Exit(FINDING)


Answer = tuple["Request", "Report", dict[str, Any] | None]


def _answers(
    files: list[Path],
    cases: list[Path],
    framework: str,
    args: Path | None,
    model: str | None,
    world_size: int | None,
    fix: bool,
) -> list[Answer]:
    from course_lib.config.lint_request import from_case, from_file

    requests = [
        from_file(path, framework=framework, world_size=world_size, arguments=args, model=model) for path in files
    ]
    requests += [from_case(path) for path in cases]
    answers: list[Answer] = []
    for request in requests:
        report = request.examine()
        answers.append((request, report, _correct(request) if fix else None))
    return answers


def _correct(request: "Request") -> dict[str, Any]:
    """Write a corrected copy beside the file, when there is something to correct."""
    from course_lib.config.fix import corrected, described

    result = corrected(request.ds_config, lambda config: request.examine(config).findings)
    errors_left = sum(finding.level == "error" for finding in result.left)
    record: dict[str, Any] = {"file": None, "edits": [described(e) for e in result.edits], "errors_left": errors_left}
    if result.edits or request.file_findings:
        target = _free_name(request.ds_path)
        write_json(target, result.config if request.case is None else {**request.case, "ds_config": result.config})
        record["file"] = str(target)
    return record


def _free_name(path: Path) -> Path:
    """NAME.fixed.json beside the file; a number is added rather than write over something that is there."""
    stem = path.with_suffix("").name
    target, number = path.with_name(f"{stem}.fixed.json"), 2
    while target.exists():
        target, number = path.with_name(f"{stem}.fixed-{number}.json"), number + 1
    return target


def _record(answers: list[Answer]) -> dict[str, Any]:
    """The stable JSON: findings of all files, then what became of the autos, per file when there are several."""
    several = len(answers) > 1
    findings, resolved, unchecked, fixed = [], {}, {}, {}
    for request, report, correction in answers:
        name = str(request.source)
        findings += [{**f.as_record(), "file": str(request.ds_path)} for f in report.findings]
        resolved[name] = {key: value.as_record() for key, value in report.resolved.items()}
        unchecked[name], fixed[name] = report.not_checked, correction
    only = str(answers[0][0].source)
    return {
        "findings": findings,
        "resolved": resolved if several else resolved[only],
        "not_checked": unchecked if several else unchecked[only],
        "fixed": fixed if several else fixed[only],
        "versions": _versions(),
    }


def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for package in ("deepspeed", "transformers", "accelerate"):
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def _show(request: "Request", report: "Report", correction: dict[str, Any] | None) -> None:
    title = f"{request.ds_path} ({request.framework}, ranks: {request.world_size or 'not given'})"
    if report.findings:
        rows = [(STYLES[f.level], _in_words(f)) for f in report.findings]
        print_table(title, ("level", "finding"), rows)
    else:
        print(f"{title}: nothing to complain of")
    if report.resolved:
        rows = [(key, _shown(r.written), _shown(r.value), r.source) for key, r in report.resolved.items()]
        print_table("What DeepSpeed gets", ("key", "written", "value", "from"), rows)
    for line in report.not_checked:
        print(f"not checked: {line}")
    if correction is not None:
        print(f"corrected copy: {correction['file'] or 'not written, nothing to correct'}")
        for edit in correction["edits"]:
            print(f"  {edit}")
        if correction["errors_left"]:
            print(f"  {correction['errors_left']} error(s) left that no change of the JSON cures")


def _in_words(finding: "Finding") -> str:
    fix = f"\n→ {finding.fix}" if finding.fix else ""
    return f"{finding.key or 'the file'}  [{finding.code}]\n{finding.message}{fix}"


def _shown(value: Any) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
