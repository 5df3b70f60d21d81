"""Configurations that a careful person would write: lint has nothing to say about any of them."""

AUTO_BATCH = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
}

RAW = {
    "ddp": {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4, "bf16": {"enabled": True}},
    "stage_1": {
        "train_batch_size": 16,
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 1, "reduce_bucket_size": 5e8, "overlap_comm": False},
        "optimizer": {
            "type": "AdamW",
            "params": {"lr": 1e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.01},
        },
        "wall_clock_breakdown": False,
    },
    "stage_2_offload": {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 8,
        "gradient_clipping": 0.5,
        "steps_per_print": 50,
        "fp16": {"enabled": True, "loss_scale": 0, "initial_scale_power": 12, "min_loss_scale": 1},
        "zero_optimization": {
            "stage": 2,
            "offload_optimizer": {"device": "cpu", "pin_memory": True},
            "allgather_partitions": True,
            "allgather_bucket_size": 2e8,
            "overlap_comm": True,
            "reduce_scatter": True,
            "reduce_bucket_size": 2e8,
            "contiguous_gradients": True,
        },
        "optimizer": {"type": "Adam", "params": {"lr": 2e-5}},
        "scheduler": {
            "type": "WarmupLR",
            "params": {"warmup_min_lr": 0, "warmup_max_lr": 2e-5, "warmup_num_steps": 10},
        },
    },
    "stage_3": {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "bf16": {"enabled": True},
        "zero_optimization": {
            "stage": 3,
            "offload_optimizer": {"device": "cpu", "pin_memory": False},
            "offload_param": {"device": "cpu"},
            "overlap_comm": True,
            "contiguous_gradients": True,
            "reduce_bucket_size": 5_000_000,
            "stage3_prefetch_bucket_size": 5_000_000,
            "stage3_param_persistence_threshold": 100_000,
            "stage3_max_live_parameters": 1e9,
            "stage3_max_reuse_distance": 1e9,
            "stage3_gather_16bit_weights_on_model_save": True,
        },
        "activation_checkpointing": {"partition_activations": False, "cpu_checkpointing": False},
        "flops_profiler": {"enabled": False, "profile_step": 5},
        "comms_logger": {"enabled": False, "prof_all": True},
        "data_types": {"grad_accum_dtype": "fp32"},
        "checkpoint": {"tag_validation": "Ignore", "load_universal": False},
        "tensorboard": {"enabled": False, "output_path": "logs", "job_name": "run"},
    },
}

TRAINER = {
    "stage_2": {
        **AUTO_BATCH,
        "bf16": {"enabled": "auto"},
        "zero_optimization": {"stage": 2, "overlap_comm": False, "reduce_bucket_size": 5e8},
    },
    "stage_3": {
        **AUTO_BATCH,
        "bf16": {"enabled": "auto"},
        "fp16": {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000, "hysteresis": 2},
        "zero_optimization": {
            "stage": 3,
            "overlap_comm": True,
            "contiguous_gradients": True,
            "reduce_bucket_size": "auto",
            "stage3_prefetch_bucket_size": "auto",
            "stage3_param_persistence_threshold": "auto",
            "stage3_gather_16bit_weights_on_model_save": True,
        },
        "optimizer": {
            "type": "AdamW",
            "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"},
        },
        "scheduler": {
            "type": "WarmupDecayLR",
            "params": {
                "warmup_min_lr": "auto",
                "warmup_max_lr": "auto",
                "warmup_num_steps": "auto",
                "total_num_steps": "auto",
            },
        },
        "steps_per_print": 100,
        "wall_clock_breakdown": False,
    },
}
