"""CUDA kernels that the meta device has not, replaced while a step is traced by what they keep and take.

- scaled_dot_product_attention: on meta torch would choose the math path; on a GPU a fused kernel runs.
- dropout: on CUDA one fused operation that keeps a boolean mask; elsewhere a mask in the input's dtype.
- linear: DeepSpeed's stage 3 replaces it (memory_efficient_linear), which keeps every linear's input.
- experts that are visited one by one: which tokens an expert gets is data; here a few experts share all of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F


class MemoryEfficientLinear(torch.autograd.Function):
    """DeepSpeed 0.19.8 `LinearFunctionForZeroStage3`, without its autocast bookkeeping (which allocates nothing)."""

    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        ctx.save_for_backward(input, weight, bias)
        if input.dim() == 2 and bias is not None:
            return torch.addmm(bias, input, weight.t())
        output = input.matmul(weight.t())
        if bias is not None:
            output += bias
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple:
        input, weight, bias = ctx.saved_tensors
        grad_input = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            grad_input = grad_output.matmul(weight)
        if ctx.needs_input_grad[1]:
            if grad_output.dim() > 2:
                flat = grad_output.reshape(-1, grad_output.shape[-1])
                grad_weight = flat.t().matmul(input.reshape(-1, input.shape[-1]))
            else:
                grad_weight = grad_output.t().matmul(input)
        if bias is not None and ctx.needs_input_grad[2]:
            grad_bias = grad_output.sum(list(range(grad_output.dim() - 1)))
        return grad_input, grad_weight, grad_bias


class DequantizedLinear(torch.autograd.Function):
    """bitsandbytes' MatMul4Bit: the weight is made whole for the product, in forward and again in backward."""

    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        ctx.weight = weight
        whole = torch.empty_like(weight)
        output = input.matmul(whole.t())
        return output if bias is None else output + bias

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple:
        return grad_output.matmul(torch.empty_like(ctx.weight)), None, None


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """The fused kernel that torch's CUDA dispatcher picks for half precision (`sdp_utils.cpp`)."""
    aten = torch.ops.aten
    needs_grad = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    if attn_mask is None and query.dtype in (torch.bfloat16, torch.float16):
        return aten._scaled_dot_product_cudnn_attention(
            query, key, value, None, needs_grad, dropout_p, is_causal, False, scale=scale
        )[0]
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        zero = torch.zeros((), dtype=query.dtype, device=query.device)
        attn_mask = torch.where(attn_mask, zero, torch.full_like(zero, float("-inf")))
    if attn_mask is not None:
        attn_mask = attn_mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    return aten._scaled_dot_product_efficient_attention(
        query, key, value, attn_mask, needs_grad, dropout_p, is_causal, scale=scale
    )[0]


def _dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    if not training or p == 0:
        return input
    return torch.ops.aten.native_dropout(input, p, True)[0]


EXPERT_GROUPS = 6


def _longcat_experts(self: Any, hidden_states: torch.Tensor, index: torch.Tensor, weights: torch.Tensor) -> Any:
    """LongcatFlashExperts.forward with uniform routing to EXPERT_GROUPS experts, identity ones in proportion.

    What is kept for backward depends on the rows in all, not on how many experts share them; what is in flight is one
    expert's share, so it is overstated by the ratio of experts to groups.
    """
    final = torch.zeros_like(hidden_states)
    rows = -(-index.numel() // EXPERT_GROUPS)
    tokens, top_k = index.shape
    identity = round(EXPERT_GROUPS * self.zero_expert_num / self.total_experts)
    for group in range(EXPERT_GROUPS):
        token = (torch.arange(rows) + group * rows) % tokens
        place = torch.zeros(rows, dtype=torch.int64) + group % top_k
        state = hidden_states[token]
        if group >= identity:
            gate, up = F.linear(state, self.gate_up_proj[group]).chunk(2, dim=-1)
            state = F.linear(self.act_fn(gate) * up, self.down_proj[group])
        state = state * weights[token, place, None]
        final.index_add_(0, token, state.to(hidden_states.dtype))
    return final


@contextlib.contextmanager
def _uniform_experts() -> Iterator[None]:
    try:
        from transformers.models.longcat_flash.modeling_longcat_flash import LongcatFlashExperts
    except ImportError:
        yield
        return
    original = LongcatFlashExperts.forward
    LongcatFlashExperts.forward = _longcat_experts
    try:
        yield
    finally:
        LongcatFlashExperts.forward = original


def _autocast(device_type: str, *arguments: Any, **settings: Any) -> Any:
    """torch.autocast knows no meta device; on a GPU these regions only switch it off."""
    return contextlib.nullcontext() if device_type == "meta" else _AUTOCAST(device_type, *arguments, **settings)


_AUTOCAST = torch.autocast


@contextlib.contextmanager
def cuda_kernels(*, memory_efficient_linear: bool, quantized: frozenset[int] = frozenset()) -> Iterator[None]:
    """Stand-ins in place of torch's functions while the block runs; `quantized` are ids of quantized weights."""
    saved = (F.scaled_dot_product_attention, F.dropout, F.linear, torch.autocast)
    torch.autocast = _autocast
    F.scaled_dot_product_attention = _attention
    F.dropout = _dropout
    if memory_efficient_linear:
        F.linear = lambda input, weight, bias=None: MemoryEfficientLinear.apply(input, weight, bias)
    if quantized:
        plain = F.linear

        def linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
            if id(weight) in quantized:
                return DequantizedLinear.apply(input, weight, bias)
            return plain(input, weight, bias)

        F.linear = linear
    try:
        with _uniform_experts():
            yield
    finally:
        F.scaled_dot_product_attention, F.dropout, F.linear, torch.autocast = saved
