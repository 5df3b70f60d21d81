"""The corrected copy: no error is left, and what was right is kept."""

import random

import pytest
from clean_configs import RAW, TRAINER
from test_lint_mutations import mutate
from test_lint_rules import RAW_CASES, TRAINER_CASES

from course_lib.config.findings import Edit, has_error
from course_lib.config.fix import apply, corrected
from course_lib.config.lint import lint


@pytest.mark.parametrize("name", RAW_CASES)
def test_a_corrected_raw_config_has_neither_error_nor_warning(name):
    config = RAW_CASES[name][0]
    result = corrected(config, lambda c: lint(c, framework="raw", world_size=2))
    assert [f for f in lint(result.config, framework="raw", world_size=2) if f.level != "note"] == []


@pytest.mark.parametrize("name", TRAINER_CASES)
def test_a_corrected_trainer_config_has_no_error(name):
    config, arguments = TRAINER_CASES[name][:2]
    result = corrected(config, lambda c: lint(c, world_size=2, training_arguments=arguments))
    assert not has_error(lint(result.config, world_size=2, training_arguments=arguments))


def test_a_clean_config_is_not_touched():
    for config in RAW.values():
        result = corrected(config, lambda c: lint(c, framework="raw", world_size=2))
        assert (result.config, result.edits) == (config, ())


@pytest.mark.parametrize(("framework", "configs"), [("raw", RAW), ("trainer", TRAINER)])
def test_mutated_configs_can_be_corrected(framework, configs):
    rng = random.Random(7)
    for _ in range(60):
        _, _, config = mutate(configs[rng.choice(sorted(configs))], rng)
        result = corrected(config, lambda c: lint(c, framework=framework, world_size=2))
        assert not has_error(list(result.left)), (config, result.left)


def test_a_misplaced_block_is_moved_with_what_stands_in_it():
    config = {**RAW["stage_1"], "offload_optimizer": {"device": "cpu"}}
    result = corrected(config, lambda c: lint(c, framework="raw", world_size=2))
    assert result.config["zero_optimization"]["offload_optimizer"] == {"device": "cpu"}
    assert "offload_optimizer" not in result.config


def test_a_misspelt_key_keeps_its_value():
    config = {k: v for k, v in RAW["stage_1"].items() if k != "gradient_clipping"} | {"gradient_cliping": 0.25}
    result = corrected(config, lambda c: lint(c, framework="raw", world_size=2))
    assert result.config["gradient_clipping"] == 0.25


def test_an_edit_leaves_its_input_alone():
    config = {"a": {"b": 1}}
    assert apply(config, Edit(action="move", key="a.b", to="c.d")) == {"a": {}, "c": {"d": 1}}
    assert apply(config, Edit(action="set", key="a.x", value=2)) == {"a": {"b": 1, "x": 2}}
    assert apply(config, Edit(action="delete", key="a.b")) == {"a": {}}
    assert config == {"a": {"b": 1}}
