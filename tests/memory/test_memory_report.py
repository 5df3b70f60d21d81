"""The answer of `course plan`: its form, its sums, and one line for every bad input."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from course_lib.errors import CourseError
from course_lib.memory.case import case_from, read_case
from course_lib.memory.error_bar import error_bar, measured_errors
from course_lib.memory.report import plan_case
from course_lib.memory.requests import ModelRequest, case_for_model, grid_for
from course_lib.memory.timeline import PHASES, Timeline
from course_lib.units import MIB

DATA = Path(__file__).parents[1] / "data/memory"
TINY = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}


def tiny(**changes):
    return case_from(
        {
            "model": {"model_type": "llama", "config": TINY},
            "lora": {"r": 4, "target_modules": ["q_proj"]},
            "sequence_length": 64,
            "ds_config": {"bf16": {"enabled": True}, "zero_optimization": {"stage": 3, "reduce_bucket_size": 10_000}},
            **changes,
        }
    )


def course(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", "from course_lib.cli import main; main()", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def report():
    return plan_case(read_case(DATA / "vl8_z3_ckpt_16x36x20.json")[0])


def test_the_parts_of_each_phase_sum_to_a_peak_below_the_whole(report):
    record = report.as_record()
    assert list(record["phases"]) == list(PHASES)
    sums = {name: sum(parts.values()) for name, parts in record["phases"].items()}
    assert max(sums[name] for name in ("forward", "loss", "backward", "step")) == report.steady_peak_allocated_bytes
    assert report.peak_allocated_bytes >= report.steady_peak_allocated_bytes
    assert report.peak_reserved_bytes >= report.peak_allocated_bytes


def test_the_answer_is_json_with_the_promised_keys(report):
    record = json.loads(json.dumps(report.as_record()))
    assert {
        "peak_allocated_bytes",
        "steady_peak_allocated_bytes",
        "peak_reserved_bytes",
        "host_bytes",
        "phases",
        "assumptions",
        "not_counted",
        "versions",
        "error_bar",
    } <= set(record)
    assert record["label"] == "predicted"


def test_a_timelines_parts_sum_to_its_peak():
    timeline = Timeline()
    phase = timeline.begin("forward")
    first = timeline.alloc(3 * MIB, "weights")
    timeline.alloc(5 * MIB, "activations")
    timeline.free(first)
    assert phase.parts == {"weights": 3 * MIB, "activations": 5 * MIB}
    assert sum(phase.parts.values()) == phase.peak_bytes


def test_weights_of_the_report_are_the_parameters_times_two(report):
    weights = report.phases["backward"]["weights"]
    base = report.parameters - report.trainable
    assert weights == pytest.approx(2 * base, rel=0.002)


def test_keeping_the_outputs_costs_the_logits_in_the_step():
    kept, dropped = (plan_case(tiny(outputs_kept=k)) for k in (True, False))
    logits = 64 * 512 * 2
    assert kept.phases["step"]["logits_and_loss"] - dropped.phases["step"].get("logits_and_loss", 0) >= logits


def test_logits_only_where_a_label_stands_are_fewer():
    model = {"model_type": "llama", "config": {**TINY, "vocab_size": 50_000}}
    everywhere = plan_case(tiny(model=model))
    few = plan_case(tiny(model=model, loss="supervised_positions", supervised_tokens=8))
    assert few.phases["backward"].get("logits_and_loss", 0) < everywhere.phases["backward"]["logits_and_loss"] / 4


def test_four_bits_shrink_the_linear_weights_and_nothing_else():
    plain, small = (plan_case(tiny(quantization=q, ds_config={})) for q in (None, "nf4"))
    linear = 3 * (64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 128)
    saved = plain.phases["forward"]["weights"] - small.phases["forward"]["weights"]
    assert saved == pytest.approx(2 * linear - linear * 0.5625, rel=0.1)


def test_the_error_bar_comes_from_measurements_near_the_case(report):
    bar = report.error_bar
    assert len(bar.nearest) == 5
    assert set(bar.nearest) <= {record["name"] for record in measured_errors()}
    assert bar.low < 0 < bar.high


def test_several_ranks_widen_the_bar():
    one = error_bar(tiny(), 3, offloads=False)
    two = error_bar(tiny(world_size=2), 3, offloads=False)
    assert two.high >= max(0.05, one.high)


def test_a_grid_never_has_more_tokens_than_asked():
    for tokens in (1, 7, 128, 180, 196):
        t, h, w = grid_for(8, tokens)
        assert t == 4
        assert h // 2 * (w // 2) <= tokens


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"world_size": 0}, "world_size"),
        ({"sequence_length": -1}, "sequence_length"),
        ({"micro_batch_size": 0}, "micro_batch_size"),
        ({"attention": "fast"}, "attention"),
        ({"loss": "supervised_positions"}, "supervised_tokens"),
        ({"quantization": "nf4", "lora": None}, "cannot be trained"),
        ({"video_grids": [[1, 3, 4]]}, "even"),
        ({"sequence_lenght": 3}, "sequence_length"),
        ({"dtype": "fp8"}, "dtype"),
    ],
)
def test_a_bad_case_is_one_line(changes, message):
    with pytest.raises(CourseError, match=message) as caught:
        tiny(**changes)
    assert "\n" not in caught.value.line()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sequence_length": 300}, "256 positions"),
        ({"lora": {"r": 0, "target_modules": ["q_proj"]}}, "above zero"),
        ({"lora": {"r": 4, "target_modules": ["q_prj"]}}, "q_proj"),
        ({"video_grids": [[2, 4, 4]]}, "takes no video"),
        ({"ds_config": {"zero_optimization": {"stage": 5}}}, "stage"),
    ],
)
def test_what_a_run_would_refuse_is_refused(changes, message):
    with pytest.raises(CourseError, match=message):
        plan_case(tiny(**changes))


def test_a_video_longer_than_the_sequence_says_how_long_it_must_be():
    with pytest.raises(CourseError, match="sequence_length"):
        plan_case(case_for_model(ModelRequest(model="qwen3-vl-2b", sequence_length=512, video_grids=((16, 36, 20),))))


@pytest.mark.slow
def test_the_command_answers_in_json_and_says_bad_input_in_one_line(tmp_path):
    good = course("plan", "--case", str(DATA / "l8_z3_ckpt_4k.json"), "--json")
    assert good.returncode == 0, good.stderr
    assert json.loads(good.stdout)["phases"]["load"]
    values = json.loads((DATA / "l8_z3_ckpt_4k.json").read_text())
    values["case"]["ds_config"]["zero_optimization"]["reduce_bucket_sise"] = 1
    bad = tmp_path / "bad.json"
    bad.write_text(json.dumps(values))
    refused = course("plan", "--case", str(bad))
    assert refused.returncode == 2
    assert refused.stderr.strip().count("\n") == 0
    assert "reduce_bucket_sise" in refused.stderr
