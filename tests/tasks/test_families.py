"""The same code takes any directory of the family. Random weights: shapes and gradients are proven, not skill."""

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from course_lib.config.run_config import BudgetSection, LoraSection
from course_lib.data.grounding import GroundingDataset, collate, load_processor
from course_lib.data.windows import Window
from course_lib.models.language_lora import add_language_lora
from course_lib.models.supervised_loss import supervised_loss
from course_lib.tasks.video_text import load_base

TINY = Path(__file__).parents[2] / "examples" / "video_text" / "checkpoints" / "tiny-qwen3-vl"
BUDGET = BudgetSection(frames=8, max_tokens_per_frame=6, min_tokens_per_frame=1)
TEXT = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 1024,
}


def special_ids(tokenizer) -> dict[str, int]:
    names = {
        "image_token_id": "<|image_pad|>",
        "video_token_id": "<|video_pad|>",
        "vision_start_token_id": "<|vision_start|>",
        "vision_end_token_id": "<|vision_end|>",
    }
    return {key: tokenizer.convert_tokens_to_ids(token) for key, token in names.items()}


def qwen2_5_vl(tokenizer):
    vision = {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 64}
    vision |= {"fullatt_block_indexes": [1], "window_size": 56}
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 6, 6]}
    config = transformers.Qwen2_5_VLConfig(
        text_config={**TEXT, "vocab_size": len(tokenizer), "rope_parameters": rope},
        vision_config=vision,
        **special_ids(tokenizer),
    )
    processor = transformers.Qwen2_5_VLProcessor(
        image_processor=transformers.Qwen2VLImageProcessor(),
        tokenizer=tokenizer,
        video_processor=transformers.Qwen2VLVideoProcessor(),
        chat_template=(TINY / "chat_template.jinja").read_text(),
    )
    return transformers.Qwen2_5_VLForConditionalGeneration(config), processor


def qwen3_5(tokenizer):
    vision = {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 64}
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2], "partial_rotary_factor": 0.5}
    linear = {
        "linear_num_value_heads": 2,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
    }
    config = transformers.Qwen3_5Config(
        text_config={
            **TEXT,
            **linear,
            "head_dim": 32,
            "vocab_size": len(tokenizer),
            "rope_parameters": rope,
            "layer_types": ["linear_attention", "full_attention"],
        },
        vision_config={**vision, "num_position_embeddings": 16},
        **special_ids(tokenizer),
    )
    processor = transformers.Qwen3VLProcessor(
        image_processor=transformers.Qwen2VLImageProcessor(patch_size=16),
        tokenizer=tokenizer,
        video_processor=transformers.Qwen3VLVideoProcessor(),
        chat_template=(TINY / "chat_template.jinja").read_text(),
    )
    return transformers.Qwen3_5ForConditionalGeneration(config), processor


@pytest.fixture(scope="module", params=[qwen2_5_vl, qwen3_5, None], ids=["qwen2.5-vl", "qwen3.5", "qwen3-vl"])
def directory(request, tmp_path_factory):
    if request.param is None:
        return TINY
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    model, processor = request.param(transformers.AutoTokenizer.from_pretrained(TINY))
    model.to(torch.bfloat16).save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def test_a_directory_of_the_family_goes_from_frames_to_gradients(directory):
    processor = load_processor(directory, BUDGET)
    dataset = GroundingDataset([], processor, BUDGET)
    rng = np.random.default_rng(0)
    items = []
    for index, events in enumerate([((1.0, 2.5),), ((0.0, 1.0), (2.0, 4.0))]):
        window = Window(
            video=Path("clip.mp4"),
            question="Which parts are worth keeping?",
            start_seconds=0.0,
            end_seconds=4.0,
            events=events,
            index=index,
        )
        frames = rng.integers(0, 255, (8, 96, 128, 3), dtype=np.uint8)
        item = dataset.build(window, frames, [0.25 + 0.5 * k for k in range(8)])
        # 96×128 pixels are 3×4 = 12 tokens of 32 pixels or 3×5 = 15 of 28: the cap must act, and not by more than
        # the rounding of two sides. Under a cap for the whole clip a step would have one token.
        assert 4 <= dataset.cost(item).visual_tokens / 4 <= BUDGET.max_tokens_per_frame
        items.append(item | {"index": index})
    model = load_base(directory)
    model.config.use_cache = False
    model = add_language_lora(model, LoraSection(r=4, alpha=8))
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert trained
    assert not [name for name in trained if "visual" in name]
    batch = collate(items, processor.tokenizer.pad_token_id)
    batch.pop("sample_index")
    loss, _ = supervised_loss(model, batch)
    loss.backward()
    assert torch.isfinite(loss)
    moved = {name for name, p in model.named_parameters() if p.grad is not None and p.grad.abs().max() > 0}
    assert moved == {name for name in trained if "lora_B" in name}
