"""The first-step check: does LoRA train the way LoRA must?

lora_B starts at zero, so until the first update with a learning rate above zero the gradient of every lora_A is
exactly zero and that of every lora_B is not; after it, both have gradients. A warm-up whose first rate is 0 moves
that moment by a step and is no fault. A and B both zero, or B random at the start, is a bug, and so is a
checkpointing set-up through which no gradient flows. Source: Hu et al., LoRA (arXiv 2106.09685) §4.1.
"""

from collections.abc import Callable

import torch
from torch import nn

from course_lib.errors import FINDING, CourseError


class FirstStepCheck:
    """Watches gradients by hooks on the adapters' parameters, from the first backward to the one after the update.

    Hooks see the gradient on this rank before DeepSpeed reduces and frees it, under every ZeRO stage. Call
    `after_backward(updates_done)` once per backward; it removes the hooks when both halves have been seen.
    """

    def __init__(self, model: nn.Module, say: Callable[[str], None]) -> None:
        self.say = say
        self.finished = False
        self._largest: dict[str, float] = {}
        self._names = [name for name, p in model.named_parameters() if p.requires_grad and ".lora_" in name]
        if not self._names:
            raise CourseError("the model has no trainable LoRA parameter", where="first step", exit_code=FINDING)
        parameters = dict(model.named_parameters())
        self._hooks = [parameters[name].register_hook(self._watch(name)) for name in self._names]

    def _watch(self, name: str):
        def hook(gradient: torch.Tensor) -> None:
            largest = gradient.detach().abs().max().item() if gradient.numel() else 0.0
            self._largest[name] = max(largest, self._largest.get(name, 0.0))

        return hook

    def after_backward(self, updates_done: int) -> None:
        """Judge the gradients of the backward that just ended.

        Args:
            updates_done: optimizer updates with a learning rate above zero before this backward.

        Raises CourseError naming the tensors that are wrong and the usual cause.
        """
        if self.finished:
            return
        kinds = {kind: [n for n in self._names if f".lora_{kind}." in n] for kind in "AB"}
        zero = {kind: [n for n in names if not self._largest.get(n, 0.0)] for kind, names in kinds.items()}
        _refuse(
            zero["B"],
            "lora_B has no gradient",
            "With gradient checkpointing call enable_input_require_grads(); check that labels are not all -100, "
            "and that lora_A is not zero too (init_lora_weights)",
        )
        if updates_done == 0:
            moving = [name for name in kinds["A"] if name not in zero["A"]]
            _refuse(
                moving,
                "lora_A has a gradient before the first update",
                "lora_B must start at zero: check init_lora_weights",
            )
        else:
            _refuse(
                zero["A"],
                "lora_A has no gradient after the first update",
                "lora_B did not move: check the optimizer's parameters",
            )
            self._finish(kinds)
        self._largest.clear()

    def _finish(self, kinds: dict[str, list[str]]) -> None:
        for hook in self._hooks:
            hook.remove()
        self.finished = True
        self.say(
            f"first-step check passed: {len(kinds['A'])} lora_A gradients exactly zero until the first update, "
            f"all {len(self._names)} adapter gradients above zero after it"
        )


def _refuse(names: list[str], what: str, fix: str) -> None:
    if names:
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        raise CourseError(f"{what}: {shown}", where="first step", fix=fix, exit_code=FINDING)
