"""The meta-device trace: what is recorded, and that a short model's trace stands for the whole model's."""

import pytest
import torch

from course_lib.memory.case import case_from
from course_lib.memory.trace.expand import ALLOCATE, RELEASE, expand
from course_lib.memory.trace.kernels import MemoryEfficientLinear, cuda_kernels
from course_lib.memory.trace.recorder import ALLOC, FREE, Recorder
from course_lib.memory.trace.step import FORWARD_ENDS, trace_step
from course_lib.shapes.parameters import read_shape

TINY = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
HYBRID = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 12,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
LORA = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]}


def live_bytes(events) -> int:
    live = peak = 0
    sizes = {}
    for event in events:
        if event[0] == ALLOC:
            sizes[event[1]] = event[2]
            live += event[2]
            peak = max(peak, live)
        elif event[0] == FREE:
            live -= sizes.pop(event[1], 0)
    return peak


def test_the_recorder_sees_what_lives_and_not_views():
    x, w = (torch.empty(64, 64, device="meta", requires_grad=r) for r in (True, False))
    recorder = Recorder()
    recorder.ignore([x, w])
    with recorder:
        y = (x @ w).relu()
        z = y.t()[:3]
    sizes = [event[2] for event in recorder.events if event[0] == ALLOC]
    assert sizes == [64 * 64 * 4] * 2
    # The product is not needed for relu's gradient and was dropped.
    assert [event[1] for event in recorder.events if event[0] == FREE] == [0]
    del y, z


def test_gradients_are_summed_in_place_as_autograd_does():
    x = torch.empty(64, 64, device="meta", requires_grad=True)
    w = [torch.empty(64, 64, device="meta") for _ in range(3)]
    recorder = Recorder()
    recorder.ignore([x, *w])
    with recorder:
        y = x * 1.0
        sum((y @ each).sum() for each in w).backward()
    kinds = [recorder.operations[event[1]] for event in recorder.events if event[0] == ALLOC]
    assert "add.Tensor" not in [kind for kind, size in zip(kinds, recorder.sizes, strict=True) if size > 100]


def test_values_survive_on_the_cpu_and_index_meta_tensors():
    hidden = torch.empty(2, 8, 16, device="meta")
    mask = torch.zeros(2, 8, dtype=torch.bool)
    mask[0, :5] = True
    recorder = Recorder()
    recorder.ignore([hidden, mask])
    with recorder:
        picked = hidden[mask.to(hidden.device), :]
    assert picked.shape == (5, 16)


@pytest.mark.parametrize("bias", [False, True])
def test_memory_efficient_linear_is_deepspeeds(bias):
    from deepspeed.runtime.zero.linear import LinearFunctionForZeroStage3

    totals = []
    for function in (MemoryEfficientLinear, LinearFunctionForZeroStage3):
        x = torch.empty(2, 16, 32, device="meta", requires_grad=True)
        w = torch.empty(48, 32, device="meta", requires_grad=True)
        b = torch.empty(48, device="meta", requires_grad=True) if bias else None
        recorder = Recorder()
        recorder.ignore([t for t in (x, w, b) if t is not None])
        with recorder:
            function.apply(x, w, b).sum().backward()
        totals.append([event[2] for event in recorder.events if event[0] == ALLOC])
    assert totals[0] == totals[1]


def curve(shape, case, **kwargs) -> list[int]:
    """Live bytes after each event of the expanded step, and the peak through forward."""
    trace = trace_step(shape, case, memory_efficient_linear=True, edges=False, **kwargs)
    live, points, held = 0, [], {}
    for event in expand(trace, shape.stacks, checkpointing=case.gradient_checkpointing):
        if event[0] == ALLOCATE:
            held[event[1]] = event[2]
            live += event[2]
            points.append(live)
        elif event[0] == RELEASE:
            live -= held.pop(event[1])
        elif event[1] == FORWARD_ENDS:
            points.append(-max(points))
    return points


def whole(shape_arguments: dict, monkeypatch):
    """The same model with every layer traced."""
    import course_lib.shapes.parameters as parameters

    original = parameters.shorten
    monkeypatch.setattr(parameters, "shorten", lambda config, **_: original(config, whole=True))
    return read_shape(**shape_arguments)


@pytest.mark.parametrize("checkpointing", [True, False])
@pytest.mark.parametrize(
    ("model_type", "config", "lora"),
    [("llama", TINY, LORA), ("llama", TINY, None), ("qwen3_5_text", HYBRID, LORA)],
    ids=["lora", "full", "hybrid"],
)
def test_a_short_models_trace_is_the_whole_models(model_type, config, lora, checkpointing, monkeypatch):
    model = {"model_type": model_type, "config": config}
    case = case_from({"model": model, "lora": lora, "sequence_length": 64, "gradient_checkpointing": checkpointing})
    short = read_shape(model, lora=lora)
    assert len(short.stacks[0].chosen) < short.stacks[0].depth
    expanded = curve(short, case)
    assert expanded == curve(whole({"model": model, "lora": lora}, monkeypatch), case)


def test_dropout_keeps_one_byte_per_element():
    x = torch.empty(32, 32, device="meta", requires_grad=True)
    recorder = Recorder()
    recorder.ignore([x])
    with cuda_kernels(memory_efficient_linear=False), recorder:
        torch.nn.functional.dropout(x, 0.1, True)
    assert sorted(event[2] for event in recorder.events if event[0] == ALLOC) == [1024, 4096]


def test_attention_keeps_no_scores():
    q = torch.empty(1, 4, 512, 16, device="meta", dtype=torch.bfloat16, requires_grad=True)
    recorder = Recorder()
    recorder.ignore([q])
    with cuda_kernels(memory_efficient_linear=False), recorder:
        out = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    assert live_bytes(recorder.events) < 4 * 512 * 512
    del out
