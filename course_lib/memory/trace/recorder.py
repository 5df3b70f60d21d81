"""Every storage that aten operations make and drop, in order: the raw material of the activation account.

Tensors on the meta device carry shapes only. Tensors on the CPU carry real values: ids, positions, grids and masks
that model code reads (`.tolist()`, boolean indexing). An operation that mixes both runs on meta; both count as GPU
memory, because in a run both live there.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

ALLOC, FREE, MARK = 0, 1, 2
FIRST_MATMUL = "first_matmul"


class Recorder(TorchDispatchMode):
    """A dispatch mode whose `events` are (ALLOC, slot, bytes), (FREE, slot) and (MARK, label) tuples.

    Storages known before (`ignore`) and views of known storages make no event. A storage's FREE comes when its last
    reference goes, exactly where the CUDA allocator would get the block back on a single stream.
    """

    def __init__(self) -> None:
        super().__init__()
        self.events: list[tuple] = []
        self.sizes: list[int] = []
        self.operations: list[str] = []
        self._slots: dict[int, int] = {}
        self._known: dict[int, Any] = {}
        self._watch: dict[int, Any] = {}
        self.awaits_matmul = True
        """True until the running pass meets its first matrix product, where cuBLAS takes its workspace."""

    def ignore(self, tensors: Any) -> None:
        """Count none of these tensors: weights, buffers, the batch."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            self._known[storage._cdata] = storage

    def mark(self, label: Any) -> None:
        """Put a label between events."""
        self.events.append((MARK, label))

    def slot_of(self, tensor: torch.Tensor) -> int | None:
        """The slot that `tensor`'s storage was recorded under, or None."""
        return self._slots.get(tensor.untyped_storage()._cdata)

    def scratch(self, nbytes: int) -> None:
        """Record memory that a kernel takes and gives back inside one operation."""
        if nbytes > 0:
            slot = self._new_slot(nbytes, "scratch")
            self.events.append((FREE, slot))

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._to_copy.default and not args[0].is_meta and kwargs.get("device") == _META:
            # On a GPU this copy would not happen: ids and masks are there already. Keep their values.
            kwargs = {k: v for k, v in kwargs.items() if k not in ("device", "non_blocking")}
            if kwargs.get("dtype") in (None, args[0].dtype):
                return args[0]
        elif _mixes_devices(args, kwargs):
            listed = _shadow_index if func in _INDEXING else _shadow
            args = tuple(_to_meta(a, listed) for a in args)
            kwargs = {k: _to_meta(v, listed) for k, v in kwargs.items()}
        if func is _aten.add.Tensor and _accumulates_in_place(args):
            return args[0].add_(args[1])
        out = _run(func, args, kwargs)
        if isinstance(out, torch.Tensor):
            self._note(out, func)
        elif isinstance(out, (tuple, list)):
            for item in out:
                if isinstance(item, torch.Tensor):
                    self._note(item, func)
        if self.awaits_matmul and func in _MATMULS:
            self.awaits_matmul = False
            self.mark(FIRST_MATMUL)
        if func in _SCRATCH:
            self.scratch(_SCRATCH[func](out))
        return out

    def _note(self, tensor: torch.Tensor, func: Any) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._slots or key in self._known:
            return
        slot = self._new_slot(storage.nbytes(), func.__name__)
        self._slots[key] = slot

        def gone(_: Any, key: int = key, slot: int = slot) -> None:
            self._slots.pop(key, None)
            self.events.append((FREE, slot))

        self._watch[slot] = weakref.ref(storage, gone)

    def _new_slot(self, nbytes: int, operation: str) -> int:
        slot = len(self.sizes)
        self.sizes.append(nbytes)
        self.operations.append(operation)
        self.events.append((ALLOC, slot, nbytes))
        return slot


_MADE: dict[Any, tuple | None] = {}
_MADE_LIMIT = 50_000


def _run(func: Any, args: tuple, kwargs: dict) -> Any:
    """`func(*args, **kwargs)` on meta tensors, shapes remembered.

    Layers repeat the same operations on the same shapes. What a pure operation made once is made again as an empty
    tensor of that shape, without asking torch's Python meta kernels (0.1 ms each).
    """
    key = _key(func, args, kwargs)
    if key is None:
        return func(*args, **kwargs)
    recipe = _MADE.get(key, key)
    if recipe is key:
        out = func(*args, **kwargs)
        if len(_MADE) > _MADE_LIMIT:
            _MADE.clear()
        _MADE[key] = _recipe(out, args)
        return out
    if recipe is None:
        return func(*args, **kwargs)
    made = [torch.empty_strided(*shape, dtype=dtype, device=_META) for shape, dtype in recipe[1]]
    return made[0] if recipe[0] else tuple(made)


def _recipe(out: Any, args: tuple) -> tuple | None:
    """(one tensor?, [((sizes, strides), dtype)]) when fresh meta tensors of that form are all that came out.

    A few operations alias without saying so in their schema (_unsafe_view): their outcome is not fresh.
    """
    given = {item.untyped_storage()._cdata for value in args for item in _tensors(value)}
    one = isinstance(out, torch.Tensor)
    tensors = (out,) if one else out
    if not isinstance(tensors, tuple) or not tensors:
        return None
    forms = []
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor) or not tensor.is_meta or tensor.storage_offset():
            return None
        if tensor.untyped_storage()._cdata in given:
            return None
        shape = (tuple(tensor.shape), tensor.stride())
        if torch.empty_strided(*shape, dtype=tensor.dtype, device=_META).untyped_storage().nbytes() != (
            tensor.untyped_storage().nbytes()
        ):
            return None
        forms.append((shape, tensor.dtype))
    return one, tuple(forms)


def _tensors(value: Any) -> list[torch.Tensor]:
    items = value if isinstance(value, (tuple, list)) else (value,)
    return [item for item in items if isinstance(item, torch.Tensor)]


def _key(func: Any, args: tuple, kwargs: dict) -> Any:
    """What the outcome of a pure operation depends on; None when it may alias, change or read something."""
    pure = _PURE.get(func)
    if pure is None:
        schema = func._schema
        pure = _PURE[func] = not schema.is_mutable and all(r.alias_info is None for r in schema.returns)
    if not pure:
        return None
    try:
        key = (func, tuple(map(_signature, args)), tuple((k, _signature(v)) for k, v in kwargs.items()))
        hash(key)
    except TypeError:
        return None
    return None if _ON_CPU in key[1] else key


def _signature(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (value.shape, value.stride(), value.dtype) if value.is_meta else _ON_CPU
    if isinstance(value, (tuple, list)):
        items = tuple(map(_signature, value))
        return _ON_CPU if _ON_CPU in items else items
    # 1, 1.0 and True are equal as keys and not to an operation.
    return (type(value), value)


_ON_CPU = "a tensor with values"
_PURE: dict[Any, bool] = {}


def _accumulates_in_place(args: tuple) -> bool:
    """Whether autograd would sum this gradient into its first term's memory (`InputBuffer::accumulate`).

    It does when nobody else holds that term; under a dispatch mode torch never does, so the recorder does it. The
    counts are those of a tensor that only autograd holds, seen from inside a dispatch: 4 for it, 2 for its storage.
    """
    if torch._C._current_graph_task_id() == -1 or torch.is_grad_enabled():
        return False
    first, second = args[0], args[1]
    if not isinstance(second, torch.Tensor) or first.shape != second.shape or first.dtype != second.dtype:
        return False
    storage = first.untyped_storage()
    return first._use_count() <= 4 and torch._C._storage_Use_Count(storage._cdata) <= 2


def _mixes_devices(args: tuple, kwargs: dict) -> bool:
    meta = cpu = False
    for value in (*args, *kwargs.values()):
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(item, torch.Tensor):
                if item.is_meta:
                    meta = True
                else:
                    cpu = True
    return meta and cpu


def _to_meta(value: Any, listed: Any) -> Any:
    """`value` with CPU tensors as meta tensors; `listed` makes those that stand in lists (index tensors)."""
    if isinstance(value, torch.Tensor):
        return value if value.is_meta else _shadow(value)
    if isinstance(value, (tuple, list)):
        items = []
        for item in value:
            on_cpu = isinstance(item, torch.Tensor) and not item.is_meta
            made = listed(item) if on_cpu else item
            # A boolean mask over n dimensions indexes as n lists of positions.
            items.extend(made if isinstance(made, _Places) else [made])
        return items
    return value


class _Places(list):
    """Index tensors that stand for one boolean mask."""


def _shadow(value: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


def _shadow_index(value: torch.Tensor) -> Any:
    if value.dtype != torch.bool:
        return _shadow(value)
    count = int(value.sum())
    return _Places(torch.empty(count, dtype=torch.int64, device="meta") for _ in range(value.dim()))


_META = torch.device("meta")
_aten = torch.ops.aten
_MATMULS = (_aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten.baddbmm.default)
_INDEXING = (
    _aten.index.Tensor,
    _aten.index_put.default,
    _aten.index_put_.default,
    _aten._index_put_impl_.default,
    _aten._unsafe_index_put.default,
)


def _masked_scatter_scratch(out: torch.Tensor) -> int:
    """int64 prefix sums of the expanded mask and its contiguous copy (ATen masked_scatter_cuda)."""
    return 9 * out.numel()


def _softmax_backward_scratch(out: torch.Tensor) -> int:
    """`grad * output` (ATen softmax_backward_cuda_out)."""
    return out.untyped_storage().nbytes()


def _cudnn_attention_backward_scratch(out: tuple[torch.Tensor, ...]) -> int:
    """cuDNN's workspace: dQ in fp32, row sums in fp32, and dK and dV per query head where heads share them.

    Read off the allocator's log on an H200 (cuDNN 9.19): equal to the byte for every shape that was measured.
    """
    dq, dk, _ = out
    b, heads, s, d = dq.shape
    shared = 2 * b * heads * dk.shape[2] * d * dq.element_size() if dk.shape[1] != heads else 0
    return 4 * b * heads * s * d + shared + 4 * b * heads * s + 512


_SCRATCH = {
    _aten._scaled_dot_product_cudnn_attention_backward.default: _cudnn_attention_backward_scratch,
    _aten._softmax_backward_data.default: _softmax_backward_scratch,
    _aten.masked_scatter.default: _masked_scatter_scratch,
    _aten.masked_scatter_.default: _masked_scatter_scratch,
}
"""Operations whose CUDA kernel takes memory and gives it back: bytes from the operation's output."""
