"""The installed DeepSpeed, asked quietly: import it, and let its own constructor judge a configuration.

No process group is started. DeepSpeedConfig reads the rank count from `deepspeed.comm`
(runtime/config.py, `DeepSpeedConfig.__init__`); for the time of one call that name is a stand-in.
"""

import contextlib
import copy
import functools
import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any


@functools.cache
def deepspeed_config_module() -> ModuleType:
    """`deepspeed.runtime.config`; what DeepSpeed prints while it is imported goes to stderr."""
    with contextlib.redirect_stdout(sys.stderr):
        import deepspeed.runtime.config as module
    return module


def deepspeed_version() -> str:
    deepspeed_config_module()
    import deepspeed

    return deepspeed.__version__


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What DeepSpeed's constructor made of a configuration."""

    parsed: Any = None
    """The DeepSpeedConfig, or None when it raised."""
    error: Exception | None = None


def ask_deepspeed(config: dict, *, world_size: int) -> Verdict:
    """Build a DeepSpeedConfig from a copy of `config` for `world_size` ranks.

    Args:
        config: a ds_config with every "auto" already replaced, or left for DeepSpeed to drop.
        world_size: ranks before tensor and sequence parallelism are taken out, at least 1.
    """
    module = deepspeed_config_module()
    # DeepSpeed writes defaults into nested blocks (get_data_efficiency_config), hence the copy.
    config = copy.deepcopy(config)
    with judging(world_size=_data_parallel_ranks(config, world_size)):
        try:
            return Verdict(parsed=module.DeepSpeedConfig(config))
        except Exception as error:  # noqa: BLE001 - it raises whatever its readers trip over
            return Verdict(error=error)


@contextlib.contextmanager
def standing_in(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Inside, `owner.name` is `value`; afterwards it is what it was."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextlib.contextmanager
def judging(*, world_size: int) -> Iterator[None]:
    """Inside: DeepSpeedConfig sees `world_size` ranks and a CUDA device, and does not log."""
    module = deepspeed_config_module()
    import deepspeed.runtime.swap_tensor.aio_config as aio
    from deepspeed.utils import logger

    ranks = SimpleNamespace(get_rank=lambda: 0, get_world_size=lambda *_: world_size)
    # aio.use_gds asserts a CUDA device; lint judges for the node that trains, not for this machine.
    cuda = SimpleNamespace(device_name=lambda *_: "cuda")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with standing_in(module, "dist", ranks), standing_in(aio, "get_accelerator", lambda: cuda):
            yield
    finally:
        logger.setLevel(level)


def _data_parallel_ranks(config: dict, world_size: int) -> int:
    """Ranks left for data parallelism. sequence_parallel_size is divided out by DeepSpeedConfig itself."""
    block = config.get("tensor_parallel")
    tensor_ranks = block.get("autotp_size", 1) if isinstance(block, dict) else 1
    if isinstance(tensor_ranks, int) and not isinstance(tensor_ranks, bool) and tensor_ranks > 1:
        return max(1, world_size // tensor_ranks)
    return world_size
