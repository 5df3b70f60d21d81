"""`course plan`: predicted memory of a run, a model or a case, per GPU and host, by part and phase."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from course_lib.cli.output import JsonFlag, print_json, print_table


def register(app: typer.Typer) -> None:
    @app.command("plan")
    def plan(
        source: Annotated[str | None, typer.Argument(help="A run config (YAML), a model name, or a directory.")] = None,
        case: Annotated[Path | None, typer.Option(help="A case file (JSON) instead of a run or model.")] = None,
        node: Annotated[str | None, typer.Option(help="A node such as 2xB200: check against it.")] = None,
        lora_targets: Annotated[str | None, typer.Option(help="Comma-separated LoRA targets (with a model).")] = None,
        lora_r: Annotated[int, typer.Option(help="LoRA rank (with a model).")] = 16,
        full: Annotated[bool, typer.Option("--full", help="Train every parameter (with a model).")] = False,
        stage: Annotated[int, typer.Option(help="ZeRO stage (with a model).")] = 3,
        sequence_length: Annotated[int, typer.Option(help="Tokens per sample (with a model).")] = 2048,
        micro_batch_size: Annotated[int, typer.Option(help="Samples per GPU (with a model).")] = 1,
        ranks: Annotated[int | None, typer.Option(help="GPUs; default: the node's, else 1.")] = None,
        as_json: JsonFlag = False,
    ) -> None:
        """Predict memory per GPU and host: what fills it, in which phase, and how sure that is."""
        from course_lib.errors import CourseError
        from course_lib.hardware import find_node
        from course_lib.memory.case import read_case
        from course_lib.memory.requests import ModelRequest, case_for_model, case_for_run

        if (source is None) == (case is None):
            raise CourseError("give either RUN or MODEL, or --case FILE", fix="See course plan --help")
        where = find_node(node) if node else None
        if case is not None:
            request, measured = read_case(case)
        elif source.endswith((".yaml", ".yml")):
            request, measured = case_for_run(Path(source), ranks=ranks), None
        else:
            wanted = ModelRequest(
                model=source,
                lora_targets=tuple(t for t in (lora_targets or "").split(",") if t),
                lora_r=lora_r,
                full=full,
                stage=stage,
                sequence_length=sequence_length,
                micro_batch_size=micro_batch_size,
                ranks=ranks if ranks is not None else (where.gpus if where else 1),
            )
            request, measured = case_for_model(wanted), None
        raise typer.Exit(_answer(request, measured, where, as_json=as_json))


def _answer(request, measured, where, *, as_json: bool) -> int:
    from course_lib.memory.refused import check_ds_config
    from course_lib.memory.report import plan_case

    check_ds_config(request.ds_config, world_size=request.world_size)
    report = plan_case(request, capability=where.gpu.capability if where else 9)
    record = report.as_record()
    verdict = where.verdict(report) if where else None
    if verdict:
        record["node"] = verdict
    if as_json:
        print_json(record)
        return 0 if verdict is None or verdict["fits"] else 1
    for line in report.lines():
        print(line)
    _phase_table(report)
    if measured and "steps" in measured:
        print(f"measured peak of the last step: {measured['steps'][-1]['peak_allocated']:.2f} GiB")
    if verdict:
        print(verdict["line"])
    print("assumed: " + "; ".join(report.assumptions))
    print("not counted: " + "; ".join(report.not_counted))
    return 0 if verdict is None or verdict["fits"] else 1


def _phase_table(report) -> None:
    """Parts by phase in GiB; parts that never reach 5 MiB are one row."""
    from course_lib.units import GIB, MIB

    phases = report.phases
    largest: dict[str, int] = {}
    for parts in phases.values():
        for part, nbytes in parts.items():
            largest[part] = max(largest.get(part, 0), nbytes)
    shown = sorted((part for part in largest if largest[part] >= 5 * MIB), key=lambda part: -largest[part])

    def cells(values) -> list[str]:
        return [f"{value / GIB:.2f}" if value else "" for value in values]

    rows = [[part, *cells(parts.get(part, 0) for parts in phases.values())] for part in shown]
    rest = [sum(n for part, n in parts.items() if part not in shown) for parts in phases.values()]
    if any(rest):
        rows.append(["smaller parts", *cells(rest)])
    rows.append(["total", *cells(sum(parts.values()) for parts in phases.values())])
    print_table(
        "GiB per GPU at each phase's peak (predicted)", ["part", *phases], rows, right=range(1, len(phases) + 1)
    )
