"""course train: what the launchers call."""

from pathlib import Path
from typing import Annotated, Any

import typer

from course_lib.cli.output import JsonFlag, print_json
from course_lib.errors import CourseError


def register(app: typer.Typer) -> None:
    @app.command("train")
    def train(
        run: Annotated[Path, typer.Argument(metavar="RUN", help="Run config (YAML).")],
        set_: Annotated[list[str], typer.Option("--set", metavar="KEY=VALUE", help="Override a key, dotted.")] = [],  # noqa: B006
        resume: Annotated[bool, typer.Option("--resume", help="Go on from the last finished checkpoint.")] = False,
        proof: Annotated[bool, typer.Option(help="Reload and score in a fresh process afterwards.")] = True,
        json_output: JsonFlag = False,
    ) -> None:
        """Train as RUN says, in as many ranks, then prove the result in a fresh process."""
        import os

        from course_lib.files import read_json
        from course_lib.tasks.run import run as run_task

        os.environ.setdefault("PYTHONWARNINGS", "ignore")
        say = (lambda line: None) if json_output else (lambda line: print(line, flush=True))
        config = run_task(run, parse_overrides(set_), resume=resume, proof=proof, say=say)
        report = config.output / "report" / "report.json"
        if json_output:
            record: dict[str, Any] = {"output": str(config.output), "adapter": str(config.output / "adapter")}
            print_json(record | ({"report": read_json(report)} if proof and report.exists() else {}))


def parse_overrides(pairs: list[str]) -> dict[str, Any]:
    """["train.max_steps=3"] → {"train.max_steps": 3}; values are read as YAML. Raises CourseError without '=' or for
    a value that is not YAML."""
    import yaml

    overrides = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise CourseError(f"--set '{pair}' is not KEY=VALUE", fix="For example --set train.max_steps=3")
        try:
            overrides[key] = _from_here(key, yaml.safe_load(value))
        except yaml.YAMLError as error:
            raise CourseError(f"--set '{pair}': the value is not valid YAML", fix="Quote it") from error
    return overrides


PATH_KEYS = ("output", "ds_config", "data.train", "data.held_out")


def _from_here(key: str, value: Any) -> Any:
    """A path typed on the command line counts from where the person stands; in the file, from the file."""
    is_path = key in PATH_KEYS or (key == "model" and isinstance(value, str) and Path(value).is_dir())
    return str(Path(value).absolute()) if is_path and isinstance(value, str) else value
