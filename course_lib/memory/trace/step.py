"""One forward and backward of a short model on meta tensors, cut into segments at block boundaries.

Not here: giving the segments their real number of layers (expand.py), what the training engine adds (engine/).
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from course_lib.memory.inputs import make_batch
from course_lib.memory.trace.kernels import cuda_kernels
from course_lib.memory.trace.recorder import Recorder

if TYPE_CHECKING:
    from course_lib.memory.case import MemoryCase
    from course_lib.shapes.parameters import ModelShape


@dataclass(frozen=True, slots=True)
class Boundary:
    """A block begins: `stage` is F (forward) or B (backward), `at` its place in the short stack."""

    stage: str
    stack: str
    at: int


@dataclass(frozen=True, slots=True)
class GradientReady:
    """A parameter's gradient is complete; `slot` holds it."""

    template: int
    slot: int


@dataclass(frozen=True, slots=True)
class ModuleEdge:
    """A module that owns parameters is entered or left, in forward (again when recomputed) or in backward."""

    templates: tuple[int, ...]
    enter: bool
    forward: bool
    recomputing: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTrace:
    """Events of one step of the short model; see recorder.py for their form."""

    events: list[tuple]
    sizes: list[int]
    operations: list[str]
    batch_bytes: int


LOSS_BEGINS = "loss_begins"
FORWARD_ENDS = "forward_ends"
BACKWARD_ENDS = "backward_ends"


def trace_step(shape: ModelShape, case: MemoryCase, *, memory_efficient_linear: bool, edges: bool) -> StepTrace:
    """Run one training step of `shape.short` under a Recorder.

    Args:
        memory_efficient_linear: DeepSpeed stage 3 replaces F.linear. edges: also mark modules that own parameters
            (needed where parameters are fetched and released: several ranks or parameters on the CPU).
    """
    model = shape.short
    _prepare(model, case)
    batch = make_batch(case, shape.config, device="cpu", pixel_device="meta")
    recorder = Recorder()
    for tensors in (model.parameters(), model.buffers(), batch.values()):
        recorder.ignore(tensors)
    with contextlib.ExitStack() as stack, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stack.enter_context(_boundaries(shape, recorder))
        stack.enter_context(_gradient_hooks(model, recorder))
        stack.enter_context(_loss_mark(model, recorder))
        if edges:
            stack.enter_context(_module_edges(model, recorder))
        stack.enter_context(
            cuda_kernels(memory_efficient_linear=memory_efficient_linear, quantized=_quantized(shape, case))
        )
        stack.enter_context(recorder)
        loss, output = forward_pass(model, batch, case, at_logits=lambda: recorder.mark(LOSS_BEGINS))
        if not case.outputs_kept:
            del output
        recorder.mark(FORWARD_ENDS)
        # Autograd runs backward on a thread of its own, which gets a cuBLAS handle of its own.
        recorder.awaits_matmul = True
        loss.backward()
        recorder.mark(BACKWARD_ENDS)
        events = list(recorder.events)
    for parameter in model.parameters():
        parameter.grad = None
    return StepTrace(
        events=events,
        sizes=recorder.sizes,
        operations=recorder.operations,
        batch_bytes=sum(t.untyped_storage().nbytes() for t in batch.values()),
    )


def forward_pass(model: Any, batch: dict[str, Any], case: MemoryCase, *, at_logits: Any = None) -> tuple[Any, Any]:
    """Loss and output of one batch, as the case computes them; `at_logits` is called when the logits are done."""
    if case.loss != "supervised_positions":
        output = model(**batch, use_cache=False)
        return output.loss, output
    from course_lib.models.supervised_loss import supervised_loss

    hook = model.register_forward_hook(lambda *_: at_logits()) if at_logits else None
    try:
        return supervised_loss(model, {**batch, "use_cache": False})
    finally:
        if hook is not None:
            hook.remove()


def trace_evaluation(shape: ModelShape, case: MemoryCase) -> StepTrace:
    """The forward of an evaluation batch (same size, labels given, no gradients) of the short model."""
    model = shape.short
    model.eval()
    batch = make_batch(case, shape.config, device="cpu", pixel_device="meta")
    recorder = Recorder()
    for tensors in (model.parameters(), model.buffers(), batch.values()):
        recorder.ignore(tensors)
    with contextlib.ExitStack() as stack, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stack.enter_context(_boundaries(shape, recorder))
        stack.enter_context(cuda_kernels(memory_efficient_linear=False, quantized=_quantized(shape, case)))
        stack.enter_context(torch.no_grad())
        stack.enter_context(recorder)
        output = forward_pass(model, batch, case)
        recorder.mark(FORWARD_ENDS)
        events = list(recorder.events)
        del output
    model.train()
    return StepTrace(events=events, sizes=recorder.sizes, operations=recorder.operations, batch_bytes=0)


def _quantized(shape: ModelShape, case: MemoryCase) -> frozenset[int]:
    """ids of the short model's weights that the case quantizes."""
    if case.quantization is None:
        return frozenset()
    templates = {p.template for p in shape.parameters if p.linear}
    return frozenset(id(p) for i, p in enumerate(shape.short.parameters()) if i in templates)


def _prepare(model: torch.nn.Module, case: MemoryCase) -> None:
    """As a run would: adapters cast to the compute dtype by the engine, checkpointing on, inputs requiring grad."""
    dtype = getattr(torch, case.dtype)
    for parameter in model.parameters():
        # deepspeed.initialize casts the whole module (engine._cast_module_mixed_precision).
        if parameter.is_floating_point() and parameter.dtype != dtype:
            parameter.data = parameter.data.to(dtype)
    model.config.use_cache = False
    if case.gradient_checkpointing:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            model.enable_input_require_grads()
    model.train()


@contextlib.contextmanager
def _boundaries(shape: ModelShape, recorder: Recorder) -> Iterator[None]:
    """Mark where each block's forward and backward begin, and the regions around the stacks."""
    handles = []
    for stack in shape.stacks:
        layers = shape.short.get_submodule(shape.stack_path(stack.name))
        for at, layer in enumerate(layers):
            handles += _watch_block(layer, recorder, stack.name, at)
        handles.append(layers[-1].register_forward_hook(_end_of_stack(recorder, stack.name)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _watch_block(layer: torch.nn.Module, recorder: Recorder, stack: str, at: int) -> list[Any]:
    entered = {"done": False}

    def before(module: Any, args: tuple, kwargs: dict) -> None:
        # Under checkpointing the block is entered again in backward; that belongs to its backward segment.
        if entered["done"]:
            return
        entered["done"] = True
        recorder.mark(Boundary("F", stack, at))
        hidden = args[0] if args else kwargs.get("hidden_states")
        if at == 0 and isinstance(hidden, torch.Tensor) and hidden.requires_grad:
            hidden.register_hook(lambda grad: recorder.mark(Boundary("end", stack, -1)))

    def after(module: Any, args: tuple, output: Any) -> None:
        hidden = output[0] if isinstance(output, tuple) else output
        if torch._C._current_graph_task_id() == -1 and hidden.requires_grad:
            hidden.register_hook(lambda grad: recorder.mark(Boundary("B", stack, at)))

    return [layer.register_forward_pre_hook(before, with_kwargs=True), layer.register_forward_hook(after)]


def _end_of_stack(recorder: Recorder, stack: str) -> Any:
    done = {"once": False}

    def mark(*_: Any) -> None:
        if not done["once"]:
            done["once"] = True
            recorder.mark(Boundary("end", stack, -1))

    return mark


@contextlib.contextmanager
def _loss_mark(model: torch.nn.Module, recorder: Recorder) -> Iterator[None]:
    """Mark where the logits are done and the loss begins (transformers calls `self.loss_function`)."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    original = base.loss_function

    def marked(*args: Any, **kwargs: Any) -> Any:
        recorder.mark(LOSS_BEGINS)
        return original(*args, **kwargs)

    base.loss_function = marked
    try:
        yield
    finally:
        base.loss_function = original


@contextlib.contextmanager
def _gradient_hooks(model: torch.nn.Module, recorder: Recorder) -> Iterator[None]:
    handles = []
    for template, parameter in enumerate(model.parameters()):
        if not parameter.requires_grad:
            continue

        def ready(p: torch.Tensor, template: int = template) -> None:
            slot = recorder.slot_of(p.grad)
            if slot is not None:
                recorder.mark(GradientReady(template, slot))

        handles.append(parameter.register_post_accumulate_grad_hook(ready))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def _module_edges(model: torch.nn.Module, recorder: Recorder) -> Iterator[None]:
    """Marks where DeepSpeed's hooks run around modules that own parameters (`zero/parameter_offload.py`)."""
    number = {id(p): i for i, p in enumerate(model.parameters())}
    handles = []
    for module in model.modules():
        own = tuple(number[id(p)] for p in module.parameters(recurse=False))
        if own:
            handles += _edge_hooks(module, own, recorder)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Mark(torch.autograd.Function):
    """Identity that calls `note` in backward; like DeepSpeed's hooks it allocates nothing."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, note: Any) -> torch.Tensor:
        ctx.note = note
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple:
        ctx.note()
        return grad, None


def _edge_hooks(module: torch.nn.Module, own: tuple[int, ...], recorder: Recorder) -> list[Any]:
    def note(*, enter: bool, forward: bool) -> None:
        recomputing = forward and torch._C._current_graph_task_id() != -1
        recorder.mark(ModuleEdge(own, enter, forward, recomputing))

    def before(_: Any, args: tuple) -> tuple:
        note(enter=True, forward=True)
        return tuple(
            _Mark.apply(a, lambda: note(enter=False, forward=False))
            if isinstance(a, torch.Tensor) and a.requires_grad
            else a
            for a in args
        )

    def after(_: Any, args: tuple, output: Any) -> Any:
        note(enter=False, forward=True)
        if isinstance(output, torch.Tensor) and output.requires_grad:
            return _Mark.apply(output, lambda: note(enter=True, forward=False))
        return output

    return [module.register_forward_pre_hook(before), module.register_forward_hook(after)]
