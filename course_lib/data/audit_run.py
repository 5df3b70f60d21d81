"""The audit of a whole run config: clips, windows, samples, labels and who gets which batch, before a rank starts.

Not here: one sample (audit.py), how it is shown (cli/tokens_run.py), what a GPU will hold (memory/).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median_low
from typing import Any

from course_lib.config.run_config import RunConfig
from course_lib.data.audit import SampleAudit, SampleAuditor, SetAudit, audit_windows, effective_cap, effective_model
from course_lib.data.audit_clips import read_infos, usable
from course_lib.data.coverage import (
    Coverage,
    SamplerSettings,
    cover,
    require_every_rank_has_a_batch,
    trainer_epoch_order,
)
from course_lib.data.windows import Window, cut_windows, read_annotations
from course_lib.errors import FINDING, CourseError
from course_lib.files import read_json
from course_lib.tokens.families import VideoModel

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how many are done, and of how many."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunAudit:
    """Everything that is known of a run's data before it starts."""

    config: RunConfig
    model: VideoModel
    train: SetAudit
    held_out: SetAudit | None
    coverage: Coverage
    vocabulary: int | None
    """Tokens that a logit row has; None without the model's config."""
    labels_checked: int
    """Samples that were built and whose labels were checked."""
    sizes_checked: int
    """Sizes of clips of which the installed processor was asked."""
    notes: tuple[str, ...]
    findings: tuple[str, ...]

    def as_record(self) -> dict[str, Any]:
        """The stable JSON form."""
        config, settings = self.config, self.model.settings
        frames = config.budget.frames
        floor = settings.shortest_edge / settings.factor**2
        return {
            "run": str(config.source),
            "model": self.model.name,
            "family": self.model.family.name,
            "settings_source": settings.source,
            "requested": {
                "frames": frames,
                "max_tokens_per_frame": config.budget.max_tokens_per_frame,
                "min_tokens_per_frame": config.budget.min_tokens_per_frame,
            },
            "effective": {
                "frames": frames,
                "padded_frames": self.train.samples[0].grid[0] * settings.temporal_patch_size,
                "max_tokens_per_frame": round(effective_cap(self.model, frames), 2),
                "min_tokens_per_frame": round(floor / (frames if self.model.family.rule == "whole_video" else 1), 2),
            },
            "max_tokens": self.train.max_tokens,
            "train": _set_record(self.train),
            "held_out": None if self.held_out is None else _set_record(self.held_out),
            "batches": self.batches(),
            "coverage": self.coverage.as_record(),
            "checked": {"labels_of_samples": self.labels_checked, "sizes_by_the_processor": self.sizes_checked},
            "notes": list(self.notes),
            "findings": list(self.findings),
        }

    def batches(self) -> dict[str, Any]:
        """What the largest batch of the first epoch holds on one rank, and what padding costs."""
        lengths, samples = self.train.lengths, self.train.samples
        batches = [batch for step in self.coverage.steps for batch in step if batch]
        widths = [max(lengths[index] for index in batch) for batch in batches]
        computed = [len(batch) * width for batch, width in zip(batches, widths, strict=True)]
        held = sum(lengths[index] for batch in batches for index in batch)
        record = {
            "largest_tokens": max(computed, default=0),
            "of_the_longest_sample_tokens": self.config.train.micro_batch_size * self.train.longest.tokens,
            "padding_share": round(1 - held / sum(computed), 4) if computed else 0.0,
            "epoch_tokens": sum(computed),
        }
        if self.vocabulary is not None:
            # One fp32 row of the vocabulary for each position of which the loss keeps logits.
            kept = computed
            if self.config.train.loss == "supervised_positions":
                kept = [len(batch) * len(_predicting([samples[index] for index in batch])) for batch in batches]
            record["logits_bytes_all_positions"] = 4 * self.vocabulary * max(computed, default=0)
            record["logits_bytes_with_this_loss"] = 4 * self.vocabulary * max(kept, default=0)
        return record


def _predicting(samples: Sequence[SampleAudit]) -> set[int]:
    """Positions that some row of a right-padded batch learns from: each predicts the token after it."""
    return {
        place for sample in samples for place in range(sample.tokens - sample.supervised_tokens - 1, sample.tokens - 1)
    }


def audit_run(
    config: RunConfig, *, max_tokens: int | None = None, progress: Progress = lambda what, done, total: None
) -> RunAudit:
    """Audit the training windows of a run, and the held-out ones where there are any.

    Args:
        max_tokens: limit of a sample; None: what the model's config says it can take.

    Returns: the RunAudit; where the model's folder is not there yet, the text is estimated and labels stay unchecked.
    Raises CourseError for another task, unreadable annotations, and when no clip is left.
    """
    if config.task != "video_text":
        raise CourseError(f"task {config.task} has no audit of its data", where=str(config.source))
    folder = Path(config.model)
    processor = _processor(config, folder)
    model = effective_model(config.model if processor else folder.name, config.budget, processor)
    text_config = _text_config(folder)
    limit = max_tokens if max_tokens is not None else text_config.get("max_position_embeddings")
    auditor = SampleAuditor(model, config.budget, processor)
    windows, train = _audit_set(config, config.data.train, config.data.stride_seconds, auditor, limit, progress)
    held_windows, held_out = (), None
    if config.data.held_out is not None:
        held_windows, held_out = _audit_set(
            config, config.data.held_out, config.data.window_seconds, auditor, limit, progress
        )
    if config.train.smoke:
        train = _repeated(train, config)
    coverage = cover(
        len(train.samples),
        SamplerSettings(batch_size=config.train.micro_batch_size, ranks=config.ranks),
        trainer_epoch_order(len(train.samples), config.train.seed, 0),
    )
    sets = [(windows, train), *([(held_windows, held_out)] if held_out else [])]
    findings = [line for _, audited in sets for line in audited.findings()]
    notes = [line for _, audited in sets for line in audited.notes()]
    left_out = [entry["reason"] for _, audited in sets for entry in audited.left_out]
    (notes if config.data.on_bad_file == "skip" else findings).extend(f"left out: {reason}" for reason in left_out)
    findings += _coverage_finding(coverage)
    built, sizes = 0, 0
    if processor is None:
        notes.append(f"{folder} is not there: the text is estimated, labels and grids were not checked")
    else:
        checked, built, sizes = _ask_the_library(sets, model, processor, config)
        findings += checked
    return RunAudit(
        config=config,
        model=model,
        train=train,
        held_out=held_out,
        coverage=coverage,
        vocabulary=text_config.get("vocab_size"),
        labels_checked=built,
        sizes_checked=sizes,
        notes=tuple(notes),
        findings=tuple(findings),
    )


def _processor(config: RunConfig, folder: Path) -> Any:
    if not (folder / "config.json").is_file():
        return None
    from course_lib.data.grounding import load_processor

    return load_processor(folder, config.budget)


def _text_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    record = read_json(path) if path.is_file() else {}
    return record | record.get("text_config", {})


def _audit_set(
    config: RunConfig, path: Path, stride: float, auditor: SampleAuditor, limit: int | None, progress: Progress
) -> tuple[tuple[Window, ...], SetAudit]:
    """One annotation file: its clips, the windows of those that can be used, and their audit."""
    missing: list[CourseError] = []
    annotations = read_annotations(path, on_missing_video=missing.append)
    clips = list(dict.fromkeys(annotation.video for annotation in annotations))
    infos = read_infos(clips, progress=lambda done: progress(f"clips of {path.name}", done, len(clips)))
    kept, bad = usable(annotations, infos)
    left_out = [{"clip": error.where, "reason": error.line()} for error in missing] + bad
    if not kept:
        raise CourseError(
            f"no clip is left of {len(left_out)}; the first: {left_out[0]['reason']}", where=str(path),
            exit_code=FINDING,
        )  # fmt: skip
    windows = cut_windows(kept, config.data.window_seconds, stride).windows
    audited = audit_windows(
        windows, infos, auditor, left_out=left_out, max_tokens=limit,
        progress=lambda done: progress(f"samples of {path.name}", done, len(windows)),
    )  # fmt: skip
    return windows, audited


def _repeated(train: SetAudit, config: RunConfig) -> SetAudit:
    """train.smoke: the first window, as often as one update takes."""
    count = config.ranks * config.train.micro_batch_size * config.train.gradient_accumulation_steps
    return replace(train, samples=train.samples[:1] * count)


def _coverage_finding(coverage: Coverage) -> list[str]:
    try:
        require_every_rank_has_a_batch(coverage)
    except CourseError as error:
        return [error.line()]
    return []


def _ask_the_library(
    sets: Sequence[tuple[Sequence[Window], SetAudit]], model: VideoModel, processor: Any, config: RunConfig
) -> tuple[list[str], int, int]:
    """Findings of the installed library, samples built, sizes asked."""
    from course_lib.data.audit_built import check_built, check_sizes, chosen_samples

    found, built, sizes = [], 0, 0
    for windows, audited in sets:
        chosen = chosen_samples(audited.samples)
        timed = model.family.text == "timed_steps"
        found += check_built(chosen, windows, processor, config.budget, times_in_text=timed)
        built += len(chosen)
        wrong, asked = check_sizes(audited.samples, model, processor)
        found, sizes = found + wrong, sizes + asked
    return found, built, sizes


def _set_record(audited: SetAudit) -> dict[str, Any]:
    longest = audited.longest
    return {
        "samples": len(audited.samples),
        "clips": len({sample.clip for sample in audited.samples}),
        "left_out": list(audited.left_out),
        "tokens": _spread(audited.lengths),
        "visual_tokens": _spread([sample.visual_tokens for sample in audited.samples]),
        "supervised_tokens": _spread([sample.supervised_tokens for sample in audited.samples]),
        "longest": {"index": longest.index, "where": longest.where, "tokens": longest.tokens},
        "over_length": [sample.index for sample in audited.over_length],
        "histogram": audited.histogram(),
        "per_sample": [sample.as_record() for sample in audited.samples],
    }


def _spread(values: Sequence[int]) -> dict[str, int]:
    return {"least": min(values), "median": median_low(values), "most": max(values), "sum": sum(values)}
