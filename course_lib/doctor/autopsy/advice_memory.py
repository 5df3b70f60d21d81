"""Advice after oom_gpu: by cause, with the bytes that the first piece gives back where the log says enough."""

from course_lib.doctor.autopsy.findings import Finding
from course_lib.units import GIB, human_bytes


def oom_advice(finding: Finding) -> list[str]:
    """The knob that helps first, then the next ones."""
    numbers = finding.numbers
    tried = human_bytes(numbers["tried_bytes"]) if "tried_bytes" in numbers else "more"
    short = f" (it missed by {human_bytes(numbers['short_by_bytes'])})" if numbers.get("short_by_bytes") else ""
    return BY_CAUSE[finding.cause](finding, tried, short)


def _second_model(finding: Finding, tried: str, short: str) -> list[str]:
    return [
        f"A second model was loaded while the first one was still on the GPU{short}: check or use the saved adapter "
        "in a fresh process, started after this one has ended",
        "In one process: delete model, trainer and optimizer, then gc.collect() and torch.cuda.empty_cache(); "
        "references in tracebacks and closures keep them alive",
    ]


def _other_process(finding: Finding, tried: str, short: str) -> list[str]:
    held = finding.facts["others_bytes"] / GIB
    return [
        f"Other processes hold {held:.2f} GiB of this GPU: look with nvidia-smi, end what is left over from an "
        "earlier run, or choose another GPU (CUDA_VISIBLE_DEVICES)",
        "Two ranks on one GPU look the same: each rank must set its own device from LOCAL_RANK",
    ]


def _fragmentation(finding: Finding, tried: str, short: str) -> list[str]:
    held = human_bytes(finding.numbers["reserved_unallocated_bytes"])
    return [
        f"{held} are reserved but unallocated, in pieces too small for {tried}: set "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        "Sequences of very different length fragment most: sort or pad to a few lengths",
    ]


def _logits(finding: Finding, tried: str, short: str) -> list[str]:
    positions = {k.rsplit("_", 1)[1]: v for k, v in finding.numbers.items() if k.startswith("positions_if_vocab_")}
    first = next(iter(positions.items()), None)
    size = (
        f"{tried} is logits: {first[1]} positions x vocabulary {first[0]} x {finding.numbers['element_bytes']} bytes "
        "(other vocabularies in the numbers). "
        if first
        else ""
    )
    return [
        f"{size}Compute logits only at supervised positions (where labels are not -100){short}: exact, and for a "
        f"long prompt or video with a short answer it gives back nearly all of the {tried}, and its copies in "
        "softmax and gradient",
        "Check the sequence length: is it what you set? A video budget that does not act shows here first",
        "Otherwise a tiled or fused loss (Liger's fused linear cross entropy), or a smaller micro batch",
    ]  # fmt: skip


def _expert(finding: Finding, tried: str, short: str) -> list[str]:
    names = finding.numbers.get("matches") or []
    known = f" It has the size of {names[0]}." if names else ""
    return [
        f"{tried} is one fused expert tensor (all experts of one layer), gathered or allocated whole{short}.{known} "
        "stage3_max_live_parameters does not bound it: shard it (expert parallelism), quantize it, or offload "
        "parameters",
        "set_z3_leaf_modules on the MoE block gathers all its experts at once: leave it away where the experts are "
        "already one tensor",
    ]


def _eval_batch(finding: Finding, tried: str, short: str) -> list[str]:
    batch, freed = finding.numbers.get("eval_batch_size", 8), finding.numbers.get("freed_by_batch_of_1_bytes")
    gives = f"; of {tried} it gives back {human_bytes(freed)}" if freed else ""
    default = " (the default of 8, whatever the training batch is)" if batch == 8 else ""
    return [
        f"Evaluation ran with a batch of {batch} per device{default}{short}: set per_device_eval_batch_size: 1{gives}",
        "prediction_loss_only: true, so that logits are not kept for metrics; eval_accumulation_steps moves them to "
        "the host",
    ]


def _eval_logits(finding: Finding, tried: str, short: str) -> list[str]:
    return [
        f"Evaluation keeps the logits of all batches on the GPU{short}: set prediction_loss_only: true, or reduce "
        "them in preprocess_logits_for_metrics (argmax)",
        "eval_accumulation_steps: 1 moves them to the host after each step; per_device_eval_batch_size: 1 (default 8)",
    ]


def _whole_model(finding: Finding, tried: str, short: str) -> list[str]:
    return [
        f"The weights did not fit while they were loaded{short}: create TrainingArguments (with the ZeRO-3 "
        "ds_config) before from_pretrained (zero.Init), so that each rank receives its shard and not the whole "
        "model",
        "If one GPU must hold it: load in bf16, quantize (nf4 takes about 0.55 bytes per parameter), or offload_param",
    ]


def _optimizer(finding: Finding, tried: str, short: str) -> list[str]:
    place = "at initialisation" if finding.phase == "init" else "in the optimizer step"
    return [
        f"{tried} did not fit {place}{short}: that is where fp32 master weights and Adam's two states live (12 bytes "
        "per trainable parameter and rank, twice the master for a moment): train fewer parameters (LoRA), or "
        "offload_optimizer",
        "reduce_bucket_size counts elements and stays resident under ZeRO-3: 5e8 is 0.93 GiB in bf16; LoRA needs "
        "far less",
    ]


def _saving(finding: Finding, tried: str, short: str) -> list[str]:
    return [
        f"{tried} did not fit while weights were gathered for saving{short}: save the adapter alone, with frozen "
        "parameters excluded, consolidated on all ranks and written by rank 0",
        "stage3_gather_16bit_weights_on_model_save: false, and turn the ZeRO checkpoint into weights afterwards "
        "(zero_to_fp32.py) in a fresh process",
    ]


def _activations(finding: Finding, tried: str, short: str) -> list[str]:
    return [
        f"Activations did not fit in the {finding.phase} ({tried} more){short}: turn on gradient checkpointing "
        "(gradient_checkpointing: true), then a smaller micro batch with more accumulation",
        "Fewer frames or tokens: print the length of the batch that failed; it may be far above the usual one",
        "More ranks under ZeRO-3 shrink weights and optimizer, not activations",
    ]


BY_CAUSE = {
    "second_model": _second_model,
    "other_process": _other_process,
    "fragmentation": _fragmentation,
    "logits": _logits,
    "logits_upcast": _logits,
    "expert_tensor": _expert,
    "eval_batch": _eval_batch,
    "eval_logits_kept": _eval_logits,
    "whole_model_per_rank": _whole_model,
    "optimizer_states": _optimizer,
    "gathered_for_saving": _saving,
    "activations": _activations,
}
