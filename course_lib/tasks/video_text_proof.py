"""What a fresh process says about a finished video_text run: the adapter is what the ranks held, and it looks.

Held-out windows are answered five ways: by the base model, by the adapted one, by the best constant answer fitted on
training, and by the adapted one with frames of another clip and with blank frames. The two last are controls: an
adapter that learnt the dates and not the pixels would pass without them.
"""

import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from course_lib.config.run_config import RunConfig
from course_lib.data.grounding import GroundingDataset, collate, load_processor, render_prompt
from course_lib.data.intervals import ParsedAnswer, parse_intervals
from course_lib.data.windows import Window
from course_lib.errors import FINDING, CourseError
from course_lib.evaluate.grounding import best_constant_answer, judge, score_answers
from course_lib.evaluate.reel import ReelClip, write_reel
from course_lib.evaluate.report import ClipRow, RunReport, write_report
from course_lib.files import read_json
from course_lib.tasks.video_text import ADAPTER, load_base, read_windows
from course_lib.train.adapter_files import compare_with_held, names_in_file
from course_lib.train.provenance import environment_record
from course_lib.train.session import NOTE, use_cpu

REPORT = "report"
NEW_TOKENS = 48
"""Three intervals are 26 tokens of the tiny tokenizer; a longer answer counts as truncated."""
REEL_CLIPS = 6
PROMPTS_CHECKED = 8


def prove(config: RunConfig) -> None:
    """Compare, answer, score, and write report/{report.html, report.json, before.mp4, after.mp4} in the run folder.

    Raises CourseError when a tensor is not what the ranks held. Scores that miss their bounds are reported, not raised:
    whether they were to be reached is the caller's to know.
    """
    started, device = time.monotonic(), "cpu" if use_cpu() else "cuda"
    folder = config.output
    model, equal = load_adapter(config, device)
    _say(f"adapter: {equal} of {equal} tensors equal to what the ranks held, byte for byte")
    processor = load_processor(Path(config.model), config.budget)
    windows = read_windows(config, "held_out").windows
    dataset = GroundingDataset(windows, processor, config.budget)
    require_same_prompts(dataset)
    answers = answer_five_ways(model, dataset, config.train.micro_batch_size)
    dataset.reader.close()
    constant = best_constant_answer(
        [window.events for window in read_windows(config, "train").windows], config.data.window_seconds
    )
    parsed = {
        name: [read_answer(text, w) for text, w in zip(texts, windows, strict=True)] for name, texts in answers.items()
    }
    parsed["best_constant"] = [constant.answer] * len(windows)
    clips = [str(window.video) for window in windows]
    scores = {name: score_answers([w.events for w in windows], given, clips) for name, given in parsed.items()}
    _say("  ".join(f"{name} {score.mean_iou:.3f}" for name, score in scores.items()) + "  (mean IoU, held-out)")
    reels = write_reels(folder / REPORT, dataset, parsed)
    record = RunReport(
        title=f"{config.task}: {config.source.stem}",
        scores=scores,
        constant=constant,
        rows=clip_rows(windows, answers, parsed),
        machine={
            "system": platform.platform(),
            "processor": platform.processor() or platform.machine(),
            "device": device,
        },
        versions=environment_record()["versions"] | {"python": platform.python_version()},
        run=run_facts(config, equal, time.monotonic() - started),
        reels=reels,
    )
    page, _ = write_report(folder / REPORT, record)
    for verdict in judge(scores):
        word = "reached" if verdict.reached else "NOT reached"
        _say(f"{word}: {verdict.claim}: {verdict.value:.3f} (bound {verdict.bound:.3f})")
    _say(f"report: {page}")


def load_adapter(config: RunConfig, device: str):
    """Base and adapter from their files, and how many adapter tensors equal what the ranks held (all, or it raises)."""
    from peft import PeftModel

    adapter = config.output / ADAPTER
    # Before peft reads it, whose errors for a damaged file are tracebacks.
    names_in_file(adapter)
    model = PeftModel.from_pretrained(load_base(Path(config.model)), adapter, is_trainable=True)
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    equal = compare_with_held(adapter, trained)
    return model.to(device).eval(), equal


def require_same_prompts(dataset: GroundingDataset) -> None:
    """Raise unless a prompt built without its answer has the ids that training saw up to the answer."""
    for index in range(min(PROMPTS_CHECKED, len(dataset))):
        item, window = dataset[index], dataset.windows[index]
        frames, seconds = dataset.frames(index)
        text = render_prompt(dataset.processor, window.question)
        times = {"fps": 1000.0, "frames_indices": [max(0, round(1000 * float(s))) for s in seconds]}
        alone = dataset.processor(
            text=[text],
            videos=[torch.from_numpy(frames).permute(0, 3, 1, 2)],
            video_metadata=[times | {"total_num_frames": round(1000 * window.seconds)}],
            do_sample_frames=False,
            return_tensors="pt",
        )
        if not torch.equal(alone["input_ids"][0], item["input_ids"][: item["prompt_tokens"]]):
            raise CourseError(
                "the prompt of generation differs from training's", where=str(window.video), exit_code=FINDING
            )
    _say(f"prompts: {min(PROMPTS_CHECKED, len(dataset))} rebuilt without their answer, ids and grids as in training")


def answer_five_ways(model: Any, dataset: GroundingDataset, batch_size: int) -> dict[str, list[str]]:
    """Texts for before, after, shuffled and blank (the constant answer needs no model)."""
    partners = other_clip([window.video for window in dataset.windows])

    def other_frames(index: int) -> dict[str, Any]:
        return dataset.build(dataset.windows[index], dataset.frames(partners[index])[0], dataset.frames(index)[1])

    def blank_frames(index: int) -> dict[str, Any]:
        frames, seconds = dataset.frames(index)
        return dataset.build(dataset.windows[index], np.zeros_like(frames), seconds)

    def answers(item_of: Callable[[int], dict[str, Any]]) -> list[str]:
        return generate(model, item_of, len(dataset), dataset.processor, batch_size)

    with model.disable_adapter():
        before = answers(dataset.__getitem__)
    return {
        "before": before,
        "after": answers(dataset.__getitem__),
        "shuffled": answers(other_frames),
        "blank": answers(blank_frames),
    }


def other_clip(videos: Sequence[Path]) -> list[int]:
    """For each window the index of a window of another clip, each used once where the clips allow it.

    Raises CourseError when all windows come from one clip.
    """
    count = len(videos)
    for shift in sorted(range(1, count), key=lambda s: abs(s - count // 2)):
        partners = [(index + shift) % count for index in range(count)]
        if all(videos[index] != videos[partner] for index, partner in enumerate(partners)):
            return partners
    raise CourseError("all held-out windows come from too few clips to swap their frames", fix="Hold out more clips")


@torch.no_grad()
def generate(
    model: Any, item_of: Callable[[int], dict[str, Any]], count: int, processor: Any, batch_size: int
) -> list[str]:
    """Greedy answers of items 0 … count − 1, built batch by batch; CUT ends one that did not end by itself."""
    tokenizer, texts = processor.tokenizer, []
    for start in range(0, count, batch_size):
        items = [item_of(index) for index in range(start, min(start + batch_size, count))]
        batch = collate(items, tokenizer.pad_token_id, prompts_only=True)
        batch = {name: value.to(model.device) for name, value in batch.items()}
        batch["pixel_values_videos"] = batch["pixel_values_videos"].to(model.dtype)
        made = model.generate(**batch, max_new_tokens=NEW_TOKENS, do_sample=False)
        for row in made[:, batch["input_ids"].shape[1] :].tolist():
            ended = tokenizer.eos_token_id in row
            kept = row[: row.index(tokenizer.eos_token_id)] if ended else row
            texts.append(tokenizer.decode(kept, skip_special_tokens=True) + ("" if ended else CUT))
    return texts


CUT = "…"
"""Stands at the end of an answer that reached NEW_TOKENS without the end-of-turn token."""


def read_answer(text: str, window: Window) -> ParsedAnswer:
    """The intervals of an answer within its window."""
    return parse_intervals(text.removesuffix(CUT), window.seconds, ended=not text.endswith(CUT))


def write_reels(folder: Path, dataset: GroundingDataset, parsed: dict[str, list[ParsedAnswer]]) -> dict[str, Path]:
    """before.mp4 and after.mp4: the same held-out windows, one per clip, cut by the two answers."""
    folder.mkdir(parents=True, exist_ok=True)
    firsts: dict[Path, int] = {}
    for index, window in enumerate(dataset.windows):
        firsts.setdefault(window.video, index)
    chosen = list(firsts.values())[:REEL_CLIPS]
    reels = {}
    for name in ("before", "after"):
        clips = []
        for index in chosen:
            window, answer = dataset.windows[index], parsed[name][index]
            frames, seconds = window_frames(dataset, index)
            clips.append(
                ReelClip(
                    frames=frames,
                    timestamps=seconds,
                    seconds=window.seconds,
                    truth=window.events,
                    answer=answer.intervals if answer.status == "ok" else (),
                    caption=f"{window.video.stem} {name}: {window.question}",
                    usable=answer.status == "ok",
                )
            )
        reels[name] = write_reel(folder / f"{name}.mp4", clips)
    return reels


def window_frames(dataset: GroundingDataset, index: int):
    """Every frame of a window, as the file has them, for showing (the model saw budget.frames of them)."""
    window = dataset.windows[index]
    times = dataset.reader.info(window.video).timestamps_seconds
    inside = np.flatnonzero((times >= window.start_seconds - 1e-6) & (times < window.end_seconds - 1e-6))
    return dataset.reader.frames(window.video, inside.tolist()), (times[inside] - window.start_seconds).tolist()


def clip_rows(
    windows: Sequence[Window], texts: dict[str, list[str]], parsed: dict[str, list[ParsedAnswer]]
) -> list[ClipRow]:
    """One row per held-out window for the report."""
    return [
        ClipRow(
            clip=window.video.name,
            start_seconds=window.start_seconds,
            seconds=window.seconds,
            question=window.question,
            truth=window.events,
            before_text=texts["before"][index],
            before=parsed["before"][index],
            after_text=texts["after"][index],
            after=parsed["after"][index],
        )
        for index, window in enumerate(windows)
    ]


def run_facts(config: RunConfig, equal: int, proof_seconds: float) -> dict[str, Any]:
    """Facts of the run for the report, read from what the run left."""
    provenance = read_json(config.output / ADAPTER / "provenance.json")
    return {
        "ranks": provenance["ranks"],
        "device of training": provenance["device"],
        "ZeRO stage": provenance["ds_config_as_resolved"].get("zero_optimization", {}).get("stage"),
        "steps": config.train.max_steps,
        "samples per step": provenance["ranks"]
        * config.train.micro_batch_size
        * config.train.gradient_accumulation_steps,
        "adapter tensors equal in a fresh process": f"{equal} of {equal}",
        "proof seconds": round(proof_seconds, 1),
    }


def _say(text: str) -> None:
    print(f"{NOTE}{text}", flush=True)
