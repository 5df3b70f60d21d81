"""The few facts about a model that lint needs, from its config alone: nothing is built, nothing downloaded.

Exact counting on the real module tree is `course_lib.shapes`; here bounds are enough, and each says which way
it errs.
"""

from dataclasses import dataclass
from typing import Any

from course_lib.errors import CourseError

_ATTENTION = (
    *("q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj"),
    *("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj"),
)
"""Names that stand once in a layer."""
_EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFacts:
    """A model as its config describes it."""

    model_type: str
    config: Any
    """The transformers config object; the Trainer's integration reads hidden_size from it."""
    hidden_size: int
    layers: int
    intermediate_size: int
    experts: int
    """Routed experts per layer; 0 for a dense model."""
    largest_parameter: int
    """Elements of the largest single parameter, at least: embedding, MLP matrix, or one layer's fused experts."""

    def adapters_at_most(self, lora: dict[str, Any]) -> int:
        """Upper bound on LoRA elements: every target as wide as the MLP, in every layer, r·(in + out) each.

        Embeddings or modules_to_save are not in it.
        """
        targets = lora.get("target_modules")
        names = ["all"] * 7 if targets is None or isinstance(targets, str) else [str(name) for name in targets]
        width = self.hidden_size + max(self.intermediate_size, 2 * self.hidden_size)
        # Attention stands once in a layer; anything else may stand once per expert.
        copies = sum(1 if name.rpartition(".")[2] in _ATTENTION else max(1, self.experts) for name in names)
        return int(lora.get("r", 8)) * width * copies * self.layers


def model_facts(model: Any) -> ModelFacts:
    """Facts of a catalogue name, a directory, a config.json or a dict {"model_type": …, "config": {…}}.

    Raises CourseError when the model is not known here.
    """
    from course_lib.shapes.config import load_config, text_config

    config = load_config(model)
    text = text_config(config)

    def number(*names: str) -> int:
        values = [getattr(text, name, None) for name in names]
        return next((int(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool)), 0)

    hidden, experts = number("hidden_size"), number(*_EXPERT_COUNTS)
    if not hidden:
        raise CourseError(f"the config of {config.model_type} has no hidden_size", where=str(model))
    expert_width = number("moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size")
    # transformers 5 keeps gate and up of all experts of a layer in one tensor (experts, 2·width, hidden).
    fused = experts * 2 * expert_width * hidden if experts > 1 else 0
    dense = number("intermediate_size", "ffn_hidden_size")
    return ModelFacts(
        model_type=config.model_type,
        config=config,
        hidden_size=hidden,
        layers=number("num_hidden_layers", "num_layers"),
        intermediate_size=max(dense, expert_width),
        experts=experts if experts > 1 else 0,
        largest_parameter=max(number("vocab_size") * hidden, fused, dense * hidden),
    )
