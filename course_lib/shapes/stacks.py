"""Layer stacks: which layers of a config are alike, and a shorter config that has one of each kind.

A 70B model is 80 times the same block. Building and tracing one block of each kind gives every number of the whole,
if the shorter model keeps what makes a layer special: its kind, being first, being last.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from course_lib.shapes.config import text_config, vision_config

if TYPE_CHECKING:
    from transformers import PretrainedConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Stack:
    """One stack of layers: `chosen` layers stand for all `depth` of them."""

    name: str
    """`text` or `vision`."""
    depth: int
    chosen: tuple[int, ...]
    """Real indices of the layers that the short model has, ascending."""
    stands_for: tuple[int, ...]
    """For each real layer the position in `chosen` that stands for it; first and last stand for themselves alone."""

    def counts(self) -> tuple[int, ...]:
        """How many real layers each chosen layer stands for."""
        return tuple(sum(1 for p in self.stands_for if p == position) for position in range(len(self.chosen)))


def text_depth(text: PretrainedConfig) -> int:
    """Blocks of the language model. LongCat's `num_hidden_layers` counts attentions, two in each block."""
    return text.num_layers if text.model_type == "longcat_flash" else text.num_hidden_layers


def text_kinds(config: PretrainedConfig) -> list[Hashable]:
    """What distinguishes each layer of the language model (attention type, dense or experts, deepstack)."""
    text = text_config(config)
    depth = text_depth(text)
    types = getattr(text, "layer_types", None) or [None] * depth
    vision = vision_config(config)
    deepstack = len(getattr(vision, "deepstack_visual_indexes", None) or ())
    # A layer that adds deepstack features is its own kind: each adds another feature.
    return [
        (types[i] if i < len(types) else None, _is_dense(text, i), i if i < deepstack else None) for i in range(depth)
    ]


def vision_kinds(config: PretrainedConfig) -> list[Hashable]:
    """What distinguishes each block of the vision tower (full or window attention, followed by a deepstack merger)."""
    vision = vision_config(config)
    if vision is None or not isinstance(getattr(vision, "depth", None), int):
        return []
    full = set(getattr(vision, "fullatt_block_indexes", None) or ())
    deepstack = list(getattr(vision, "deepstack_visual_indexes", None) or ())
    return [(i in full, i if i in deepstack else None) for i in range(vision.depth)]


def plan_stack(name: str, kinds: list[Hashable], *, whole_prefix: bool) -> Stack:
    """Choose the first layers, one later layer of each kind, and the last.

    Args:
        whole_prefix: every layer up to the one where the last new kind appears stands for itself. In a hybrid model
            with adapters on one kind only, layers before the first adapter carry no gradient; later ones do.
    """
    depth = len(kinds)
    prefix = max((kinds.index(kind) for kind in set(kinds)), default=-1) if whole_prefix else 0
    own = {i for i in range(depth) if i <= prefix or i == depth - 1}
    inner: dict[Hashable, int] = {}
    for index in range(depth):
        if index not in own:
            inner.setdefault(kinds[index], index)
    chosen = sorted(own | set(inner.values()))
    position = {real: at for at, real in enumerate(chosen)}
    stands_for = [position[i if i in own else inner[kinds[i]]] for i in range(depth)]
    return Stack(name=name, depth=depth, chosen=tuple(chosen), stands_for=tuple(stands_for))


def shorten(config: PretrainedConfig, *, whole: bool = False) -> tuple[PretrainedConfig, list[Stack]]:
    """A copy of `config` with only the chosen layers, and the stacks that say what they stand for.

    `whole` keeps every layer (used where a setting singles layers out by number).
    """
    short = copy.deepcopy(config)
    stacks = [plan_stack("text", text_kinds(config), whole_prefix=True)]
    if vision_kinds(config):
        stacks.append(plan_stack("vision", vision_kinds(config), whole_prefix=False))
    if whole:
        stacks = [
            Stack(name=s.name, depth=s.depth, chosen=tuple(range(s.depth)), stands_for=tuple(range(s.depth)))
            for s in stacks
        ]
        return short, stacks
    _shorten_text(text_config(short), stacks[0].chosen)
    if len(stacks) > 1:
        _shorten_vision(vision_config(short), stacks[1].chosen)
    return short, stacks


def _is_dense(text: PretrainedConfig, index: int) -> bool:
    """Whether layer `index` has a dense MLP in a mixture-of-experts model (Qwen-MoE's and DeepSeek's rules)."""
    if index in (getattr(text, "mlp_only_layers", None) or ()):
        return True
    step = getattr(text, "decoder_sparse_step", None)
    if step and (index + 1) % step:
        return True
    return index < (getattr(text, "first_k_dense_replace", None) or 0)


def _shorten_text(text: PretrainedConfig, chosen: tuple[int, ...]) -> None:
    dense = [at for at, real in enumerate(chosen) if _is_dense(text, real)]
    if getattr(text, "layer_types", None):
        text.layer_types = [text.layer_types[real] for real in chosen]
    if getattr(text, "mlp_only_layers", None) is not None:
        text.mlp_only_layers = dense
    if getattr(text, "decoder_sparse_step", None):
        text.decoder_sparse_step = 1
    if getattr(text, "first_k_dense_replace", None):
        text.first_k_dense_replace = len(dense)
    if text.model_type == "longcat_flash":
        text.num_layers = len(chosen)
    else:
        text.num_hidden_layers = len(chosen)


def _shorten_vision(vision: PretrainedConfig, chosen: tuple[int, ...]) -> None:
    for key in ("fullatt_block_indexes", "deepstack_visual_indexes"):
        indexes = getattr(vision, key, None)
        if indexes:
            setattr(vision, key, [at for at, real in enumerate(chosen) if real in set(indexes)])
    vision.depth = len(chosen)
