"""What the HF Trainer makes of a ds_config before DeepSpeed sees it.

The chain is run with the installed code: transformers' HfTrainerDeepSpeedConfig (process and finalize),
accelerate's DeepSpeedPlugin, then the fill-in of `Accelerator._prepare_deepspeed`. Only the arguments are
stand-ins: TrainingArguments itself would import and start far more. Its defaults are read from its source.
"""

import ast
import dataclasses
import functools
import importlib.util
import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_lib.config.tree import get, has, paths, put, without

HIDDEN_SIZE_KEYS = (
    "zero_optimization.reduce_bucket_size",
    "zero_optimization.stage3_prefetch_bucket_size",
    "zero_optimization.stage3_param_persistence_threshold",
)
"""The autos that need the model (HfTrainerDeepSpeedConfig.trainer_config_finalize)."""
STEP_KEYS = ("scheduler.params.total_num_steps", "scheduler.params.warmup_num_steps")
"""The autos that need the number of steps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mismatch:
    """One line of the Trainer's complaint: a key that is written and differs from an argument."""

    key: str
    written: Any
    argument: str
    """The Trainer's name for it, e.g. "max_grad_norm" or "adam_beta1+adam_beta2"."""
    argument_value: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerView:
    """The configuration that would reach `deepspeed.initialize`, and what went wrong on the way."""

    config: dict
    mismatches: tuple[Mismatch, ...] = ()
    leftover_autos: tuple[str, ...] = ()
    """Autos that nothing fills: accelerate raises on them."""
    waiting: tuple[str, ...] = ()
    """Autos that will be filled, but from a model or a step count that was not given here."""
    refusals: tuple[tuple[str, str], ...] = ()
    """(key, message) of what transformers or accelerate raises; the key is left out of `config`."""


class Arguments:
    """TrainingArguments as far as the integration reads them: what is given, else the class's own default."""

    def __init__(self, given: dict[str, Any] | None, world_size: int, assumed: dict[str, Any]) -> None:
        self.given = dict(given or {})
        self.assumed = assumed
        self.world_size = world_size

    def __getattr__(self, name: str) -> Any:
        for values in (self.given, self.assumed):
            if name in values:
                return values[name]
        defaults = trainer_defaults()
        if name not in defaults:
            raise AttributeError(name)
        return defaults[name]

    def get_warmup_steps(self, num_training_steps: int) -> int:
        """As TrainingArguments.get_warmup_steps: below 1 it is a share of the run."""
        if self.warmup_steps >= 1:
            return int(self.warmup_steps)
        return math.ceil(num_training_steps * self.warmup_steps)

    @property
    def mixed_precision(self) -> str:
        return "fp16" if self.fp16 else "bf16" if self.bf16 else "no"

    def gives(self, argument: str) -> bool:
        """Whether anything that this argument (in the Trainer's wording) is made from was given."""
        names = re.split(r"[+|]", argument.removesuffix(" (calculated)"))
        made_of = {"train_batch_size": ["per_device_train_batch_size"], "num_training_steps": ["max_steps"]}
        return any(part in self.given for name in names for part in made_of.get(name, [name]))


@functools.cache
def trainer_defaults() -> dict[str, Any]:
    """Field → default of the installed TrainingArguments, read from its source (importing it costs seconds)."""
    spec = importlib.util.find_spec("transformers")
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse((Path(spec.origin).parent / "training_args.py").read_text(encoding="utf-8"))
    body = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "TrainingArguments").body
    defaults: dict[str, Any] = {}
    for node in body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and isinstance(node.value, ast.Call):
            value = next((k.value for k in node.value.keywords if k.arg == "default"), None)
            defaults[node.target.id] = value.value if isinstance(value, ast.Constant) else None
    return defaults


def through_trainer(
    config: dict, arguments: dict[str, Any] | None, *, world_size: int, model_config: Any = None
) -> TrainerView:
    """Run the Trainer's chain over a copy of `config`.

    Args:
        arguments: TrainingArguments by name, as many as are known. model_config: an object with `hidden_size`
            (or text_config.hidden_size), or None when the model is not known.
    """
    model = _Model(model_config)
    refusals: list[tuple[str, str]] = []
    while True:
        try:
            view = _chain(config, arguments, world_size, model)
            return dataclasses.replace(view, refusals=(*refusals, *view.refusals))
        except Exception as error:  # noqa: BLE001 - the integration raises whatever it trips over
            keys = [dotted for dotted, _ in paths(config) if f"'{dotted}'" in str(error)]
            keys = keys or [_to_blame(config, error, lambda c: _chain(c, arguments, world_size, model))]
            refusals += [(key, f"{type(error).__name__}: {' '.join(str(error).split())}") for key in keys]
            if keys == [""]:
                return TrainerView(config=config, refusals=tuple(refusals))
            config = without(config, *keys)


def _chain(config: dict, arguments: dict[str, Any] | None, world_size: int, model: "_Model") -> TrainerView:
    """From the file to deepspeed.initialize. Raises what transformers and accelerate raise."""
    args = Arguments(arguments, world_size, _implied(config, arguments or {}, world_size))
    steps = args.max_steps if isinstance(args.max_steps, int) and args.max_steps > 0 else None
    needs = (HIDDEN_SIZE_KEYS if model.unknown else ()) + (STEP_KEYS if steps is None else ())
    waiting = tuple(key for key in needs if get(config, key) == "auto")
    with _integration(without(config, *waiting)) as hf:
        hf.trainer_config_process(args)
        plugin = _plugin(hf, args)
        _finalize(hf, args, model, steps or 0)
        filled, mismatches = hf.config, hf.mismatches
    if "optimizer" not in filled:
        filled["zero_allow_untested_optimizer"] = True  # transformers' deepspeed_optim_sched does this
    leftover = _fill_in(plugin, filled, args, model) if plugin is not None else []
    for key in waiting:
        filled = put(filled, key, "auto")
    parsed = [m for line in mismatches if (m := _parse_mismatch(line, config)) is not None]
    no_zero = (
        "zero_optimization",
        "accelerate raises ValueError: it wants a zero_optimization block, stage 0 included",
    )
    return TrainerView(
        config=filled,
        # The step keys are compared against a step count; without one there is nothing to compare.
        mismatches=tuple(m for m in parsed if steps is not None or m.key not in STEP_KEYS),
        leftover_autos=tuple(leftover),
        waiting=waiting,
        refusals=() if plugin is not None else (no_zero,),
    )


def _implied(config: dict, given: dict[str, Any], world_size: int) -> dict[str, Any]:
    """Arguments that nobody gave but that the JSON's own batch keys imply.

    Someone who writes train_batch_size and leaves the micro batch to "auto" has a per-device batch in mind that
    fits; the class default of 8 would only raise a false alarm.
    """
    keys = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    total, micro, steps = (config.get(key) for key in keys)
    implied: dict[str, Any] = {}
    if isinstance(steps, int) and steps > 0:
        implied["gradient_accumulation_steps"] = steps
    if isinstance(micro, int) and micro > 0:
        implied["per_device_train_batch_size"] = micro
    elif isinstance(total, int):
        rest = world_size * given.get("gradient_accumulation_steps", implied.get("gradient_accumulation_steps", 1))
        if rest and total > 0 and total % rest == 0:
            implied["per_device_train_batch_size"] = total // rest
    return implied


class _Model:
    """Stands for the model: trainer_config_finalize looks at `model.config` alone."""

    def __init__(self, config: Any) -> None:
        self.unknown = config is None
        if config is not None:
            self.config = config


@contextmanager
def _integration(config: dict) -> Iterator[Any]:
    """A live HfTrainerDeepSpeedConfig; afterwards transformers knows again whichever was live before.

    Creating one registers it globally, and that register decides whether from_pretrained uses zero.Init.
    """
    import transformers.integrations.deepspeed as integration

    before = integration._hf_deepspeed_config_weak_ref
    try:
        yield integration.HfTrainerDeepSpeedConfig(config)
    finally:
        integration._hf_deepspeed_config_weak_ref = before


def _plugin(hf: Any, args: Arguments) -> Any:
    """accelerate's plugin, which TrainingArguments makes; None where it would refuse for want of a ZeRO block."""
    from accelerate.utils import DeepSpeedPlugin

    if "zero_optimization" not in hf.config:
        return None
    plugin = DeepSpeedPlugin(hf_ds_config=hf)
    plugin.set_mixed_precision(args.mixed_precision)
    return plugin


def _finalize(hf: Any, args: Arguments, model: "_Model", steps: int) -> None:
    """The last step; it raises on mismatches, which are read from `hf.mismatches` instead."""
    try:
        hf.trainer_config_finalize(args, model, steps)
    except ValueError as error:
        if "mismatch TrainingArguments" not in str(error):
            raise


def _fill_in(plugin: Any, config: dict, args: Arguments, model: "_Model") -> list[str]:
    """What Accelerator._prepare_deepspeed fills in (accelerate 1.15); the autos that it would raise on."""
    micro = config.get("train_micro_batch_size_per_gpu")
    kwargs: dict[str, Any] = {
        "gradient_accumulation_steps": args.gradient_accumulation_steps,
        "gradient_clipping": 1.0,
        "zero_optimization.stage3_gather_16bit_weights_on_model_save": False,
        "train_micro_batch_size_per_gpu": micro if isinstance(micro, int) else args.per_device_train_batch_size,
    }
    # Unlike transformers, accelerate knows no text_config: it fills what is left from config.hidden_size alone.
    if not model.unknown and (hidden := getattr(model.config, "hidden_size", None)) is not None:
        values = (hidden * hidden, int(0.9 * hidden * hidden), 10 * hidden)
        kwargs |= dict(zip(HIDDEN_SIZE_KEYS, values, strict=True))
    leftover = []
    for key, value in list(paths(config)):
        if value == "auto" and key not in kwargs:
            leftover.append(key)
        elif value == "auto":
            plugin.fill_match(key, must_match=False, **kwargs)
    return leftover


def _to_blame(config: dict, error: Exception, run: Callable[[dict], Any]) -> str:
    """The deepest key without which the chain runs through, or at least trips over something else."""
    cured, moved = "", ""
    for dotted, _ in paths(config):
        try:
            run(without(config, dotted))
            cured = max(cured, dotted, key=lambda d: d.count(".") if d else -1)
        except Exception as other:  # noqa: BLE001 - compared with the first one
            if (type(other), str(other)) != (type(error), str(error)):
                moved = dotted
    return cured or moved


def _parse_mismatch(line: str, config: dict) -> Mismatch | None:
    """ "- ds bf16.enabled=True vs hf bf16|bf16_full_eval=False", as HfTrainerDeepSpeedConfig.fill_match words it."""
    match = re.match(r"- ds ([\w.]+)=(.*) vs hf (.+)=(.*)$", line)
    if match is None or not has(config, match[1]):
        return None
    return Mismatch(key=match[1], written=get(config, match[1]), argument=match[3], argument_value=_literal(match[4]))


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
