"""The whole sequence: input_ids of transformers' full processors, text and separators included, against the plan.

No tokenizer of a public model is at hand, so one is trained here with Qwen's own splitting (single digits, words with
their space) on the words that the processors write; the counts of the labels depend on nothing else.
"""

import random

import pytest

from course_lib.tokens import judge
from course_lib.tokens.families import video_model
from course_lib.tokens.plan import Budget, plan_clip, processor_metadata

QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = {
    "image_token": "<|image_pad|>", "video_token": "<|video_pad|>", "vision_start_token": "<|vision_start|>",
    "vision_end_token": "<|vision_end|>",
}  # fmt: skip
PROMPT = "<|vision_start|><|video_pad|><|vision_end|>"


@pytest.fixture(scope="module")
def tokenizer():
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(QWEN_SPLIT), behavior="isolated"),
         pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )  # fmt: skip
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=[*SPECIAL.values(), "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
    )  # fmt: skip
    core.train_from_iterator(["<0.5 seconds> is a time"] * 50, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", extra_special_tokens=SPECIAL)


@pytest.fixture(scope="module", params=["qwen2-vl-7b", "qwen2.5-vl-7b", "qwen3-vl-4b"])
def model_and_processor(request, tokenizer):
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor

    model = video_model(request.param)
    parts = {"image_processor": Qwen2VLImageProcessor(), "tokenizer": tokenizer}
    return model, judge.wrapper_class(model.family)(**parts, video_processor=judge.build_processor(model))


def test_the_whole_sequence_has_the_planned_length(model_and_processor, make_clip):
    import torch

    model, processor = model_and_processor
    rng = random.Random(model.name)
    for _ in range(12):
        info = make_clip(
            frames=rng.randint(30, 40_000), rate=rng.choice([23.976, 30.0]), width=rng.randint(60, 1400),
            height=rng.randint(60, 1400),
        )  # fmt: skip
        budget = Budget(frames=rng.randint(2, 24), max_tokens_per_frame=rng.randint(30, 300), min_tokens_per_frame=4)
        planned = plan_clip(info, model, budget)
        clip = torch.zeros(planned.frames, 3, info.height, info.width, device="meta", dtype=torch.uint8)
        metadata = [processor_metadata(planned.frame_seconds, info.duration_seconds)]
        answer = processor(
            text=[PROMPT],
            videos=[clip],
            return_tensors="pt",
            videos_kwargs={"video_metadata": metadata, **planned.call},
        )
        ids = answer["input_ids"][0]
        visual = processor.tokenizer.convert_tokens_to_ids(SPECIAL["video_token"])
        assert tuple(answer["video_grid_thw"][0].tolist()) == planned.grid.thw
        assert int((ids == visual).sum()) == planned.visual_tokens
        assert len(ids) == planned.total_tokens, processor.tokenizer.decode(ids[ids != visual])
        if "second_per_grid_ts" in answer:
            # Qwen2.5-VL places its steps by this number: it must follow from the real duration.
            expected = 2 * info.duration_seconds / planned.frames
            assert float(answer["second_per_grid_ts"][0]) == pytest.approx(expected, rel=0.01)
