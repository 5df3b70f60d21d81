"""The cases that were measured, as data: shapes, the small ZeRO configs, and one function per list.

python benchmarks/memory/cases.py OUT_DIR [traced|measured]    writes one JSON file per case
"""

import json
import sys
from pathlib import Path

LLAMA8 = {
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 131072,
}
LLAMA1 = {
    **LLAMA8,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "head_dim": 64,
    "tie_word_embeddings": True,
}
QWEN2_7 = {
    "vocab_size": 152064,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32768,
}
QWEN3_4 = {
    "vocab_size": 151936,
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": True,
}
QWEN3_MOE = {
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 8,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "max_position_embeddings": 40960,
}
VISION_SMALL = {
    "depth": 24,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_heads": 16,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "deepstack_visual_indexes": [5, 11, 17],
    "num_position_embeddings": 2304,
}


def vl(hidden: int, intermediate: int, layers: int, heads: int, *, tied: bool = True) -> dict:
    """A Qwen3-VL shape around the small vision tower of the 2B and 4B models."""
    return {
        "text_config": {
            "vocab_size": 151936,
            "hidden_size": hidden,
            "intermediate_size": intermediate,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 262144,
        },
        "vision_config": {**VISION_SMALL, "out_hidden_size": hidden},
        "tie_word_embeddings": tied,
    }


ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
ALL = [*ATTENTION, "gate_proj", "up_proj", "down_proj"]


def lora(r: int = 16, targets: list[str] = ATTENTION, **extra) -> dict:
    return {"r": r, "lora_alpha": 2 * r, "target_modules": targets, **extra}


def zero(stage: int, **extra) -> dict:
    """ds_config with bf16 and clipping; stage 3 with the small buckets of the given cases unless told otherwise."""
    small = {
        "overlap_comm": False,
        "contiguous_gradients": True,
        "reduce_bucket_size": 5_000_000,
        "stage3_prefetch_bucket_size": 5_000_000,
        "stage3_param_persistence_threshold": 10_000,
        "stage3_max_live_parameters": 100_000_000,
        "stage3_max_reuse_distance": 100_000_000,
    }
    section = {"stage": stage, **(small if stage == 3 and not extra.pop("defaults", False) else {}), **extra}
    section.pop("defaults", None)
    return {"bf16": {"enabled": True}, "gradient_clipping": 1.0, "zero_optimization": section}


def case(model_type: str, config: dict, ds_config: dict, **given) -> dict:
    return {
        "model": {"model_type": model_type, "config": config},
        "dtype": "bfloat16",
        "quantization": None,
        "lora": lora(),
        "optimizer": "AdamW (torch)",
        "gradient_checkpointing": True,
        "attention": "sdpa",
        "micro_batch_size": 1,
        "sequence_length": 2048,
        "video_grids": [],
        "loss": "all_positions",
        "ds_config": ds_config,
        "world_size": 1,
        "load": "materialised",
        "outputs_kept": True,
        **given,
    }


CPU = {"device": "cpu"}


def traced() -> dict[str, dict]:
    """Few layers, with the allocator's own log kept: what the model of memory is read against, event by event."""
    l8 = {**LLAMA8, "num_hidden_layers": 3}
    l1 = {**LLAMA1, "num_hidden_layers": 3}
    q7 = {**QWEN2_7, "num_hidden_layers": 3}
    moe = {**QWEN3_MOE, "num_hidden_layers": 3}
    v2 = vl(2048, 6144, 4, 16)
    video = {"sequence_length": 1024, "video_grids": [[4, 36, 20]]}
    hybrid = {
        "text_config": {"vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 4},
    }
    return {
        "z3_ckpt": case("llama", l8, zero(3)),
        "z3_nockpt": case("qwen2", q7, zero(3), gradient_checkpointing=False, lora=lora(32, ALL)),
        "z3_nomel": case("llama", l8, zero(3, memory_efficient_linear=False), gradient_checkpointing=False),
        "z2_overlap": case("llama", l8, zero(2, overlap_comm=True), lora=lora(64, ALL), micro_batch_size=2),
        "z2_plain": case("llama", l8, zero(2, overlap_comm=False, contiguous_gradients=True)),
        "z1": case("llama", l8, zero(1)),
        "z0": case("llama", l8, zero(0)),
        "z3_off_opt": case("llama", l8, zero(3, offload_optimizer=CPU)),
        "z3_off_both": case("llama", l8, zero(3, offload_optimizer=CPU, offload_param=CPU)),
        "z2_off_opt": case("llama", l8, zero(2, offload_optimizer=CPU)),
        "full_z3": case("llama", l1, zero(3), lora=None),
        "full_z2": case("llama", l1, zero(2), lora=None),
        "full_z1": case("llama", l1, zero(1), lora=None),
        "full_z0": case("llama", l1, zero(0), lora=None),
        "full_z3_off": case("llama", l1, zero(3, offload_optimizer=CPU, offload_param=CPU), lora=None),
        "full_z2_off": case("llama", l1, zero(2, offload_optimizer=CPU), lora=None),
        "moe_z3": case("qwen3_moe", moe, zero(3)),
        "moe_z2_nockpt": case("qwen3_moe", moe, zero(2), gradient_checkpointing=False),
        "vl_z3": case("qwen3_vl", v2, zero(3), **video),
        "vl_z3_nockpt": case("qwen3_vl", v2, zero(3), gradient_checkpointing=False, **video),
        "q35_z3": case("qwen3_5", hybrid, zero(3)),
        "eager_z3": case("llama", l8, zero(3), attention="eager"),
        "eager_nockpt": case("llama", l8, zero(3), attention="eager", gradient_checkpointing=False),
        "z3_drop": case("llama", l8, zero(3), gradient_checkpointing=False, lora=lora(16, ALL, lora_dropout=0.05)),
        "z3_default": case("llama", l8, zero(3, defaults=True)),
        "z3_init": case("llama", l8, zero(3), load="zero_init"),
    }


LLAMA3 = {**LLAMA1, "hidden_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 24, "head_dim": 128}
QWEN3_8 = {**QWEN3_4, "hidden_size": 4096, "intermediate_size": 12288, "tie_word_embeddings": False}
QWEN3_14 = {
    **QWEN3_8,
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "num_hidden_layers": 40,
    "num_attention_heads": 40,
}
QWEN3_06 = {
    **QWEN3_4,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
}
QWEN2_32 = {
    **QWEN2_7,
    "hidden_size": 5120,
    "intermediate_size": 27648,
    "num_hidden_layers": 64,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
}
QWEN25VL_7 = {
    "text_config": {**QWEN2_7, "max_position_embeddings": 128000},
    "vision_config": {
        "depth": 32,
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "num_heads": 16,
        "out_hidden_size": 3584,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "window_size": 112,
        "fullatt_block_indexes": [7, 15, 23, 31],
    },
}
QWEN3VL_MOE = {
    "text_config": {**QWEN3_MOE, "num_hidden_layers": 8},
    "vision_config": {
        **VISION_SMALL,
        "depth": 27,
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "deepstack_visual_indexes": [8, 16, 24],
        "out_hidden_size": 2048,
    },
}
QWEN35_4 = {
    "text_config": {
        "vocab_size": 248320,
        "hidden_size": 2560,
        "intermediate_size": 9216,
        "num_hidden_layers": 32,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
    },
    "vision_config": {
        "depth": 24,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_heads": 16,
        "out_hidden_size": 2560,
    },
}


def measured() -> dict[str, dict]:
    """What benchmarks/results/memory_cases.json holds; every third one (HELD_OUT) was not looked at while building."""
    eight = {"sequence_length": 4096}
    film = {"sequence_length": 3072, "video_grids": [[16, 36, 20]]}
    no = {"gradient_checkpointing": False}
    return {
        "l1_full_z2_4k_mbs2": case("llama", LLAMA1, zero(2), lora=None, sequence_length=4096, micro_batch_size=2),
        "l1_full_z3_defaults_2k": case("llama", LLAMA1, zero(3, defaults=True), lora=None),
        "l1_full_z0_1k": case("llama", LLAMA1, zero(0), lora=None, sequence_length=1024),
        "l1_full_z1_nockpt_1k_mbs2": case(
            "llama", LLAMA1, zero(1), lora=None, sequence_length=1024, micro_batch_size=2, **no
        ),
        "l1_full_z3_offboth_2k": case("llama", LLAMA1, zero(3, offload_optimizer=CPU, offload_param=CPU), lora=None),
        "l1_full_z2_offopt_2k_mbs4": case(
            "llama", LLAMA1, zero(2, offload_optimizer=CPU), lora=None, micro_batch_size=4
        ),
        "q06_full_z3_nockpt_2k": case("qwen3", QWEN3_06, zero(3), lora=None, **no),
        "l3_z1_nockpt_512_mbs8": case(
            "llama", LLAMA3, zero(1), lora=lora(16, ALL), sequence_length=512, micro_batch_size=8, **no
        ),
        "l8_z3_ckpt_32k": case("llama", LLAMA8, zero(3), sequence_length=32768),
        "l8_z2_eager_2k": case("llama", LLAMA8, zero(2), attention="eager"),
        "l8_z3_offboth_4k": case("llama", LLAMA8, zero(3, offload_optimizer=CPU, offload_param=CPU), **eight),
        "l8_z3_512": case("llama", LLAMA8, zero(3), sequence_length=512),
        "l8_z3_drop_nockpt_1k": case(
            "llama", LLAMA8, zero(3), lora=lora(32, ALL, lora_dropout=0.1), sequence_length=1024, **no
        ),
        "q7_z3_offopt_8k": case("qwen2", QWEN2_7, zero(3, offload_optimizer=CPU), sequence_length=8192),
        "q7_z3_defaults_2k_mbs2": case("qwen2", QWEN2_7, zero(3, defaults=True), micro_batch_size=2),
        "q3_4b_z2_16k": case("qwen3", QWEN3_4, zero(2, overlap_comm=True), sequence_length=16384),
        "q3_8b_z0_nockpt_2k_mbs2": case("qwen3", QWEN3_8, zero(0), micro_batch_size=2, **no),
        "q3_14b_z3_4k_mbs2": case("qwen3", QWEN3_14, zero(3), lora=lora(64, ALL), micro_batch_size=2, **eight),
        "q32_z3_2k": case("qwen2", QWEN2_32, zero(3)),
        "l1_lora_z2_1k_mbs8_eager_nockpt": case(
            "llama", LLAMA1, zero(2), sequence_length=1024, micro_batch_size=8, attention="eager", **no
        ),
        "moe8_z3_4k": case("qwen3_moe", QWEN3_MOE, zero(3), **eight),
        "moe8_z2_nockpt_2k": case("qwen3_moe", QWEN3_MOE, zero(2), **no),
        "vl2_z3_16x36x20": case("qwen3_vl", vl(2048, 6144, 28, 16), zero(3), **film),
        "vl4_z2_16x36x20_nockpt": case("qwen3_vl", vl(2560, 9728, 36, 32), zero(2), **film, **no),
        "vl4_z3_32x36x20_mbs2": case(
            "qwen3_vl",
            vl(2560, 9728, 36, 32),
            zero(3),
            sequence_length=6144,
            video_grids=[[32, 36, 20]],
            micro_batch_size=2,
        ),
        "vl25_7b_z3_8x36x20": case("qwen2_5_vl", QWEN25VL_7, zero(3), sequence_length=2048, video_grids=[[8, 36, 20]]),
        "vlmoe8_z3_16x36x20": case("qwen3_vl_moe", QWEN3VL_MOE, zero(3), **film),
        "q35_4b_z3_4k": case("qwen3_5", QWEN35_4, zero(3), **eight),
        "q35_4b_z2_video_nockpt": case(
            "qwen3_5", QWEN35_4, zero(2), sequence_length=2048, video_grids=[[8, 36, 20]], **no
        ),
        "l8_z3_nomel_nockpt_2k": case(
            "llama", LLAMA8, zero(3, memory_efficient_linear=False), lora=lora(16, ALL), **no
        ),
    }


def main() -> None:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    chosen = sys.argv[2] if len(sys.argv) > 2 else "measured"
    for name, record in globals()[chosen]().items():
        (out / f"{name}.json").write_text(json.dumps({"case": record}, indent=1))


if __name__ == "__main__":
    main()
