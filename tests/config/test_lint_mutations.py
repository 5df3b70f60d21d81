"""Random mutations of clean configurations: lint must agree with what the installed DeepSpeed makes of them.

The judge here is DeepSpeedConfig itself, called by this test and not through course_lib: it raises, or it keeps a
value, or it ignores a key. The seed is fixed; 500 mutations are tried.
"""

import copy
import random
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
from clean_configs import RAW, TRAINER

from course_lib.config.lint import lint
from course_lib.config.trainer_view import through_trainer

pytestmark = pytest.mark.slow

SEED = 20260
RAW_MUTATIONS, TRAINER_MUTATIONS = 350, 150
RANKS = 2

LATER = {
    # Errors that DeepSpeedConfig does not make, because they come after it: while the engine, the optimizer or
    # the scheduler is built, or never (a key that is silently without effect).
    *("auto_not_resolved", "contradiction", "no_effect_offload", "nvme_path", "no_effect", "data_type_conflict"),
    *("optimizer_refused", "scheduler_refused", "missing_key", "trainer_mismatch", "out_of_range", "not_allowed"),
    *("wrong_type", "fractional_number", "unknown_key", "misplaced_key", "argument_not_used"),
}


def deepspeed_says(config: dict):
    """A DeepSpeedConfig for RANKS ranks, or the exception."""
    import deepspeed.runtime.config as module

    ranks = SimpleNamespace(get_rank=lambda: 0, get_world_size=lambda *_: RANKS)
    with mock.patch.object(module, "dist", ranks):
        try:
            return module.DeepSpeedConfig(copy.deepcopy(config))
        except Exception as error:  # noqa: BLE001 - any exception is DeepSpeed's verdict
            return error


def typed_blocks(parsed) -> dict:
    """Dotted block → the pydantic object that DeepSpeed made of it."""
    zero = parsed.zero_config
    return {
        "bf16": parsed.bfloat16_config,
        "fp16": parsed.float16_config,
        "zero_optimization": zero,
        "zero_optimization.offload_param": zero.offload_param,
        "zero_optimization.offload_optimizer": zero.offload_optimizer,
        "tensorboard": parsed.monitor_config.tensorboard,
        "comms_logger": getattr(parsed.comms_config, "comms_logger", None),
    }


def kept_differently(config: dict, parsed) -> set[str]:
    """Dotted keys of typed blocks whose kept value is not equal to the written one."""
    different = set()
    for path, kept in typed_blocks(parsed).items():
        values = config
        for part in path.split("."):
            values = values.get(part) if isinstance(values, dict) else None
        if not isinstance(values, dict) or kept is None:
            continue
        names = {key: name for name, f in type(kept).model_fields.items() for key in (name, f.alias) if key}
        for key, value in values.items():
            if isinstance(value, dict):
                continue
            if key not in names or not hasattr(kept, names[key]):
                different.add(f"{path}.{key}")
                continue
            now = getattr(kept, names[key])
            now = now.value if isinstance(now, Enum) else str(now) if isinstance(now, Path) else now
            if now != value:
                different.add(f"{path}.{key}")
    return different


def places(config: dict, prefix: str = "") -> list[tuple[dict, str, str]]:
    """Every (block, key, dotted key)."""
    found = []
    for key, value in config.items():
        found.append((config, key, f"{prefix}{key}"))
        if isinstance(value, dict):
            found += places(value, f"{prefix}{key}.")
    return found


def blocks(config: dict) -> list[tuple[dict, str]]:
    nested = [(b[k], f"{dotted}.") for b, k, dotted in places(config) if isinstance(b[k], dict)]
    return [(config, ""), *nested]


WRONG = ["5e7", "true", "false", 1.5, -1, 0, 3, 15099494.4, None, [], {}, "auto", True, False, "cpu", "bf16", 1e30]
REMOVED = ["amp", "elasticity", "nebula", "compression_training", "sparse_gradients", "eigenvalue"]


def mutate(config: dict, rng: random.Random) -> tuple[str, str, dict]:
    """(kind, dotted key, mutated copy); the key is the one that a finding should be about, "" if any will do."""
    config = copy.deepcopy(config)
    kind = rng.choice(["typo", "move", "value", "value", "value", "delete", "removed", "stage", "scale", "invent"])
    block, key, dotted = rng.choice(places(config))
    if kind == "typo":
        cut = rng.randrange(len(key))
        wrong = key[:cut] + rng.choice("xqz") + key[cut:]
        block[wrong] = block.pop(key)
        return kind, dotted[: len(dotted) - len(key)] + wrong, config
    if kind == "move":
        value = block.pop(key)
        target, prefix = rng.choice(blocks(config))
        if key in target or prefix.startswith(f"{dotted}."):
            return mutate(config, rng)
        target[key] = value
        return kind, "", config
    if kind == "value":
        block[key] = rng.choice(WRONG)
        return kind, dotted, config
    if kind == "delete":
        del block[key]
        return kind, "", config
    if kind == "removed":
        name = rng.choice(REMOVED)
        config[name] = rng.choice([True, {"enabled": False}])
        return kind, name, config
    if kind == "stage":
        config.setdefault("zero_optimization", {})["stage"] = rng.choice([0, 1, 2, 3])
        return kind, "", config
    if kind == "invent":
        target, prefix = rng.choice(blocks(config))
        name = f"my_{rng.randrange(100)}_setting"
        target[name] = 1
        return kind, f"{prefix}{name}", config
    if isinstance(block[key], int | float) and not isinstance(block[key], bool):
        block[key] = type(block[key])(block[key] * rng.choice([2, 4]))
    return kind, "", config


def mutations(configs: dict, count: int, salt: int):
    rng = random.Random(SEED + salt)
    for number in range(count):
        name = rng.choice(sorted(configs))
        yield number, name, *mutate(configs[name], rng)


def agree(config: dict, judged: dict, findings: list, kind: str, key: str) -> str:
    """ "" when lint and DeepSpeed agree, else what is wrong."""
    errors = [f for f in findings if f.level == "error"]
    verdict = deepspeed_says(judged)
    if isinstance(verdict, Exception):
        return "" if errors else f"DeepSpeed raises {verdict!r} and lint has no error"
    nowhere = kind in ("typo", "invent", "removed") and not key.startswith(("optimizer.params", "scheduler.params"))
    if nowhere and not any(f.key == key and f.level == "error" for f in findings):
        return f"{key} does nothing and lint does not say so"
    said = {f.key for f in findings}
    silent = {k for k in kept_differently(judged, verdict) if k not in said and k.rpartition(".")[0] not in said}
    if silent:
        return f"DeepSpeed keeps another value of {sorted(silent)} and lint is silent"
    early = [f for f in errors if f.code not in LATER]
    return f"DeepSpeed accepts, lint says {early}" if early else ""


@pytest.mark.parametrize("part", range(5))
def test_lint_agrees_with_deepspeed_on_mutated_raw_configs(part):
    wrong = []
    for number, name, kind, key, config in mutations(RAW, RAW_MUTATIONS // 5, part):
        findings = lint(config, framework="raw", world_size=RANKS)
        problem = agree(config, config, findings, kind, key)
        if problem:
            wrong.append((number, name, kind, key, problem))
    assert wrong == []


@pytest.mark.parametrize("part", range(3))
def test_lint_agrees_with_deepspeed_on_what_the_trainer_passes_on(part):
    wrong = []
    for number, name, kind, key, config in mutations(TRAINER, TRAINER_MUTATIONS // 3, 100 + part):
        findings = lint(config, framework="trainer", world_size=RANKS)
        try:
            view = through_trainer(config, None, world_size=RANKS)
        except Exception as error:  # noqa: BLE001 - reported below
            wrong.append((number, name, kind, key, f"through_trainer raises {error!r}"))
            continue
        if view.refusals:
            problem = "" if any(f.level == "error" for f in findings) else f"the Trainer raises {view.refusals}"
        else:
            problem = agree(config, _without(view.config, {*view.waiting, *view.leftover_autos}), findings, kind, key)
        if problem:
            wrong.append((number, name, kind, key, problem))
    assert wrong == []


def _without(config: dict, keys: set[str]) -> dict:
    config = copy.deepcopy(config)
    for block, key, dotted in places(config):
        if dotted in keys:
            del block[key]
    return config


def test_the_judge_can_disagree():
    """A lint that always says nothing, or always complains, does not pass."""
    good, bad = RAW["stage_1"], {**RAW["stage_1"], "zero_optimization": {"stage": 9}}
    assert agree(good, good, [], "value", "") == ""
    assert "no error" in agree(bad, bad, [], "value", "")
    complaint = SimpleNamespace(level="error", key="x", code="batch_equation")
    assert "accepts" in agree(good, good, [complaint], "value", "")
    ignored = {**RAW["stage_1"], "my_1_setting": 1}
    assert "does nothing" in agree(ignored, ignored, [], "invent", "my_1_setting")
