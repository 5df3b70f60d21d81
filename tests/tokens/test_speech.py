"""Audio tokens by arithmetic against the library's own feature extractor and length rule."""

import random

import numpy as np
import pytest

from course_lib.errors import CourseError
from course_lib.tokens.speech import audio_tokens


@pytest.mark.parametrize("name", ["qwen2_5_omni", "qwen3_omni"])
def test_audio_tokens_equal_the_librarys(name):
    import importlib

    from transformers import WhisperFeatureExtractor

    module = {"qwen2_5_omni": "qwen2_5_omni", "qwen3_omni": "qwen3_omni_moe"}[name]
    module = importlib.import_module(f"transformers.models.{module}.processing_{module}")
    rule = getattr(module, "_get_feat_extract_output_lengths", None)
    if rule is None:
        pytest.skip("this transformers keeps the length rule inside the model")
    extractor, rng = WhisperFeatureExtractor(feature_size=128), random.Random(name)
    for samples in [400, 1600, 16_000, 16_001, *(rng.randint(400, 200_000) for _ in range(20))]:
        padding = "max_length" if name == "qwen2_5_omni" else True
        answer = extractor(
            np.zeros(samples, np.float32), sampling_rate=16_000, padding=padding, truncation=False,
            return_attention_mask=True, return_tensors="np",
        )  # fmt: skip
        assert audio_tokens(name, samples) == int(rule(answer["attention_mask"].sum(-1))[0]), samples


def test_ten_seconds_cost_what_the_rates_say():
    tokens = {name: audio_tokens(name, 160_000) for name in ("qwen2_5_omni", "qwen3_omni", "longcat_omni")}
    assert tokens == {"qwen2_5_omni": 250, "qwen3_omni": 130, "longcat_omni": 125}


def test_a_family_that_does_not_hear_is_refused():
    with pytest.raises(CourseError, match="takes no audio here"):
        audio_tokens("qwen3_vl", 16_000)
    with pytest.raises(CourseError, match="0 samples"):
        audio_tokens("qwen3_omni", 0)
