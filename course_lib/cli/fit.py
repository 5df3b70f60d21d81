"""`course fit`: which setting of a model fits a node, and how many frames or tokens it allows."""

from __future__ import annotations

from typing import Annotated

import typer

from course_lib.cli.output import JsonFlag, print_json, print_table


def register(app: typer.Typer) -> None:
    @app.command("fit")
    def fit_command(
        source: Annotated[str, typer.Argument(help="A run config (YAML), a model name, or a directory.")],
        node: Annotated[str, typer.Option(help="A node such as 2xB200, 4xA100-80GB, 1x3060, or this.")],
        sequence_length: Annotated[int, typer.Option(help="Tokens that must fit at least.")] = 2048,
        frames: Annotated[int | None, typer.Option(help="Frames of a clip that must fit at least.")] = None,
        tokens_per_step: Annotated[int, typer.Option(help="Visual tokens per grid step (two frames).")] = 180,
        micro_batch_size: Annotated[int, typer.Option(help="Samples per GPU.")] = 1,
        loss: Annotated[
            str | None, typer.Option(help="all_positions or supervised_positions (default for clips).")
        ] = None,
        lora_r: Annotated[int, typer.Option(help="LoRA rank.")] = 16,
        lora_targets: Annotated[str | None, typer.Option(help="Comma-separated LoRA targets.")] = None,
        as_json: JsonFlag = False,
    ) -> None:
        """Find the cheapest setting that fits, the most frames or tokens it allows, and why others fail."""
        from course_lib.errors import CourseError
        from course_lib.hardware import find_node
        from course_lib.memory.case import LOSSES
        from course_lib.memory.fit import fit
        from course_lib.memory.requests import ModelRequest, request_for_run

        for name, value in (("--sequence-length", sequence_length), ("--micro-batch-size", micro_batch_size)):
            if value < 1:
                raise CourseError(f"{name} must be above zero, got {value}")
        if (frames is not None and frames < 1) or tokens_per_step < 1:
            raise CourseError("--frames and --tokens-per-step must be above zero")
        if loss not in (None, *LOSSES):
            raise CourseError(f"unknown loss '{loss}'", fix="One of: " + ", ".join(LOSSES))
        chosen_loss = loss or ("supervised_positions" if frames else "all_positions")
        if source.endswith((".yaml", ".yml")):
            request, frames = request_for_run(source, frames=frames)
        else:
            request = ModelRequest(
                model=source,
                lora_r=lora_r,
                lora_targets=tuple(t for t in (lora_targets or "").split(",") if t),
                sequence_length=sequence_length,
                micro_batch_size=micro_batch_size,
                loss=chosen_loss,
            )
        answer = fit(request, find_node(node), frames=frames, tokens_per_step=tokens_per_step)
        if as_json:
            print_json(answer.as_record())
        else:
            _show(answer)
        raise typer.Exit(0 if answer.chosen else 1)


def _show(answer) -> None:
    from course_lib.units import gib

    rows = []
    for tried in answer.tried:
        verdict = tried.verdict or {}
        needed = gib(verdict["at_least_bytes"]) if verdict else ""
        host = gib(verdict["host_bytes"]) if verdict else ""
        rows.append([tried.setting.name, needed, host, tried.reason or "fits", tried.setting.price])
    print_table(
        f"{answer.model} on {answer.node} (predicted, fastest first)",
        ["setting", "per GPU", "host", "verdict", "price"],
        rows,
        right=(1, 2),
    )
    if answer.chosen:
        margin = gib(answer.chosen.verdict["margin_bytes"])
        print(f"{answer.chosen.setting.name}: fits with {margin} to spare; up to {answer.most} {answer.unit}.")
        failed = [t for t in answer.tried if t.reason]
        if failed:
            print(f"{failed[-1].setting.name} fails: {failed[-1].reason}.")
        return
    print("Nothing fits. What would help: " + ("; ".join(answer.would_help) or "a larger node") + ".")
    if answer.smaller:
        print(f"A smaller model that fits here: {answer.smaller}.")
