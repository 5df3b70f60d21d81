"""The optimizer and scheduler blocks: can they be built, and do they fight with the training arguments?

Schedulers and torch optimizers are really built, around one dummy parameter. DeepSpeed's own optimizers need a
GPU or a compiler, so only their signatures are asked.
"""

import contextlib
import inspect
import logging
from collections.abc import Callable, Iterator
from typing import Any

from course_lib.config.facts import Facts
from course_lib.config.findings import Edit, Finding, delete, found, set_to
from course_lib.config.installed import deepspeed_config_module, standing_in
from course_lib.config.numbers import is_number
from course_lib.errors import nearest

_POPPED = ("torch_adam", "adam_w_mode", "fp32_optimizer_states")
"""Adam parameters that the engine takes out before it calls the class (engine.get_optimizer_configuration)."""


def optimizer_findings(facts: Facts) -> list[Finding]:
    block = facts.final.get("optimizer")
    if not isinstance(block, dict):
        return []
    key, name, params = "optimizer.type", block.get("type"), block.get("params") or {}
    if name is None:
        text = "without a type the whole block is ignored"
        return [found("missing_key", "error", key, text, "Set optimizer.type", set_to(key, "AdamW"))]
    if not isinstance(name, str) or not isinstance(params, dict):
        return []
    if "max_grad_norm" in params:
        text = "not an optimizer parameter: the engine raises ValueError"
        key = "optimizer.params.max_grad_norm"
        return [found("misplaced_key", "error", key, text, "Use gradient_clipping", delete(key))]
    kind = _optimizer_class(facts, name, params)
    if kind is None:
        known = [*deepspeed_config_module().DEEPSPEED_OPTIMIZERS, *_torch_optimizers()]
        near = nearest(name, known, 3)
        fix = f"Nearest: {', '.join(near)}" if near else "Use AdamW"
        text = f"'{name}' is neither one of DeepSpeed's optimizers nor one of torch.optim"
        return [found("optimizer_refused", "error", key, text, fix, set_to(key, near[0] if near else "AdamW"))]
    return [*_builds(kind, params), *_untested(facts, name, kind), *_muon(facts, name), *_lamb(facts, name)]


def _optimizer_class(facts: Facts, name: str, params: dict) -> Any:
    """The class that the engine would call (engine._configure_basic_optimizer), or None for an unknown name."""
    import torch

    lower = name.lower()
    if lower not in deepspeed_config_module().DEEPSPEED_OPTIMIZERS:
        return getattr(torch.optim, name, None) if name in _torch_optimizers() else None
    on_cpu = facts.device("offload_optimizer") != "none"
    if lower in ("adam", "adamw"):
        if params.get("torch_adam"):
            return torch.optim.AdamW if lower == "adamw" or params.get("adam_w_mode", True) else torch.optim.Adam
        from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam

        return DeepSpeedCPUAdam if on_cpu else FusedAdam
    if lower == "adagrad" and not on_cpu:
        return torch.optim.Adagrad
    if lower == "lion":
        from deepspeed.ops.lion import DeepSpeedCPULion, FusedLion

        return DeepSpeedCPULion if on_cpu else FusedLion
    return lower  # muon, lamb, mup: nothing more is checked than the name


def _torch_optimizers() -> list[str]:
    import torch

    return [n for n, v in vars(torch.optim).items() if isinstance(v, type) and issubclass(v, torch.optim.Optimizer)]


def _builds(kind: Any, params: dict) -> list[Finding]:
    if isinstance(kind, str):
        return []
    arguments = {k: v for k, v in params.items() if k not in _POPPED}
    if kind.__module__.startswith("torch."):
        with _no_groups():
            return refused_parameters("optimizer", arguments, lambda values: kind([_dummy()], **values))
    signature = inspect.signature(kind.__init__)
    findings = refused_parameters("optimizer", arguments, lambda values: signature.bind(None, [], **values))
    for name in ("lr", "eps", "weight_decay"):
        if name in arguments and not is_number(arguments[name]):
            text = f"{arguments[name]!r} is not a number"
            key = f"optimizer.params.{name}"
            findings.append(
                found("wrong_type", "error", key, text, "Write a number without quotes", _number(key, arguments))
            )
    return findings


def _number(key: str, arguments: dict) -> Edit:
    try:
        return set_to(key, float(arguments[key.rpartition(".")[2]]))
    except (TypeError, ValueError):
        return delete(key)


def _untested(facts: Facts, name: str, kind: Any) -> list[Finding]:
    from deepspeed.runtime.zero.utils import ZERO_SUPPORTED_OPTIMIZERS

    known = isinstance(kind, str) or kind in ZERO_SUPPORTED_OPTIMIZERS
    if known or facts.stage == 0 or facts.value("zero_allow_untested_optimizer", False):
        return []
    text = f"ZeRO refuses {name} unless zero_allow_untested_optimizer is true (the engine asserts it)"
    edit = set_to("zero_allow_untested_optimizer", True)
    fix = "Set zero_allow_untested_optimizer: true, or use AdamW"
    return [found("optimizer_refused", "error", "optimizer.type", text, fix, edit)]


def _muon(facts: Facts, name: str) -> list[Finding]:
    if name.lower() != "muon" or facts.stage != 3 or not facts.zero("reduce_scatter"):
        return []
    key = "zero_optimization.reduce_scatter"
    text = "Muon and reduce_scatter exclude each other at stage 3; the optimizer raises ValueError"
    return [found("contradiction", "error", key, text, "Set reduce_scatter: false", set_to(key, False))]


def _lamb(facts: Facts, name: str) -> list[Finding]:
    if name.lower() != "lamb" or facts.parsed is None or facts.parsed.float16_config.loss_scale == 0:
        return []
    text = "LAMB needs dynamic loss scaling (loss_scale 0); the engine asserts it"
    return [found("contradiction", "error", "fp16.loss_scale", text, "Write 0", set_to("fp16.loss_scale", 0))]


def scheduler_findings(facts: Facts) -> list[Finding]:
    block = facts.final.get("scheduler")
    if not isinstance(block, dict):
        return []
    key, name = "scheduler.type", block.get("type")
    if name is None:
        text = "without a type the whole block is ignored"
        return [
            found("missing_key", "error", key, text, "Set scheduler.type, or delete the block", delete("scheduler"))
        ]
    import deepspeed.runtime.lr_schedules as schedules
    import torch

    kind = getattr(schedules, str(name), None) or getattr(torch.optim.lr_scheduler, str(name), None)
    if not isinstance(kind, type):
        near = nearest(str(name), schedules.VALID_LR_SCHEDULES, 3)
        text = f"DeepSpeed and torch know no LR scheduler '{name}'; the engine asserts it"
        edit = set_to(key, near[0]) if near else delete("scheduler")
        return [
            found("scheduler_refused", "error", key, text, f"Known: {', '.join(schedules.VALID_LR_SCHEDULES)}", edit)
        ]
    params = block.get("params")
    if not isinstance(params, dict):
        text = f"{name} is called with scheduler.params, and there are none: TypeError"
        return [found("missing_key", "error", "scheduler.params", text, "Add params", set_to("scheduler.params", {}))]
    stand_ins = {"total_num_steps": 100, "warmup_num_steps": 1}
    values = {k: stand_ins.get(k, v) if facts.is_open(f"scheduler.params.{k}") else v for k, v in params.items()}
    with _quiet():
        refused = refused_parameters("scheduler", values, lambda v: kind(_plain_optimizer(), **v))
    return refused or _rival_rate(facts, kind, params)


def _rival_rate(facts: Facts, kind: type, params: dict) -> list[Finding]:
    """A warm-up to warmup_max_lr replaces the optimizer's lr; its default does so too where it has one."""
    parameter = inspect.signature(kind.__init__).parameters.get("warmup_max_lr")
    if parameter is None:
        return []
    peak = params.get("warmup_max_lr", parameter.default)
    rate = facts.value("optimizer.params.lr", None)
    if rate is None and facts.trainer is not None and "optimizer" not in facts.final:
        rate = facts.argument("learning_rate")
    if not is_number(peak) or not is_number(rate) or peak == rate:
        return []
    key = "scheduler.params.warmup_max_lr"
    origin = "" if "warmup_max_lr" in params else ", the scheduler's default"
    text = f"the learning rate rises to {peak}{origin}; the optimizer's lr {rate} is never used"
    value = "auto" if facts.framework == "trainer" else rate
    return [found("contradiction", "warning", key, text, f"Write {value} here", set_to(key, value))]


def refused_parameters(block: str, params: dict, build: Callable[[dict], Any]) -> list[Finding]:
    """Findings for the parameters that `build` raises on, found by leaving one out at a time."""
    findings: list[Finding] = []
    code = f"{block}_refused"
    while True:
        try:
            build(params)
        except Exception as error:  # noqa: BLE001 - whatever the constructor raises is the finding
            text = f"{type(error).__name__}: {' '.join(str(error).split())}"
            guilty = next((k for k in params if not _raises_same(build, _left(params, k), error)), None)
            if guilty is None:
                findings.append(found(code, "error", f"{block}.params", text, "Add what is missing", delete(block)))
                return findings
            key = f"{block}.params.{guilty}"
            findings.append(found(code, "error", key, text, f"Change or delete {guilty}", delete(key)))
            params = _left(params, guilty)
        else:
            return findings


def _left(params: dict, name: str) -> dict:
    return {k: v for k, v in params.items() if k != name}


def _raises_same(build: Callable[[dict], Any], params: dict, error: Exception) -> bool:
    try:
        build(params)
    except Exception as again:  # noqa: BLE001 - compared below
        return (type(again), str(again)) == (type(error), str(error))
    return False


def _dummy() -> Any:
    import torch

    return torch.nn.Parameter(torch.zeros(1))


def _plain_optimizer() -> Any:
    """A torch Optimizer with one group, for a scheduler to steer. Building a real one imports the compiler (2 s)."""
    import torch

    class Plain(torch.optim.Optimizer):
        def __init__(self) -> None:
            self.defaults = {"lr": 1e-3, "betas": (0.9, 0.999), "momentum": 0.9}
            self.param_groups = [{"params": [_dummy()], **self.defaults}]
            self.state = {}

        def step(self, closure: Any = None) -> None:
            """Nothing to do."""

    return Plain()


@contextlib.contextmanager
def _no_groups() -> Iterator[None]:
    """Inside, torch optimizers check their arguments and stop there: adding a group imports the compiler."""
    import torch

    with standing_in(torch.optim.Optimizer, "add_param_group", lambda self, group: None):
        yield


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    from deepspeed.utils import logger

    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
