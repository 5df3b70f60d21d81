"""Hardware by name, verdicts, and what fits where."""

import dataclasses

import pytest

from course_lib.errors import CourseError
from course_lib.hardware import CONTEXT_BYTES, GPUS, NCCL_BYTES, find_gpu, find_node, usable_ram_bytes
from course_lib.memory.fit import fit, ladder
from course_lib.memory.requests import ModelRequest
from course_lib.units import GIB, MIB

TINY = {
    "model_type": "llama",
    "config": {
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
    },
}


@dataclasses.dataclass
class Bar:
    high: float = 0.0


@dataclasses.dataclass
class Report:
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    host_bytes: int = 0
    error_bar: Bar = dataclasses.field(default_factory=Bar)


@pytest.mark.parametrize(
    ("given", "name"), [("b200", "B200"), ("NVIDIA H200", "H200"), ("3060", "RTX3060-12GB"), ("a100-80gb", "A100-80GB")]
)
def test_gpus_go_by_several_names(given, name):
    assert find_gpu(given).name == name


def test_a_node_is_a_count_and_a_gpu():
    node = find_node("2xB200")
    assert (node.gpus, node.gpu.name) == (2, "B200")
    assert node.gpu.memory_bytes == pytest.approx(180e9, rel=0.07)


def test_every_gpu_has_its_source_and_plausible_figures():
    for gpu in GPUS.values():
        assert gpu.source
        assert 8 * GIB < gpu.memory_bytes < 256 * GIB
        assert 0 < gpu.bandwidth_bytes_per_second < 10e12


def test_an_unknown_gpu_names_the_nearest():
    with pytest.raises(CourseError, match=r"unknown GPU 'H20O'.*H200"):
        find_gpu("H20O")


def test_no_gpus_is_no_node():
    with pytest.raises(CourseError, match="at least one"):
        find_node("0xH100")


def test_ram_is_never_more_than_the_machine_has():
    import psutil

    assert 0 < usable_ram_bytes() <= psutil.virtual_memory().total


def test_the_verdict_counts_context_and_nccl():
    card = find_node("1xH200").gpu.memory_bytes
    exactly = Report(card - CONTEXT_BYTES, card - CONTEXT_BYTES)
    assert find_node("1xH200").verdict(exactly)["fits"]
    assert not find_node("1xH200").verdict(Report(card - CONTEXT_BYTES + MIB, card))["fits"]
    assert not find_node("2xH200").verdict(exactly)["fits"]
    assert find_node("2xH200").verdict(Report(card - CONTEXT_BYTES - NCCL_BYTES, 0))["fits"]


def test_reserved_above_the_card_is_tight_and_host_ram_can_be_the_reason():
    node = find_node("1xH200")
    card = node.gpu.memory_bytes
    assert node.verdict(Report(card - 4 * GIB, card))["tight"]
    assert not node.verdict(Report(GIB, GIB, host_bytes=10**15))["fits"]


def test_a_small_model_takes_the_fastest_setting_and_all_its_positions():
    answer = fit(ModelRequest(model=TINY, sequence_length=512), find_node("1x3060"))
    assert answer.chosen.setting.name == ladder(1)[0].name
    assert answer.most == 4096
    assert answer.chosen.verdict["margin_bytes"] > 0


def test_zero_3_is_offered_on_several_gpus_only():
    assert not any("ZeRO-3, checkpointing" in s.name for s in ladder(1))
    assert any("ZeRO-3, checkpointing" in s.name for s in ladder(4))


def test_a_clip_needs_a_model_that_sees():
    with pytest.raises(CourseError, match="takes no video"):
        fit(ModelRequest(model=TINY), find_node("1x3060"), frames=8)


@pytest.mark.slow
def test_70b_lora_fits_four_a100_80gb_under_zero_3_and_not_before():
    answer = fit(ModelRequest(model="deepseek-r1-distill-llama-70b", sequence_length=2048), find_node("4xA100-80GB"))
    assert answer.chosen.setting.changes["stage"] == 3
    assert [t.reason for t in answer.tried[:2]] == [t.reason for t in answer.tried if t.reason]
    # Whole weights alone are 131 GiB on every card.
    assert all(t.verdict["at_least_bytes"] > 131 * GIB for t in answer.tried[:2])
    assert answer.most >= 2048


@pytest.mark.slow
def test_a_no_says_what_would_help_and_names_a_smaller_model():
    answer = fit(ModelRequest(model="qwen2.5-32b", sequence_length=2048), find_node("1x3060"))
    assert answer.chosen is None or answer.chosen.setting.changes.get("offload_param")
    if answer.chosen is None:
        assert answer.would_help
        assert answer.smaller
