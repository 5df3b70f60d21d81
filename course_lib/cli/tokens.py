"""`course tokens CLIP`: what a clip costs a model, and whether a setting does anything.

`course tokens RUN.yaml`, the audit of all clips of a run, is in tokens_run.py.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from course_lib.cli.output import JsonFlag, print_json, print_table
from course_lib.cli.tokens_run import RUN_SUFFIXES, tokens_of_run
from course_lib.errors import FINDING, CourseError

if TYPE_CHECKING:
    from course_lib.media.video import VideoInfo
    from course_lib.tokens.check import Check
    from course_lib.tokens.plan import Budget, TokenPlan


def register(app: typer.Typer) -> None:
    app.command("tokens")(tokens)


def tokens(
    clip: Annotated[Path, typer.Argument(metavar="CLIP|RUN", help="A video file, or a run config (YAML).")],
    model: Annotated[
        str | None, typer.Option(help="Public name (qwen3-vl-4b), family, or a folder with its files.")
    ] = None,
    frames: Annotated[int | None, typer.Option(help="Frames, evenly by real time.")] = None,
    fps: Annotated[float | None, typer.Option(help="Frames a second, by the model's own rule.")] = None,
    max_tokens_per_frame: Annotated[float | None, typer.Option(help="Most visual tokens for one frame.")] = None,
    min_tokens_per_frame: Annotated[float | None, typer.Option(help="Fewest; Qwen's tools assume 128.")] = None,
    total_tokens: Annotated[float | None, typer.Option(help="Most visual tokens for the whole clip.")] = None,
    knob: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE: does this setting do anything? Repeatable.")
    ] = None,
    route: Annotated[str, typer.Option(help="How the knobs are passed; all: any way counts.")] = "all",
    curve: Annotated[bool, typer.Option("--curve", help="What --total-tokens buys: frames against detail.")] = False,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="RUN only: override a key, dotted.")
    ] = None,
    max_length: Annotated[int | None, typer.Option(help="RUN only: most tokens of a sample; else the model's.")] = None,
    json: JsonFlag = False,
) -> None:
    """What a clip, or every sample of a run, costs: requested → effective budget → frames → grid → tokens → times.

    Exit code 1 when a knob is inert, or when the clip will not cost what was asked; for a RUN also when a sample is
    too long, a label check fails, a clip is unusable, or a rank gets no batch.
    """
    clip_only = (frames, fps, max_tokens_per_frame, min_tokens_per_frame, total_tokens, knob)
    if clip.suffix in RUN_SUFFIXES:
        if any(value is not None for value in clip_only) or curve or route != "all":
            raise CourseError("a run config says its own budget", where=str(clip), fix="Change it with --set KEY=VALUE")
        raise typer.Exit(tokens_of_run(clip, overrides=set_ or [], model=model, max_tokens=max_length, json=json))
    if set_ or max_length is not None:
        raise CourseError("--set and --max-length go with a run config", where=str(clip))
    if model is None:
        raise CourseError("--model is missing", fix="For example --model qwen3-vl-4b")
    from course_lib.media.video import FrameReader
    from course_lib.tokens.check import check_plan
    from course_lib.tokens.families import video_model
    from course_lib.tokens.inverse import curve as offers
    from course_lib.tokens.inverse import fit_tokens
    from course_lib.tokens.knobs import audit_knobs, parse_knobs
    from course_lib.tokens.plan import Budget, plan_clip

    chosen, knobs = video_model(model), parse_knobs(knob or [])
    budget = Budget(
        frames=frames, fps=fps, max_tokens_per_frame=max_tokens_per_frame, min_tokens_per_frame=min_tokens_per_frame,
        total_tokens=total_tokens,
    )  # fmt: skip
    if curve and total_tokens is None:
        raise CourseError("--curve needs a budget", fix="Add --total-tokens N")
    with FrameReader() as reader:
        info = reader.info(clip)
    plan = fit_tokens(info, chosen, int(total_tokens), frames=frames) if curve else plan_clip(info, chosen, budget)
    check = check_plan(plan, height=info.height, width=info.width, duration_seconds=info.duration_seconds)
    audited = audit_knobs(chosen, knobs, info=info, route=route) if knobs else []
    record = _record(info, plan, check, budget) | {"knobs": audited}
    if curve:
        record["curve"] = [_point(offer) for offer in offers(info, chosen, int(total_tokens))]
    record["findings"] += [line["sentence"] for line in audited if line["inert"]]
    if json:
        print_json(record)
    else:
        _print(record)
    if record["findings"]:
        raise typer.Exit(FINDING)


def _record(info: "VideoInfo", plan: "TokenPlan", check: "Check", requested: "Budget") -> dict[str, Any]:
    family = plan.model.family
    findings = list(plan.findings)
    if check.equal is False:
        findings.append(f"{check.by} says {check.difference}")
    return {
        "clip": {
            "path": str(info.path), "width": info.width, "height": info.height, "frames": info.frames,
            "duration_seconds": info.duration_seconds, "average_fps": info.average_fps,
            "rotation_degrees": info.rotation_degrees, "has_audio": info.has_audio,
        },
        "model": plan.model.name,
        "family": family.name,
        "settings_source": plan.model.settings.source,
        "requested": {
            "frames": requested.frames, "fps": requested.fps, "max_tokens_per_frame": requested.max_tokens_per_frame,
            "min_tokens_per_frame": requested.min_tokens_per_frame, "total_tokens": requested.total_tokens,
        },
        "effective": {
            "frames": plan.frames, "padded_frames": plan.padded_frames,
            "max_tokens_per_frame": plan.max_tokens_per_frame, "min_tokens_per_frame": plan.min_tokens_per_frame,
            "limited_by": plan.limited_by, "height": plan.grid.height, "width": plan.grid.width,
        },
        "frames": plan.frames,
        "indices": list(plan.indices),
        "frame_seconds": [round(t, 6) for t in plan.frame_seconds],
        "grid": list(plan.grid.thw),
        "tokens_per_step": plan.grid.tokens_per_step,
        "visual_tokens": plan.visual_tokens,
        "text_tokens_per_step": list(plan.text.per_step),
        "separator_tokens": plan.text.tokens,
        "separator_tokens_exact": plan.text.exact,
        "total_tokens": plan.total_tokens,
        "timestamps": [round(t, 4) for t in plan.timestamps],
        "labels": list(plan.text.labels),
        "processor_call": plan.call,
        "checked": {
            "by": check.by, "equal": check.equal,
            "grid": None if check.thw is None else list(check.thw), "visual_tokens": check.visual_tokens,
        },
        "findings": findings,
    }  # fmt: skip


def _point(offer: "TokenPlan") -> dict[str, Any]:
    return {
        "frames": offer.frames, "tokens_per_step": offer.grid.tokens_per_step, "height": offer.grid.height,
        "width": offer.grid.width, "visual_tokens": offer.visual_tokens, "total_tokens": offer.total_tokens,
        "processor_call": offer.call,
    }  # fmt: skip


def _print(record: dict[str, Any]) -> None:
    clip, effective = record["clip"], record["effective"]
    asked = ", ".join(f"{name} {value:g}" for name, value in record["requested"].items() if value is not None)
    times = record["timestamps"]
    shown = ", ".join(f"{t:.1f}" for t in times[:3]) + (f" … {times[-1]:.1f}" if len(times) > 3 else "")
    equal = {True: "equal", False: "DIFFERS", None: "not checked"}[record["checked"]["equal"]]
    cap = effective["max_tokens_per_frame"]
    limits = effective["limited_by"] if cap is None else f"at most {cap:g} a frame ({effective['limited_by']})"
    rows = [
        ("clip", f"{clip['width']}×{clip['height']}, {clip['frames']} frames, {clip['duration_seconds']:.2f} s"),
        ("requested", asked or "nothing: the model's own rule"),
        ("effective", f"{effective['frames']} frames, {limits}"),
        ("resized to", f"{effective['width']}×{effective['height']}"),
        ("grid (t, h, w)", f"{record['grid']} × {record['tokens_per_step']} tokens a step"),
        ("visual tokens", f"{record['visual_tokens']:,}"),
        (
            "text tokens",
            f"{record['separator_tokens']:,}" + ("" if record["separator_tokens_exact"] else " (estimated)"),
        ),
        ("total tokens", f"{record['total_tokens']:,}"),
        ("timestamps", f"{shown} s"),
        ("pass to the call", record["processor_call"]),
        ("settings from", record["settings_source"]),
        ("asked", f"{record['checked']['by']}: {equal}"),
    ]
    print_table(f"{clip['path']} for {record['model']}", ("", ""), rows)
    if record["knobs"]:
        columns = ("knob", "value", "verdict", "why")
        print_table("Knobs", columns, [(k["name"], k["value"], k["verdict"], k["sentence"]) for k in record["knobs"]])
    if "curve" in record:
        columns = ("frames", "size", "tokens a step", "visual tokens", "total")
        shown = record["curve"][:: max(len(record["curve"]) // 16, 1)]
        points = [
            (p["frames"], f"{p['width']}×{p['height']}", p["tokens_per_step"], p["visual_tokens"], p["total_tokens"])
            for p in shown
        ]
        print_table("Frames against detail at this price", columns, points, right=(0, 2, 3, 4))
    for finding in record["findings"]:
        print(f"✗ {finding}")
