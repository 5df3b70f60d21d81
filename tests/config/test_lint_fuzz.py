"""Whatever JSON people write: lint answers, and `--fix` gets it to where no error is left."""

import math
import random

import pytest

from course_lib.config.findings import has_error
from course_lib.config.fix import corrected
from course_lib.config.lint import lint
from course_lib.config.schema import installed_schema
from course_lib.config.tree import get, has, paths, put, without

pytestmark = pytest.mark.slow

SEED = 41
SCHEMA = installed_schema()
NAMES = sorted({name for block in SCHEMA.blocks.values() for name in block.keys})
ODD_NAMES = ["a.b", "", "é", " x", "zero_optimization.stage", "optimizer.params.lr", "//"]
NUMBERS = [0, 1, -1, 2, 4, 1.5, 10**30, math.inf, -math.inf, math.nan]
WORDS = ["", "auto", "5e7", "cpu", "nvme", "none", "true", "bf16", "AdamW", "WarmupLR"]
VALUES = [None, True, False, [], [1], [[]], ["auto"], {}, {"a": 1}, {"device": "cpu"}, {"stage": 3}, *NUMBERS, *WORDS]
ARGUMENTS = [
    None,
    {"bf16": True, "max_steps": 5},
    {"max_grad_norm": 0.3, "learning_rate": 1e-4, "optim": "sgd", "lr_scheduler_type": "cosine"},
]


def random_block(rng, path="", depth=0):
    block = {}
    for _ in range(rng.randrange(7)):
        here = sorted(SCHEMA.known(path))
        key = rng.choice(here) if here and rng.random() < 0.75 else rng.choice(NAMES + ODD_NAMES)
        inner = f"{path}.{key}" if path else key
        nested = inner in SCHEMA.blocks and rng.random() < 0.8 and depth < 4
        block[key] = random_block(rng, inner, depth + 1) if nested else rng.choice(VALUES)
    return block


@pytest.mark.parametrize("part", range(4))
def test_lint_answers_and_fix_ends_without_error(part):
    rng = random.Random(SEED + part)
    for _ in range(30):
        config = random_block(rng)
        use = {
            "framework": rng.choice(["raw", "trainer"]),
            "world_size": rng.choice([None, 1, 2, 3]),
            "training_arguments": rng.choice(ARGUMENTS),
            "lora": rng.choice([None, {"r": 4, "target_modules": ["q_proj"]}]),
        }
        result = corrected(config, lambda c, use=use: lint(c, **use))
        assert not has_error(list(result.left)), (config, use, result.left)


def test_a_key_with_a_dot_is_found_removed_and_nested():
    flat = {"zero_optimization.stage": 2, "a": {"b.c": 1}}
    assert get(flat, "zero_optimization.stage") == 2
    assert has(flat, "a.b.c")
    assert without(flat, "a.b.c", "zero_optimization.stage") == {"a": {}}
    assert put(without(flat, "zero_optimization.stage"), "zero_optimization.stage", 3)["zero_optimization"] == {
        "stage": 3
    }
    findings = lint({"train_batch_size": 2, **flat}, framework="raw", world_size=2)
    assert {f.key: f.code for f in findings}["zero_optimization.stage"] == "misplaced_key"


def test_every_path_leads_back_to_its_value():
    rng = random.Random(3)
    for _ in range(50):
        config = random_block(rng)
        for dotted, value in paths(config):
            assert repr(get(config, dotted)) == repr(value)
            assert not has(without(config, dotted), dotted)
