"""The `course` command: a thin face over the library, one module per command.

Modules here import nothing heavy at the top, so that `course --help` answers in under a second.
"""

import importlib
import os
import pkgutil
import sys

import typer

from course_lib.errors import USAGE, CourseError

ORDER = ("check", "plan", "fit", "tokens", "lint", "preflight", "train", "verify", "measure", "doctor", "progress")
"""The order in which `course --help` lists the commands; a command exists when its module does."""

app = typer.Typer(
    name="course",
    help="A course that runs: plan, check, train and prove LoRA fine-tuning of video and speech models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _frame() -> None:
    """Every command takes --json; exit code 0 is fine, 1 a finding that should stop you, 2 wrong usage."""


def load_commands() -> None:
    """Register every command module of this package on `app`, in ORDER."""
    found = {module.name for module in pkgutil.iter_modules(__path__)}
    for name in ORDER:
        if name in found:
            importlib.import_module(f"{__name__}.{name}").register(app)


def main() -> None:
    """Entry point: one-line errors, exit codes 0 / 1 / 2, no traceback unless COURSE_TRACEBACK=1."""
    # A rented node may be offline on purpose; nothing here may start a download by itself.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    load_commands()
    command = "course " + (sys.argv[1] if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else "")
    try:
        app()
    except CourseError as error:
        _stop(command, error.line(), error.exit_code)
    except KeyboardInterrupt:
        _stop(command, "interrupted", 130)
    except SystemExit as end:
        # The reader (head, less) closed the pipe. Typer and rich end with 1 then, which here would say "a finding".
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        # What is left cannot be flushed any more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(0)
    except Exception as error:
        if os.environ.get("COURSE_TRACEBACK"):
            raise
        first_line = (str(error).strip() or "no message").splitlines()[0]
        fix = "This is a fault of the course: please report it with the output of COURSE_TRACEBACK=1"
        _stop(command, f"unexpected {type(error).__name__}: {first_line}. {fix}", USAGE)


def _stop(command: str, line: str, exit_code: int) -> None:
    print(f"{command.strip()}: {line}", file=sys.stderr)
    sys.exit(exit_code)
