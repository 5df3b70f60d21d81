"""Cases from what people have: a model's name with a few settings, or a run config.

Not here: reading a case file (case.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_lib.catalog import catalogue
from course_lib.config.run_config import RunConfig, load_run_config
from course_lib.files import read_json
from course_lib.memory.case import MemoryCase, case_from
from course_lib.memory.inputs import PER_STEP_FAMILIES, TEXT_PER_STEP
from course_lib.shapes.config import load_config, text_config, vision_config

TEXT_TOKENS = 256
"""Question, system prompt and answer around a clip, where a run config does not say."""
ANSWER_TOKENS = 64
DEFAULT_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
MLA_TARGETS = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")
SMALL_BUCKET = 5_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelRequest:
    """A model and how to train it, for a case with sensible defaults for the rest."""

    model: str | dict[str, Any]
    lora_targets: tuple[str, ...] = ()
    """Empty: what suits the architecture (MLA projections where there are no q_proj and k_proj)."""
    lora_r: int = 16
    full: bool = False
    stage: int = 3
    offload_optimizer: bool = False
    offload_param: bool = False
    quantization: str | None = None
    gradient_checkpointing: bool = True
    sequence_length: int = 2048
    micro_batch_size: int = 1
    video_grids: tuple[tuple[int, int, int], ...] = ()
    loss: str = "all_positions"
    ranks: int = 1


def case_for_model(request: ModelRequest) -> MemoryCase:
    """The case of a model trained with small buckets at stage 3 and zero.Init where weights are partitioned."""
    targets = request.lora_targets or default_targets(request.model)
    lora = (
        None if request.full else {"r": request.lora_r, "lora_alpha": 2 * request.lora_r, "target_modules": [*targets]}
    )
    return case_from(
        {
            "model": request.model,
            "lora": lora,
            "quantization": request.quantization,
            "gradient_checkpointing": request.gradient_checkpointing,
            "sequence_length": request.sequence_length,
            "micro_batch_size": request.micro_batch_size,
            "video_grids": [list(grid) for grid in request.video_grids],
            "loss": request.loss,
            "supervised_tokens": ANSWER_TOKENS if request.loss == "supervised_positions" else None,
            "ds_config": small_buckets(
                request.stage, offload_optimizer=request.offload_optimizer, offload_param=request.offload_param
            ),
            "world_size": request.ranks,
            "load": "zero_init" if request.stage == 3 and not request.quantization else "materialised",
        },
        where="request",
    )


def small_buckets(stage: int, *, offload_optimizer: bool = False, offload_param: bool = False) -> dict[str, Any]:
    """A ds_config whose buckets do not cost more than the adapters they serve."""
    zero: dict[str, Any] = {"stage": stage, "contiguous_gradients": True, "overlap_comm": False}
    zero["reduce_bucket_size"] = SMALL_BUCKET
    if stage == 3:
        zero |= {"stage3_prefetch_bucket_size": SMALL_BUCKET, "stage3_param_persistence_threshold": 10_000}
        zero |= {"stage3_max_live_parameters": 100_000_000, "stage3_max_reuse_distance": 100_000_000}
    if offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu"}
    if offload_param:
        zero["offload_param"] = {"device": "cpu"}
    return {"bf16": {"enabled": True}, "gradient_clipping": 1.0, "zero_optimization": zero}


def default_targets(model: str | dict[str, Any]) -> tuple[str, ...]:
    """LoRA targets that exist: MLA's projections for MLA models, the usual seven elsewhere."""
    text = text_config(load_config(model))
    return MLA_TARGETS if getattr(text, "kv_lora_rank", None) else DEFAULT_TARGETS


def case_for_run(path: Path, *, ranks: int | None = None) -> MemoryCase:
    """The case of a run config: its model, adapters, budget of frames and tokens, loss and ds_config."""
    run = load_run_config(path)
    grids = _grids(run)
    steps = sum(grid[0] for grid in grids)
    visual = sum(t * (h // 2) * (w // 2) for t, h, w in grids)
    length = visual + TEXT_PER_STEP * (steps if _per_step(run) else len(grids)) + TEXT_TOKENS
    supervised = run.train.loss == "supervised_positions"
    ds_config = read_json(run.ds_config)
    return case_from(
        {
            "model": _model_of(run),
            "lora": {
                "r": run.lora.r,
                "lora_alpha": run.lora.alpha,
                "lora_dropout": run.lora.dropout,
                "target_modules": list(run.lora.targets),
            },
            "gradient_checkpointing": run.train.gradient_checkpointing,
            "micro_batch_size": run.train.micro_batch_size,
            "sequence_length": length,
            "video_grids": [list(grid) for grid in grids],
            "loss": run.train.loss,
            "supervised_tokens": ANSWER_TOKENS if supervised else None,
            "ds_config": ds_config,
            "world_size": run.ranks if ranks is None else ranks,
            # TrainingArguments exist before the model does, so transformers builds it under zero.Init at stage 3.
            "load": "zero_init" if (ds_config.get("zero_optimization") or {}).get("stage") == 3 else "materialised",
        },
        where=str(path),
    )


def request_for_run(path: str | Path, *, frames: int | None = None) -> tuple[ModelRequest, int | None]:
    """A ModelRequest from a run config, and the frames it asks for (None for a text run)."""
    run = load_run_config(path)
    request = ModelRequest(
        model=_model_of(run),
        lora_targets=tuple(run.lora.targets),
        lora_r=run.lora.r,
        micro_batch_size=run.train.micro_batch_size,
        loss=run.train.loss,
    )
    return request, frames or (None if run.task == "text" else run.budget.frames)


def grid_for(frames: int, tokens_per_step: int, temporal_patch: int = 2) -> tuple[int, int, int]:
    """The grid with at most `tokens_per_step` tokens per step and the squarest sides, for `frames` frames."""
    rows = max(1, int(tokens_per_step**0.5))
    return (max(1, -(-frames // temporal_patch)), 2 * rows, 2 * max(1, tokens_per_step // rows))


def _grids(run: RunConfig) -> list[tuple[int, int, int]]:
    config = load_config(_model_of(run))
    vision = vision_config(config)
    if run.task == "text" or vision is None:
        return []
    return [grid_for(run.budget.frames, run.budget.max_tokens_per_frame, vision.temporal_patch_size)]


def _per_step(run: RunConfig) -> bool:
    return load_config(_model_of(run)).model_type in PER_STEP_FAMILIES


def _model_of(run: RunConfig) -> str:
    """The model's directory; before it is downloaded, the catalogue entry that the directory is named after."""
    beside = run.source.parent / run.model
    if beside.is_dir():
        return str(beside)
    tail = Path(run.model).name.lower()
    for entry in catalogue().values():
        if tail == entry.name or tail in (hub_id.rsplit("/", 1)[-1].lower() for hub_id in entry.hub_ids):
            return entry.name
    return str(run.model)
