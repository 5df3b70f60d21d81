"""The few facts about a model that lint needs, from its config alone: nothing is built, nothing downloaded.

Exact counting on the real module tree is `course_lib.shapes`; here bounds are enough, and each says which way
it errs.
"""

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from course_lib.catalog import CatalogueEntry, catalogue, find_entry
from course_lib.config.numbers import is_number
from course_lib.errors import CourseError, nearest
from course_lib.files import read_json

_ATTENTION = (
    *("q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj"),
    *("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj"),
)
"""Names that stand once in a layer."""
_NEEDED = (
    ("hidden_size",),
    ("num_hidden_layers", "num_layers"),
    ("vocab_size",),
    ("intermediate_size", "ffn_hidden_size"),
)
"""Fields without which class defaults have to be asked for, each under the names that configs use."""
_EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFacts:
    """A model as its config describes it."""

    model_type: str
    config: Any
    """transformers' config object, or its fields as attributes: what the Trainer's integration reads hidden_size of."""
    hidden_size: int
    layers: int
    intermediate_size: int
    splits_query: bool
    """MLA with a query rank: q_a_proj and q_b_proj stand where others have q_proj."""
    experts: int
    """Routed experts per layer; 0 for a dense model."""
    largest_parameter: int
    """Elements of the largest single parameter, at least: embedding, MLP matrix, or one layer's fused experts."""

    def adapters_at_most(self, lora: dict[str, Any]) -> int:
        """Upper bound on LoRA elements: every target as wide as the MLP, in every layer, r·(in + out) each.

        A vision tower, embeddings or modules_to_save are not in it.
        """
        targets = lora.get("target_modules")
        names = ["all"] * 7 if targets is None or isinstance(targets, str) else [str(name) for name in targets]
        width = self.hidden_size + max(self.intermediate_size, 2 * self.hidden_size)
        # Attention stands once in a layer; anything else may stand once per expert.
        copies = sum(1 if name.rpartition(".")[2] in _ATTENTION else max(1, self.experts) for name in names)
        return int(lora.get("r", 8)) * width * copies * self.layers


def model_facts(model: Any) -> ModelFacts:
    """Facts of a catalogue name, a directory, a config.json or a dict {"model_type": …, "config": {…}}.

    The fields as written are used where they suffice; class defaults are asked of transformers, which takes seconds.
    Raises CourseError when the model is not known here.
    """
    model_type, fields = _written(model)
    config = _namespace(fields)
    if not all(any(hasattr(_text(config), name) for name in names) for names in _NEEDED):
        from course_lib.shapes.config import load_config

        config = load_config(model)
    text = _text(config)

    def number(*names: str) -> int:
        values = [getattr(text, name, None) for name in names]
        return next((int(v) for v in values if is_number(v)), 0)

    hidden, experts = number(*_NEEDED[0]), number(*_EXPERT_COUNTS)
    if not hidden:
        raise CourseError(f"the config of {model_type} has no hidden_size", where=str(model)[:60])
    expert_width = number("moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size")
    # transformers 5 keeps gate and up of all experts of a layer in one tensor (experts, 2·width, hidden).
    fused = experts * 2 * expert_width * hidden if experts > 1 else 0
    dense = number("intermediate_size", "ffn_hidden_size")
    return ModelFacts(
        model_type=model_type,
        config=config,
        hidden_size=hidden,
        # LongCat-Flash counts num_layers, each of which holds attention twice.
        layers=number("num_hidden_layers") or 2 * number("num_layers"),
        intermediate_size=max(dense, expert_width),
        splits_query=bool(number("q_lora_rank")),
        experts=experts if experts > 1 else 0,
        largest_parameter=max(number("vocab_size") * hidden, fused, dense * hidden),
    )


def _written(model: Any) -> tuple[str, dict[str, Any]]:
    """model_type and the fields that somebody wrote down. Raises CourseError for what names no model."""
    if isinstance(model, dict):
        values, where = model, "model"
    elif Path(str(model)).is_dir() or str(model).endswith(".json"):
        file = Path(str(model)) / "config.json" if Path(str(model)).is_dir() else Path(str(model))
        values, where = read_json(file), str(file)
    else:
        entry = find_entry(str(model)) or _by_folder_name(Path(str(model)).name)
        if entry is None:
            names = ", ".join(nearest(str(model), catalogue())) or "see course_lib/catalog"
            raise CourseError(f"no directory here and no catalogue name: '{model}'", fix=f"Nearest: {names}")
        return entry.model_type, entry.config
    if not isinstance(values, dict) or not isinstance(values.get("model_type"), str):
        raise CourseError("must be an object with 'model_type'", where=where)
    fields = values["config"] if isinstance(values.get("config"), dict) else values
    return values["model_type"], fields


def _by_folder_name(name: str) -> CatalogueEntry | None:
    """The entry whose HF id ends in this name: a directory that is not here yet is usually called so."""
    ends = {hub_id.rpartition("/")[2].lower(): entry for entry in catalogue().values() for hub_id in entry.hub_ids}
    return ends.get(name.lower())


def _namespace(fields: dict[str, Any]) -> SimpleNamespace:
    nested = {k: _namespace(v) if isinstance(v, dict) else v for k, v in fields.items() if isinstance(k, str)}
    return SimpleNamespace(**nested)


def _text(config: Any) -> Any:
    """The language model's config inside a multimodal one, itself for a text model."""
    config = getattr(config, "thinker_config", None) or config
    return getattr(config, "text_config", None) or config
