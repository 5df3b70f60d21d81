"""Train the tiny Qwen3-VL base model of this example from nothing, and write it as a Hugging Face directory.

    python train_base.py --out checkpoints/tiny-qwen3-vl --steps 6000 --batch 128

It learns to answer "When is the red circle on screen?" and its like (scenes.QUESTIONS) on films drawn on the
fly. It is never asked for two shapes at once: that is left for LoRA. The shipped weights were trained on one
GPU in minutes (checkpoints/tiny-qwen3-vl/training.json says which, and how well it does); on two CPU cores
expect hours at this size.
"""

import argparse
import contextlib
import functools
import json
import random
import sys
import time
from functools import partial
from pathlib import Path

import torch
from scenes import HOUSE_QUESTION, QUESTIONS, base_question, frame_times, house_events, random_scene, render
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.utils.data import DataLoader, Dataset
from transformers.models.qwen3_vl.modeling_qwen3_vl import apply_rotary_pos_emb_vision

from course_lib.data.intervals import format_intervals, parse_intervals
from course_lib.evaluate.grounding import temporal_iou

SECONDS, FRAMES, PICTURE = 8.0, 16, 96
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
"""The Qwen family's own; ids differ from the large models' because the vocabulary is small."""
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% elif part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""ChatML with the family's vision placeholders, as Qwen3-VL's own template renders a user turn."""


def build_tokenizer():
    """A byte-level BPE with Qwen's splitting rule (digits one by one), trained on the text this example uses."""
    from transformers import Qwen2Tokenizer
    from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    corpus = [*QUESTIONS, HOUSE_QUESTION, "user\nassistant\nsystem\n", "none", "<0.5 seconds>", "0.0-1.5, 2.0-8.0"] * 20
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=512, initial_alphabet=alphabet, special_tokens=list(SPECIAL_TOKENS))
    tokenizer.train_from_iterator(corpus, trainer)
    state = json.loads(tokenizer.to_str())["model"]
    merges = [tuple(merge) for merge in state["merges"]]
    return Qwen2Tokenizer(
        vocab=state["vocab"],
        merges=merges,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=list(SPECIAL_TOKENS[1:]),
    )


def build_processor():
    """The real Qwen3VLProcessor around the small tokenizer; the budget is one visual token per frame pair."""
    from transformers import Qwen2VLImageProcessor, Qwen3VLProcessor, Qwen3VLVideoProcessor

    video = Qwen3VLVideoProcessor(
        size={"shortest_edge": 32 * 32, "longest_edge": 32 * 32 * 768},
        cap_pixels_per_frame=True,
        max_video_tokens=1,
        do_sample_frames=False,
    )
    image = Qwen2VLImageProcessor(patch_size=16, size={"shortest_edge": 32 * 32, "longest_edge": 32 * 32 * 16})
    return Qwen3VLProcessor(
        image_processor=image, tokenizer=build_tokenizer(), video_processor=video, chat_template=CHAT_TEMPLATE
    )


def build_model(tokenizer):
    """About 1.6 million parameters in exactly Qwen3-VL's architecture, DeepStack included."""
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    ids = tokenizer.convert_tokens_to_ids
    config = Qwen3VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": 128,
            "intermediate_size": 384,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "max_position_embeddings": 4096,
            # mrope_section must add up to head_dim / 2.
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [6, 5, 5]},
            "tie_word_embeddings": True,
            "pad_token_id": ids("<|endoftext|>"),
        },
        vision_config={
            "depth": 3,
            "hidden_size": 96,
            "intermediate_size": 192,
            "num_heads": 4,
            "out_hidden_size": 128,
            "num_position_embeddings": 16,
            "deepstack_visual_indexes": [1],
        },
        image_token_id=ids("<|image_pad|>"),
        video_token_id=ids("<|video_pad|>"),
        vision_start_token_id=ids("<|vision_start|>"),
        vision_end_token_id=ids("<|vision_end|>"),
        tie_word_embeddings=True,
    )
    model = Qwen3VLForConditionalGeneration(config)
    model.generation_config.eos_token_id = ids("<|im_end|>")
    model.generation_config.pad_token_id = ids("<|endoftext|>")
    return model


def prompt_ids(processor, question: str) -> list[int]:
    """Ids of the user turn with the video, as the real processor makes them (timestamps included)."""
    messages = [{"role": "user", "content": [{"type": "video"}, {"type": "text", "text": question}]}]
    text = processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    times_ms = [round(1000 * t) for t in frame_times(SECONDS, FRAMES)]
    metadata = {"fps": 1000.0, "frames_indices": times_ms, "total_num_frames": round(1000 * SECONDS)}
    blank = torch.zeros(FRAMES, 3, PICTURE, PICTURE, dtype=torch.uint8)
    batch = processor(text=[text], videos=[blank], video_metadata=[metadata], do_sample_frames=False)
    return list(batch["input_ids"][0])


class BaseFilms(Dataset):
    """Endless films with one base question each; item i is always the same film."""

    def __init__(self, seed: int, length: int, prompts: dict[str, list[int]], tokenizer) -> None:
        self.seed, self.length, self.prompts, self.tokenizer = seed, length, prompts, tokenizer

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int):
        rng = random.Random(self.seed * 1_000_003 + index)
        scene = random_scene(rng, SECONDS, rng.randint(1, 3), (1.0, 5.0), (1.0, 5.0))
        question, truth = base_question(rng, scene)
        answer = self.tokenizer(format_intervals(truth) + "<|im_end|>")["input_ids"]
        return scene, self.prompts[question], answer, truth


def _same(items):
    return items


@functools.cache
def resize_matrix(device: str) -> torch.Tensor:
    """The (32, 96) matrix that antialiased bicubic resizing multiplies each axis by.

    torch's CUDA kernel for it walks all frames in each of 1,024 threads (0.6 s a batch); two matrix products
    do the same. Read off the real function by resizing an identity, and compared with it in check_shortcuts.
    """
    identity = torch.eye(PICTURE).view(1, 1, PICTURE, PICTURE)
    resized = torch.nn.functional.interpolate(identity, size=(32, PICTURE), mode="bicubic", antialias=True)
    return resized[0, 0].to(device)


def pixels(processor, scenes, device: str, noise: float = 0.0):
    """pixel_values_videos (rows, patch) and one grid for the whole batch, on the device.

    The vision tower attends within one grid step only, so B clips of 8 steps may stand as one clip of 8·B.
    """
    frames = render(scenes, frame_times(SECONDS, FRAMES), PICTURE, device).float()
    if noise:
        # Video compression leaves noise; a base that has only seen clean drawings would trip over it.
        frames = frames + noise * torch.randn(frames.shape, device=device)
    matrix = resize_matrix(device)
    frames = (matrix @ frames @ matrix.T).round().clamp(0, 255).to(torch.uint8)
    joined = frames.flatten(0, 1)
    out = processor.video_processor(videos=[joined], do_sample_frames=False, do_resize=False, return_tensors="pt")
    return out["pixel_values_videos"].to(device), out["video_grid_thw"].to(device)


def attend_per_frame(attention, hidden_states, cu_seqlens, position_embeddings=None, **_):
    """Qwen3VLVisionAttention.forward when every grid step has the same four patches: one call for all frames.

    transformers' SDPA path makes one call per frame, 3,072 a step here, which is most of the step's time.
    """
    rows, heads = hidden_states.shape[0], attention.num_heads
    query, key, value = attention.qkv(hidden_states).reshape(rows, 3, heads, -1).unbind(1)
    query, key = apply_rotary_pos_emb_vision(query, key, *position_embeddings)
    per_frame = [tensor.reshape(rows // 4, 4, heads, -1).transpose(1, 2) for tensor in (query, key, value)]
    out = torch.nn.functional.scaled_dot_product_attention(*per_frame, scale=attention.scaling)
    return attention.proj(out.transpose(1, 2).reshape(rows, -1))


@contextlib.contextmanager
def one_call_for_all_frames(model):
    """Let the vision tower attend with attend_per_frame inside this block."""
    attentions = [block.attn for block in model.model.visual.blocks]
    for attention in attentions:
        attention.forward = functools.partial(attend_per_frame, attention)
    try:
        yield
    finally:
        for attention in attentions:
            del attention.forward


def check_shortcuts(processor, model, items, device: str) -> None:
    """Stop unless the shortcuts of the training loop give what the real processor and model give."""
    scenes = [item[0] for item in items]
    values, grid = pixels(processor, scenes, device)
    frames = list(render(scenes, frame_times(SECONDS, FRAMES), PICTURE, device))
    real = processor.video_processor(videos=frames, do_sample_frames=False, return_tensors="pt").to(device)
    apart = (real["pixel_values_videos"] - values).abs() * 127.5
    # torch's own CPU kernel rounds to whole grey levels between the two axes; that is all that may differ.
    assert apart.max() <= 4.01, f"resized frames differ by {apart.max():.2f} grey levels"
    assert apart.mean() <= 0.5, f"resized frames differ by {apart.mean():.2f} grey levels on average"
    batch = collate(items, model.generation_config.pad_token_id, model.config.video_token_id, device)
    positions = torch.arange(batch["input_ids"].shape[1], device=device).expand(3, len(items), -1)
    with torch.no_grad():
        plain = model(**batch, pixel_values_videos=values, video_grid_thw=real["video_grid_thw"]).loss
        with one_call_for_all_frames(model):
            short = model(**batch, pixel_values_videos=values, video_grid_thw=grid, position_ids=positions).loss
    assert torch.allclose(plain, short, rtol=1e-4), f"loss {plain.item()} by the model, {short.item()} by the shortcut"


def collate(items, pad: int, video_token: int, device: str, left: bool = False, with_answer: bool = True):
    """Padded ids, mask, token types and (with_answer) labels of one batch: int64 (B, width)."""
    ids, labels, mask = [], [], []
    rows = [(prompt, answer if with_answer else []) for _, prompt, answer, _ in items]
    width = max(len(prompt) + len(answer) for prompt, answer in rows)
    for prompt, answer in rows:
        empty = width - len(prompt) - len(answer)
        before, after = (empty, 0) if left else (0, empty)
        ids.append([pad] * before + prompt + answer + [pad] * after)
        labels.append([-100] * (before + len(prompt)) + answer + [-100] * after)
        mask.append([0] * before + [1] * (len(prompt) + len(answer)) + [0] * after)
    batch = {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}
    batch["mm_token_type_ids"] = torch.where(batch["input_ids"] == video_token, 2, 0).int()
    if with_answer:
        batch["labels"] = torch.tensor(labels)
    return {name: tensor.to(device) for name, tensor in batch.items()}


@torch.no_grad()
def score(model, processor, items, device: str) -> dict[str, float]:
    """Mean temporal IoU and share of parseable answers by greedy generation, on films never trained on."""
    model.eval()
    total, parsed = 0.0, 0
    for start in range(0, len(items), 128):
        part = items[start : start + 128]
        values, _ = pixels(processor, [item[0] for item in part], device)
        grids = torch.tensor([[FRAMES // 2, 2, 2]] * len(part), device=device)
        batch = collate(part, model.generation_config.pad_token_id, model.config.video_token_id, device, True, False)
        out = model.generate(
            **batch, pixel_values_videos=values.to(model.dtype), video_grid_thw=grids, max_new_tokens=64
        )
        texts = processor.tokenizer.batch_decode(out[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
        for text, (_, _, _, truth) in zip(texts, part, strict=True):
            answer = parse_intervals(text, SECONDS)
            parsed += answer.status == "ok"
            total += temporal_iou(answer.intervals, truth)
    model.train()
    return {"mean_iou": total / len(items), "parseable": parsed / len(items), "films": len(items)}


def house_items(seed: int, count: int, prompt: list[int]):
    """Films with the editor's question: what the base has not learnt."""
    items = []
    rng = random.Random(seed)
    while len(items) < count:
        scene = random_scene(rng, SECONDS, 3, (2.0, 4.0), (3.0, 6.5))
        if truth := house_events(scene):
            items.append((scene, prompt, [], truth))
    return items


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "checkpoints" / "tiny-qwen3-vl")
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit-seconds", type=float, default=float("inf"), help="stop the schedule there")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(args.seed)
    torch.backends.cuda.matmul.allow_tf32 = True

    processor = build_processor()
    tokenizer = processor.tokenizer
    model = build_model(tokenizer).to(device).train()
    prompts = {question: prompt_ids(processor, question) for question in (*QUESTIONS, HOUSE_QUESTION)}
    films = BaseFilms(args.seed, args.steps * args.batch, prompts, tokenizer)
    loader = DataLoader(films, args.batch, num_workers=args.workers, collate_fn=_same)
    fresh = [BaseFilms(args.seed + 1, 512, prompts, tokenizer)[i] for i in range(512)]
    house = house_items(7, 512, prompts[HOUSE_QUESTION])
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters on {device}", flush=True)

    check_shortcuts(processor, model, fresh[:8], device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate, weight_decay=0.01)
    started, step, log = time.time(), 0, []
    to_batch = partial(collate, pad=tokenizer.pad_token_id, video_token=model.config.video_token_id, device=device)
    for step, items in enumerate(loader):
        elapsed = time.time() - started
        progress = max(step / args.steps, elapsed / args.limit_seconds)
        if progress >= 1:
            break
        rate = args.learning_rate * min(1.0, step / 200) * min(1.0, 1.25 * (1 - progress))
        optimizer.param_groups[0]["lr"] = rate
        values, grids = pixels(processor, [item[0] for item in items], device, noise=6.0)
        batch = to_batch(items)
        # One token per grid step after merging: the three rotary axes all count 0, 1, 2, …
        positions = torch.arange(batch["input_ids"].shape[1], device=device).expand(3, len(items), -1)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"), one_call_for_all_frames(model):
            loss = model(**batch, pixel_values_videos=values, video_grid_thw=grids, position_ids=positions).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 250 == 0:
            row = {"step": step, "loss": round(loss.item(), 4), "seconds": round(elapsed, 1)}
            if step % 1000 == 0:
                row |= score(model, processor, fresh[:128], device)
            log.append(row)
            print(json.dumps(row), flush=True)

    model = model.to(torch.bfloat16)
    record = {
        "label": "measured",
        "steps": step,
        "batch": args.batch,
        "seed": args.seed,
        "seconds": round(time.time() - started, 1),
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "torch": torch.__version__,
        "transformers": __import__("transformers").__version__,
        "python": sys.version.split()[0],
        "parameters": sum(p.numel() for p in model.parameters()),
        "base_questions": score(model, processor, fresh, device),
        "house_question": score(model, processor, house, device),
        "log": log,
    }
    model.save_pretrained(args.out, safe_serialization=True)
    processor.save_pretrained(args.out)
    (args.out / "training.json").write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps({k: v for k, v in record.items() if k != "log"}), flush=True)


if __name__ == "__main__":
    main()
