"""Requested → effective → frames → grid → tokens → timestamps, each plan asked of the installed library too."""

import json
import random
import time

import numpy as np
import pytest

from course_lib.errors import CourseError
from course_lib.tokens import judge, plan
from course_lib.tokens.check import check_plan
from course_lib.tokens.families import BY_NAME, FAMILIES, VideoModel, video_model
from course_lib.tokens.inverse import curve, fit_tokens, sharpest
from course_lib.tokens.plan import Budget, plan_clip, plan_frames, processor_metadata


def checked(planned, info):
    return check_plan(planned, height=info.height, width=info.width, duration_seconds=info.duration_seconds)


def test_the_cap_buys_four_times_the_frames_for_the_same_tokens(portrait):
    model = video_model("qwen3-vl-4b")
    few = plan_clip(portrait, model, Budget(frames=8))
    many = plan_clip(portrait, model, Budget(frames=32, max_tokens_per_frame=196, min_tokens_per_frame=128))
    open_ = plan_clip(portrait, model, Budget(frames=32))
    assert (few.grid.thw, many.grid.thw, open_.grid.thw) == ((4, 72, 40), (16, 36, 20), (16, 72, 40))
    assert (few.visual_tokens, many.visual_tokens, open_.visual_tokens) == (2880, 2880, 11_520)
    assert many.findings == ()
    assert checked(many, portrait).equal is True


@pytest.mark.parametrize(
    ("budget", "per_frame", "finding"),
    [
        (Budget(frames=32, max_tokens_per_frame=64), 120, "the floor of 128 tokens overrules the cap"),
        (Budget(frames=32, max_tokens_per_frame=64, min_tokens_per_frame=16), 50, None),
        (Budget(frames=32, total_tokens=1024), 120, "1920 visual tokens, not at most 1024"),
    ],
)
def test_a_floor_left_alone_overrules_cap_and_total(portrait, budget, per_frame, finding):
    planned = plan_clip(portrait, video_model("qwen3-vl-4b"), budget)
    assert planned.grid.tokens_per_step == per_frame
    assert (finding in " ".join(planned.findings)) if finding else planned.findings == ()
    assert checked(planned, portrait).equal is True


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_random_budgets_are_met_or_said_to_be_unmet_and_the_library_agrees(family, make_clip):
    rng = random.Random(family.name)
    model = VideoModel(name=family.name, family=family, settings=family.settings)
    for _ in range(60):
        info = make_clip(
            frames=rng.randint(4, 900), rate=rng.choice([12.5, 23.976, 29.97, 60.0]), width=rng.randint(40, 1920),
            height=rng.randint(40, 1920),
        )  # fmt: skip
        budget = Budget(
            frames=rng.randint(2, 64), max_tokens_per_frame=rng.choice([None, rng.randint(4, 900)]),
            min_tokens_per_frame=rng.choice([None, 4, rng.randint(1, 200)]),
            total_tokens=rng.choice([None, rng.randint(200, 20_000)]),
        )  # fmt: skip
        planned = plan_clip(info, model, budget)
        cap, total = budget.max_tokens_per_frame, budget.total_tokens
        if not planned.findings:
            assert cap is None or planned.grid.tokens_per_step <= cap
            assert total is None or planned.visual_tokens <= total
        assert planned.total_tokens == planned.visual_tokens + planned.text.tokens
        assert len(planned.timestamps) == planned.grid.thw[0]
        assert checked(planned, info).equal is (True if family.checked else None), (budget, info)


def test_a_floor_that_a_family_does_not_know_is_said(portrait):
    for name in ("gemma-4-e4b", "internvl3-8b"):
        planned = plan_clip(portrait, video_model(name), Budget(frames=8, min_tokens_per_frame=500))
        assert "knows no floor" in planned.findings[0]


def test_the_check_can_fail(portrait, monkeypatch):
    planned = plan_clip(portrait, video_model("qwen3-vl-4b"), Budget(frames=32, max_tokens_per_frame=196))
    ask = judge.ask
    monkeypatch.setattr(
        judge, "ask", lambda *a, **k: ask(*a, **(k | {"size": {"shortest_edge": 1, "longest_edge": 10**6}}))
    )
    check = checked(planned, portrait)
    assert check.equal is False
    assert "planned [16, 36, 20]" in check.difference


def test_timestamps_are_real_times_for_a_variable_rate(make_clip):
    times = [0.0, 0.04, 0.1, 0.5, 1.0, 1.033, 2.833, 9.5]
    info = make_clip(times=times, rate=30.0)
    planned = plan_clip(info, video_model("qwen3-vl-4b"), Budget(frames=8))
    assert planned.timestamps == pytest.approx([0.02, 0.3, 1.0165, 6.1665])
    assert planned.text.labels == ("<0.0 seconds>", "<0.3 seconds>", "<1.0 seconds>", "<6.2 seconds>")
    assert checked(planned, info).equal is True
    own = plan_clip(info, video_model("qwen3-vl-4b"), Budget())
    assert "variable rate" in " ".join(own.findings)


def test_frame_300_at_30_fps_is_ten_seconds_in():
    info = processor_metadata([300 / 30], 20.0)
    assert info["frames_indices"][0] / info["fps"] == 10.0


def test_ten_seconds_at_30_00003_fps_give_18_frames_to_qwen2_and_19_to_qwen3(make_clip):
    info = make_clip(rate=30.00003)
    assert plan_clip(info, video_model("qwen2.5-vl-7b"), Budget(fps=2)).frames == 18
    assert plan_clip(info, video_model("qwen3-vl-4b"), Budget(fps=2)).frames == 19


@pytest.mark.parametrize(("seconds", "tokens"), [(0.2, 8), (9.94, 8), (9.96, 9), (99.9, 9), (100.0, 10), (999.9, 10)])
def test_a_timestamp_costs_8_9_or_10_tokens(seconds, tokens):
    planned = plan_frames(
        video_model("qwen3-vl-4b"), Budget(), seconds=[seconds, seconds], height=64, width=64, duration_seconds=1000.0
    )
    assert planned.text.per_step == (tokens,)
    assert planned.text.tokens == tokens + 2


def test_a_thousand_plans_a_second(portrait):
    model, budget = video_model("qwen3-vl-4b"), Budget(frames=32, max_tokens_per_frame=196, min_tokens_per_frame=128)
    started, count = time.process_time(), 300
    for _ in range(count):
        plan_clip(portrait, model, budget)
    assert count / (time.process_time() - started) > 1000


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_offer_of_the_curve_is_within_the_budget(family, portrait):
    model = VideoModel(name=family.name, family=family, settings=family.settings)
    offers = curve(portrait, model, 3000)
    assert offers
    assert all(offer.total_tokens <= 3000 and not offer.findings for offer in offers)
    frames = [offer.frames for offer in offers]
    assert frames == sorted(set(frames))
    chosen = fit_tokens(portrait, model, 3000)
    assert chosen.total_tokens <= 3000
    assert checked(chosen, portrait).equal is not False


def test_the_sharpest_offer_wastes_less_than_a_row(portrait):
    model = video_model("qwen3-vl-4b")
    offer = sharpest(portrait, model, 3100, frames=32)
    richer = plan_clip(
        portrait,
        model,
        Budget(frames=32, max_tokens_per_frame=offer.grid.tokens_per_step * 1.4, min_tokens_per_frame=4),
    )
    assert offer.visual_tokens == 2880
    assert richer.total_tokens > 3100


def test_a_budget_that_buys_nothing_says_so(portrait):
    with pytest.raises(CourseError, match="100 tokens do not buy 64 frames for InternVL"):
        fit_tokens(portrait, video_model("internvl3-1b"), 100, frames=64)


@pytest.mark.parametrize(
    ("name", "family"),
    [("Qwen/Qwen3-VL-4B-Instruct", "qwen3_vl"), ("qwen2.5-vl-72b", "qwen2_5_vl"), ("Qwen3-Omni-30B-A3B", "qwen3_omni"),
     ("qwen2.5-omni-7b", "qwen2_5_omni"), ("qwen3.5-9b", "qwen3_5"), ("InternVL3-8B-hf", "internvl"),
     ("SmolVLM2-2.2B-Instruct", "smolvlm2"), ("gemma-4-E4B-it", "gemma4"), ("LongCat-Flash-Omni", "longcat_omni"),
     ("llava-onevision-qwen2-7b-ov-hf", "llava_onevision")],
)  # fmt: skip
def test_public_names_find_their_family(name, family):
    assert video_model(name).family.name == family


def test_an_unknown_name_gets_the_nearest():
    with pytest.raises(CourseError, match=r"'qwen3-vi-4b' is no known video model.*qwen3-vl"):
        video_model("qwen3-vi-4b")


def test_a_folder_is_read_as_transformers_reads_it(tmp_path, portrait):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3_vl"}))
    values = {"patch_size": 14, "temporal_patch_size": 2, "merge_size": 2, "fps": 1,
              "size": {"shortest_edge": 5000, "longest_edge": 2_000_000}}  # fmt: skip
    (tmp_path / "video_preprocessor_config.json").write_text(json.dumps(values))
    model = video_model(str(tmp_path))
    assert (model.settings.factor, model.settings.longest_edge, model.settings.fps) == (28, 2_000_000, 1)
    assert "video_preprocessor_config.json" in model.settings.source
    for budget in (Budget(frames=8), Budget(), Budget(frames=8, max_tokens_per_frame=50, min_tokens_per_frame=4)):
        planned = plan_clip(portrait, model, budget)
        assert checked(planned, portrait).equal is True
    nested = {"video_processor": {**values, "size": {"shortest_edge": 5000, "longest_edge": 900_000}}}
    (tmp_path / "processor_config.json").write_text(json.dumps(nested))
    assert video_model(str(tmp_path)).settings.longest_edge == 900_000
    assert checked(plan_clip(portrait, video_model(str(tmp_path)), Budget(frames=8)), portrait).equal is True


def test_a_folder_with_the_old_pixel_limits(tmp_path, portrait):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2_5_vl"}))
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"min_pixels": 3136, "max_pixels": 100_352}))
    model = video_model(str(tmp_path))
    planned = plan_clip(portrait, model, Budget(frames=4))
    assert planned.grid.tokens_per_step <= 128
    assert checked(planned, portrait).equal is True


def test_a_folder_of_another_kind_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(CourseError, match="model_type 'llama' is no known video family"):
        video_model(str(tmp_path))


@pytest.mark.parametrize(
    "wrong", [{"frames": 0}, {"fps": -1.0}, {"frames": 4, "fps": 2.0}, {"min_tokens_per_frame": -1}]
)
def test_a_budget_that_means_nothing_is_refused(wrong):
    with pytest.raises(CourseError):
        Budget(**wrong)


def test_frames_go_by_real_time(make_clip):
    info = make_clip(times=[*np.linspace(0, 1, 50).tolist(), 5.0, 9.0])
    planned = plan_clip(info, video_model("qwen3-vl-4b"), Budget(frames=4))
    assert planned.frame_seconds == pytest.approx([0.0, 1.0, 5.0, 9.0])


def test_more_frames_than_the_clip_has_is_a_finding(make_clip):
    planned = plan_clip(make_clip(frames=10), video_model("qwen3-vl-4b"), Budget(frames=32))
    assert (planned.frames, planned.findings) == (10, ("32 frames were asked for, the clip has 10",))


def test_the_unchecked_family_says_so(portrait):
    assert BY_NAME["longcat_omni"].checked is False
    assert checked(plan_clip(portrait, video_model("longcat-flash-omni"), Budget(frames=8)), portrait).equal is None
    assert "not checked" in plan.plan_clip(portrait, video_model("longcat"), Budget(frames=8)).model.settings.source
