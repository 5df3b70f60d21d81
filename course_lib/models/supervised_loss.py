"""Cross-entropy where a label stands, and logits nowhere else.

A causal model's own loss projects every position onto the vocabulary: positions × V logits, kept in the model's
dtype, in fp32 and once more as a gradient. In a grounding sample a few dozen of thousands of positions carry a
label. `logits_to_keep`, which transformers' models take, projects only those; loss and gradients are the same.
"""

from typing import Any

import torch
from torch import nn

IGNORED = -100
"""The label of a position that is not trained on (torch's and transformers' convention)."""


def supervised_positions(labels: torch.Tensor) -> torch.Tensor:
    """Positions whose logits are needed: int64 (P,), ascending, shared by the rows of the batch.

    Args:
        labels: int64 (B, S), IGNORED where nothing is to be learnt. Position p predicts label p + 1.
    """
    return (labels[:, 1:] != IGNORED).any(dim=0).nonzero(as_tuple=True)[0]


def supervised_loss(model: nn.Module, inputs: dict[str, Any], num_items_in_batch: torch.Tensor | int | None = None):
    """Loss of one batch, with the model called once on everything and `lm_head` only where a label stands.

    Args:
        model: a causal model of transformers, bare or inside peft or a DeepSpeed engine.
        inputs: what the model takes, labels (B, S) among them. num_items_in_batch: supervised tokens of the whole
            step over all ranks, as Trainer counts them; None: the mean over this batch.

    Returns: (loss, outputs); outputs.logits is (B, P, V). Raises ValueError when no position has a label: the
    loss would be 0/0, and a rank that skips its backward would leave the others waiting.
    """
    inputs = dict(inputs)
    labels = inputs.pop("labels")
    positions = supervised_positions(labels)
    if not len(positions):
        raise ValueError("no position of this batch has a label: every label is -100")
    outputs = model(**inputs, logits_to_keep=positions)
    targets = labels[:, 1:][:, positions].flatten()
    # fp32 as in transformers' ForCausalLMLoss: bf16 has too few digits for a softmax over a vocabulary.
    total = nn.functional.cross_entropy(
        outputs.logits.float().flatten(0, 1), targets, ignore_index=IGNORED, reduction="sum"
    )
    count = (targets != IGNORED).sum() if num_items_in_batch is None else num_items_in_batch
    return total / count, outputs
