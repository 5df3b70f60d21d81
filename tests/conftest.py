"""What many tests read: the shipped tiny Qwen3-VL of examples/video_text, loaded once per session."""

import copy
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[1] / "examples" / "video_text"


@pytest.fixture(scope="session")
def example_folder() -> Path:
    return EXAMPLE


@pytest.fixture(scope="session")
def tiny_directory() -> Path:
    return EXAMPLE / "checkpoints" / "tiny-qwen3-vl"


@pytest.fixture(scope="session")
def _loaded_once(tiny_directory):
    import torch
    from transformers import AutoModelForImageTextToText

    return AutoModelForImageTextToText.from_pretrained(tiny_directory, dtype=torch.float32)


@pytest.fixture
def tiny_model(_loaded_once):
    """A copy of the shipped model in fp32, this test's own."""
    return copy.deepcopy(_loaded_once)


@pytest.fixture(scope="session")
def tiny_processor(tiny_directory):
    """The shipped processor under the budget of run_cpu.yaml: 16 frames, one token per frame."""
    from course_lib.config.run_config import BudgetSection
    from course_lib.data.grounding import load_processor

    return load_processor(tiny_directory, BudgetSection(frames=16, max_tokens_per_frame=1, min_tokens_per_frame=1))
