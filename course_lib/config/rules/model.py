"""The ds_config against the model's shape and the adapters."""

import importlib.util
import os
import re
from pathlib import Path

from course_lib.config.facts import Facts
from course_lib.config.findings import Finding, delete, found, set_to
from course_lib.errors import nearest
from course_lib.units import MIB, gib

ZERO = "zero_optimization"
LARGE_BUCKET_BYTES = 256 * MIB
"""From here on a bucket that adapters cannot fill is worth a note."""
_HELPING_BUCKET = 5_000_000
"""Elements; measured: an 8B LoRA run peaks 0.92 GiB lower with 5e6 than with the default 5e8."""


def model_findings(facts: Facts) -> list[Finding]:
    findings = []
    if facts.lora is not None:
        findings += [*_bucket(facts), *_sub_group(facts), *_targets(facts)]
    if facts.model is not None and facts.stage == 3:
        findings += [*_leaf_modules(facts), *_max_live(facts)]
    return findings


def _bucket(facts: Facts) -> list[Finding]:
    """Stage 3 allocates the whole bucket at start and keeps it; stages 1 and 2 hold it during each backward."""
    key, bucket = f"{ZERO}.reduce_bucket_size", facts.zero("reduce_bucket_size")
    holds = facts.stage == 3 and facts.zero("contiguous_gradients")
    if facts.stage == 0 or bucket is None or facts.is_open(key) or not (holds or facts.stage < 3):
        return []
    buffers = 2 if facts.stage < 3 and facts.zero("overlap_comm") else 1
    held = bucket * facts.precision_bytes * buffers
    adapters = facts.model.adapters_at_most(facts.lora or {}) if facts.model else 0
    if held < LARGE_BUCKET_BYTES or adapters * 2 > bucket:
        return []
    when = "for the whole run" if facts.stage == 3 else "during every backward"
    count = f"{buffers} x " if buffers > 1 else ""
    text = f"{count}{bucket:,} elements x {facts.precision_bytes} B = {held:,} B ({gib(held)}) on every GPU {when}"
    text += f", for at most {adapters:,} adapter elements" if adapters else ", for the gradients of a few adapters"
    fix = f"Set reduce_bucket_size to {_HELPING_BUCKET:,} or so"
    return [found("bucket_under_lora", "note", key, text, fix, set_to(key, _HELPING_BUCKET))]


def _sub_group(facts: Facts) -> list[Finding]:
    key = f"{ZERO}.sub_group_size"
    size = facts.zero("sub_group_size")
    if facts.stage != 3 or not facts.writes(key) or not isinstance(size, int):
        return []
    trainable = facts.model.adapters_at_most(facts.lora or {}) if facts.model else 0
    if trainable > size * (facts.world_size or 1):
        return []
    text = f"the adapters of one rank fit in one sub-group of {size:,} elements: nothing is tiled"
    return [found("no_effect_under_lora", "note", key, text, "Delete sub_group_size", delete(key))]


def _leaf_modules(facts: Facts) -> list[Finding]:
    """Ranks that route to different experts gather different parameters, unless the block is gathered as one."""
    model, leaf = facts.model, facts.zero("leaf_module")
    if model is None or not model.experts or leaf is None or os.environ.get("ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES"):
        return []
    named_by_user = facts.writes(f"{ZERO}.leaf_module") and (leaf.names or leaf.name_suffixes)
    user_classes = facts.writes(f"{ZERO}.leaf_module.classes") and leaf.classes
    covered = any(f".{model.model_type}." in name for name in leaf.classes)
    if named_by_user or user_classes or covered or facts.zero("module_granularity_threshold"):
        return []
    text = (
        f"{model.model_type} routes each token to some of {model.experts} experts, and none of its blocks is a leaf "
        "module. Where experts are modules of their own (transformers 4, remote code), ranks that use different ones "
        "wait for each other for ever; transformers 5 keeps a layer's experts in one tensor, gathered whole"
    )
    fix = f"List its expert block under {ZERO}.leaf_module.classes, or call deepspeed.utils.set_z3_leaf_modules"
    return [found("moe_without_leaf", "warning", f"{ZERO}.leaf_module", text, fix)]


def _max_live(facts: Facts) -> list[Finding]:
    key, limit = f"{ZERO}.stage3_max_live_parameters", facts.zero("max_live_parameters")
    if facts.model is None or limit is None or facts.model.largest_parameter <= limit:
        return []
    written = facts.writes(key) or facts.writes(f"{ZERO}.max_live_parameters")
    text = (
        f"one parameter of {facts.model.model_type} has at least {facts.model.largest_parameter:,} elements and is "
        f"gathered whole; the limit of {limit:,} only slows prefetching and does not bound it"
    )
    fix = "Plan memory for the largest parameter, twice where it is gathered with others"
    # A low limit is a fair way to slow prefetching; the surprise is a tensor that even the default would not bound.
    surprise = written and facts.model.largest_parameter > facts.schema.default_of(key)
    return [found("larger_than_max_live", "warning" if surprise else "note", key, text, fix)]


def _targets(facts: Facts) -> list[Finding]:
    """LoRA targets against the names that the model's own source assigns (no model is built)."""
    wanted = (facts.lora or {}).get("target_modules")
    if facts.model is None or not isinstance(wanted, list | tuple):
        return []
    names = _attribute_names(facts)
    missing = [name for name in wanted if str(name).rpartition(".")[2] not in names]
    if not names or not missing:
        return []
    none_left = len(missing) == len(wanted)
    near = [n for name in missing for n in nearest(str(name), [n for n in names if "proj" in n], 2)]
    text = f"no module of {facts.model.model_type} is called {', '.join(map(repr, missing))}"
    fix = f"Nearest: {', '.join(dict.fromkeys(near))}" if near else "See the model's own module names"
    return [found("lora_target", "error" if none_left else "warning", "lora.target_modules", text, fix)]


def _attribute_names(facts: Facts) -> set[str]:
    """Every `self.NAME = …` in transformers' modeling files for this model type; none when there is no such folder."""
    spec = importlib.util.find_spec("transformers")
    if facts.model is None or spec is None or spec.origin is None:
        return set()
    folder = Path(spec.origin).parent / "models" / facts.model.model_type
    sources = [p.read_text(encoding="utf-8") for p in folder.glob("modeling_*.py")]
    names = {name for text in sources for name in re.findall(r"self\.(\w+) *=", text)}
    return names - {"q_proj"} if facts.model.splits_query and "q_a_proj" in names else names
