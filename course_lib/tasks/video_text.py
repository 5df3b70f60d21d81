"""The video_text task: from a clip and a question to the intervals worth keeping.

Put together here: windows of real clips, the model's own processor under a verified budget, LoRA on the language
model, loss on the answer. What happens to answers afterwards is in video_text_proof.py.
"""

import hashlib
import os
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from course_lib.config.run_config import RunConfig
from course_lib.data.coverage import SamplerSettings, cover, require_every_rank_has_a_batch, trainer_epoch_order
from course_lib.data.grounding import GroundingDataset, collate, load_processor
from course_lib.data.windows import Annotation, Window, WindowSet, cut_windows, read_annotations
from course_lib.errors import FINDING, CourseError
from course_lib.files import read_json
from course_lib.models.language_lora import add_language_lora, count_trainable
from course_lib.train.adapter_files import save_adapter
from course_lib.train.checkpoints import checkpoints, step_of
from course_lib.train.journal import Journal, PhaseMemory
from course_lib.train.provenance import file_hash, files_hash, git_revision
from course_lib.train.session import Session, close_session, open_session, training_arguments

LEFT_OUT = "left_out.json"
"""In the run folder: the clips that the checks found unusable, with reasons; ranks and proof leave them out."""
HASHED_BYTES = 256 * 1024**2
"""Up to so much training data is hashed whole."""
ADAPTER = "adapter"
"""Folder of the adapter inside the run folder."""


def read_windows(config: RunConfig, which: str) -> WindowSet:
    """Windows of the training or held-out annotations, without the clips that `check` left out.

    Args:
        which: "train" (stride as configured) or "held_out" (windows do not overlap).
    """
    path = config.data.train if which == "train" else config.data.held_out
    if path is None:
        raise CourseError(
            "data.held_out is missing", where=str(config.source), fix="Name a JSONL file of held-out clips"
        )
    listed = config.output / LEFT_OUT
    left_out = {Path(entry["clip"]) for entry in read_json(listed)} if listed.is_file() else set()
    skip = config.data.on_bad_file == "skip"
    annotations = read_annotations(path, on_missing_video=(lambda finding: None) if skip else None)
    stride = config.data.stride_seconds if which == "train" else config.data.window_seconds
    kept = [annotation for annotation in annotations if annotation.video not in left_out]
    return cut_windows(kept, config.data.window_seconds, stride)


def bad_clips(config: RunConfig, which: str) -> list[dict[str, str]]:
    """Open every clip once and compare it with its annotation, before a GPU is paid for.

    Returns: {"clip", "reason"} of each clip that cannot be used, when the run config says on_bad_file: skip.
    Raises CourseError for the first one otherwise.
    """
    from course_lib.media.video import FrameReader

    findings: list[CourseError] = []
    path = config.data.train if which == "train" else config.data.held_out
    annotations = read_annotations(path, on_missing_video=findings.append if _skips(config) else None)
    found = [{"clip": finding.where, "reason": finding.line()} for finding in findings]
    with FrameReader() as reader:
        for annotation in annotations:
            try:
                _require_length(reader.info(annotation.video).duration_seconds, annotation)
            except CourseError as finding:
                if not _skips(config):
                    raise
                found.append({"clip": str(annotation.video), "reason": finding.line()})
    return found


def _skips(config: RunConfig) -> bool:
    return config.data.on_bad_file == "skip"


def _require_length(seconds: float, annotation: Annotation) -> None:
    # A tenth of a second: containers round, and annotations are written with one decimal.
    if seconds < annotation.duration_seconds - 0.1:
        raise CourseError(
            f"lasts {seconds:.2f} s, but its annotation says {annotation.duration_seconds:.2f} s",
            where=str(annotation.video),
            fix="Correct duration_seconds in the annotation",
            exit_code=FINDING,
        )


def load_base(directory: Path, **named: Any):
    """The base model from a directory, in bf16. Raises CourseError when it is no video-text model directory."""
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForImageTextToText

    if not (directory / "config.json").is_file():
        raise CourseError("is not a model directory (no config.json)", where=str(directory))
    try:
        return AutoModelForImageTextToText.from_pretrained(
            directory, dtype=torch.bfloat16, use_safetensors=True, **named
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise CourseError(f"cannot be loaded: {str(error).splitlines()[0][:160]}", where=str(directory)) from error


def train_rank(config: RunConfig, *, resume: bool) -> None:
    """What one rank does, from the process group to the saved adapter. Every rank runs this."""
    import torch

    session = open_session()
    checkpoint = _last_checkpoint(config, session) if resume else None
    memory = PhaseMemory(_journal(config, f"memory_rank{session.rank}", checkpoint))
    torch.manual_seed(config.train.seed)
    arguments = training_arguments(config, session)
    processor = load_processor(Path(config.model), config.budget)
    dataset = _training_set(config, session, processor)
    model = load_base(Path(config.model))
    model.config.use_cache = False
    memory.mark("load", 0)
    model = add_language_lora(model, config.lora)
    # Checkpointed blocks need an input with a gradient; without it no adapter would train.
    model.enable_input_require_grads()
    session.say(count_trainable(model).describe())
    trainer = _trainer(config, session, arguments, model, processor, dataset, memory, checkpoint)
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    _stop_unless_checked(trainer)
    # Only rank 0 writes it; the others would hash every clip for nothing.
    extra = {"provenance": provenance(config, session)} if session.rank == 0 else {}
    save_adapter(model, config.output / ADAPTER, extra)
    memory.mark("save", trainer.state.global_step)
    session.say(memory.describe())
    session.say(f"adapter saved: {config.output / ADAPTER}")
    dataset.reader.close()
    close_session()


def provenance(config: RunConfig, session: Session) -> dict[str, Any]:
    """Everything needed to say what made an adapter; nothing from the environment's variables."""
    from transformers.integrations.deepspeed import deepspeed_config

    return {
        "environment": session.environment,
        "git": git_revision(Path(__file__).parent),
        "ranks": session.ranks,
        "device": "cpu (gloo)" if session.cpu else _gpu_name(),
        "run_config": config.as_record(),
        "run_config_sha256": file_hash(config.source),
        "ds_config_as_resolved": deepspeed_config(),
        "annotations_sha256": file_hash(config.data.train),
        **clips_record(config),
    }


def clips_record(config: RunConfig) -> dict[str, Any]:
    """A hash of the training clips: of their contents, or of names and sizes where reading them would take long."""
    clips = sorted({window.video for window in read_windows(config, "train").windows})
    root = config.data.train.parent
    if sum(clip.stat().st_size for clip in clips) <= HASHED_BYTES:
        return {"clips_sha256": files_hash(clips, root)}
    sizes = [(os.path.relpath(clip, root), clip.stat().st_size) for clip in clips]
    return {"clip_names_and_sizes_sha256": hashlib.sha256(repr(sizes).encode()).hexdigest()}


def _gpu_name() -> str:
    import torch

    return torch.cuda.get_device_name()


def _sampler(config: RunConfig, ranks: int) -> SamplerSettings:
    return SamplerSettings(batch_size=config.train.micro_batch_size, ranks=ranks)


def _training_set(config: RunConfig, session: Session, processor: Any) -> GroundingDataset:
    windows = read_windows(config, "train")
    session.say(windows.counts.describe())
    chosen: tuple[Window, ...] = windows.windows
    if config.train.smoke:
        count = session.ranks * config.train.micro_batch_size * config.train.gradient_accumulation_steps
        chosen = chosen[:1] * count
        session.say(f"smoke: one window repeated {count} times; it proves the path and teaches nothing")
    dataset = GroundingDataset(chosen, processor, config.budget)
    settings = _sampler(config, session.ranks)
    coverage = cover(len(chosen), settings, trainer_epoch_order(len(chosen), config.train.seed, 0))
    require_every_rank_has_a_batch(coverage)
    session.say(coverage.describe())
    cost = dataset.cost(dataset[0])
    session.say(f"first sample after the processor: {asdict(cost)}")
    return dataset


def _trainer(
    config: RunConfig,
    session: Session,
    arguments: Any,
    model: Any,
    processor: Any,
    dataset: Any,
    memory: Any,
    checkpoint: Path | None,
):
    from course_lib.train.audit_callback import BatchAudit, expected_of
    from course_lib.train.trainer import CourseTrainer, FirstStep, LogRows

    trainer = CourseTrainer(
        model=model,
        args=arguments,
        train_dataset=dataset,
        data_collator=partial(collate, pad_token_id=processor.tokenizer.pad_token_id),
        loss=config.train.loss,
        batches=_journal(config, f"batches_rank{session.rank}", checkpoint),
        memory=memory,
        video_token_id=processor.video_token_id,
        frames_per_step=processor.video_processor.temporal_patch_size,
    )
    if session.rank == 0:
        trainer.add_callback(LogRows(_journal(config, "train_log", checkpoint)))
    trainer.add_callback(FirstStep(trainer, session.say))
    expected = expected_of(dataset)
    trainer.add_callback(BatchAudit(trainer, processor, budget=config.budget, expected=expected, say=session.say))
    return trainer


def _journal(config: RunConfig, name: str, checkpoint: Path | None) -> Journal:
    return Journal(config.output / f"{name}.jsonl", resumed_at=step_of(checkpoint) if checkpoint else None)


def _last_checkpoint(config: RunConfig, session: Session) -> Path | None:
    found = checkpoints(config.output)
    session.say(f"resuming from {found[-1].name}" if found else "no checkpoint yet: starting from step 0")
    return found[-1] if found else None


def _stop_unless_checked(trainer: Any) -> None:
    steps = trainer.state.global_step - trainer.steps_before
    if not trainer.first_step.finished and steps > 1:
        raise CourseError(
            f"the first-step check could not finish in {steps} steps",
            where="first step",
            fix="Was the learning rate above zero?",
            exit_code=FINDING,
        )


def check(config: RunConfig) -> list[dict[str, str]]:
    """Everything of this task that can be refused before a rank starts.

    Returns: the clips that are left out, with reasons (on_bad_file: skip). Raises CourseError for a model directory
    without its files, and for annotations or clips that cannot be used.
    """
    directory = Path(config.model)
    if not (directory / "config.json").is_file():
        raise CourseError(
            "is not a model directory (no config.json)", where=str(directory), fix="Set model: or MODEL_DIR"
        )
    load_processor(directory, config.budget)
    left_out = bad_clips(config, "train")
    samples = len(read_windows(config, "train").windows)
    if not config.train.smoke:
        require_every_rank_has_a_batch(cover(samples, _sampler(config, config.ranks)))
    if config.data.held_out is not None:
        left_out += bad_clips(config, "held_out")
        read_windows(config, "held_out")
    return left_out


def prove(config: RunConfig) -> None:
    """What a fresh process does with a finished run (video_text_proof.py)."""
    from course_lib.tasks.video_text_proof import prove as prove_run

    prove_run(config)
