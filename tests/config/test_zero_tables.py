"""The tables of ZeRO fields in the lint rules, against the installed DeepSpeed's source.

Who reads a field is taken from the syntax tree: the engine's branch for stages 1 and 2, its branch for stage 3,
zero.Init and what it leads to, or nobody.
"""

import ast
import re
from pathlib import Path

import deepspeed
import pytest

from course_lib.config.rules.offload import NVME_ONLY
from course_lib.config.rules.zero import NEVER_READ, STAGE_1_2_ONLY, STAGE_3_ONLY, ZERO
from course_lib.config.schema import installed_schema

PACKAGE = Path(deepspeed.__file__).parent
ENGINE = ast.parse((PACKAGE / "runtime/engine.py").read_text())
FIELDS = set(installed_schema().blocks[ZERO].model.model_fields)


def engine_method(name: str) -> ast.FunctionDef:
    return next(n for n in ast.walk(ENGINE) if isinstance(n, ast.FunctionDef) and n.name == name)


def getters() -> dict[str, str]:
    """Engine method → the zero_config field that it returns."""
    found = {}
    for node in ast.walk(ENGINE):
        if isinstance(node, ast.FunctionDef):
            match = re.search(r"return self\._config\.zero_config\.(\w+)$", ast.unparse(node), re.MULTILINE)
            if match:
                found[node.name] = match[1]
    return found


def fields_called_in(nodes: list[ast.stmt]) -> set[str]:
    called = {
        n.func.attr for node in nodes for n in ast.walk(node) if isinstance(n, ast.Call) and hasattr(n.func, "attr")
    }
    return {field for method, field in getters().items() if method in called}


def stage_branches() -> tuple[set[str], set[str]]:
    """Fields that engine._configure_zero_optimizer hands to the optimizer of stages 1 and 2, and of stage 3."""
    for node in ast.walk(engine_method("_configure_zero_optimizer")):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "zero_stage <= ZeroStageEnum.gradients":
            return fields_called_in(node.body), fields_called_in(node.orelse[0].body)
    raise AssertionError("engine._configure_zero_optimizer has no branch on the stage any more")


def read_as(pattern: str, *, outside: tuple[str, ...] = ()) -> set[str]:
    """Package files that match a pattern."""
    files = [p for p in PACKAGE.rglob("*.py") if not str(p.relative_to(PACKAGE)).startswith(outside)]
    return {str(p.relative_to(PACKAGE)) for p in files if re.search(pattern, p.read_text(encoding="utf-8"))}


@pytest.mark.parametrize("field", sorted(STAGE_1_2_ONLY))
def test_a_field_of_stages_1_and_2_is_not_handed_to_stage_3(field):
    early, late = stage_branches()
    assert field in FIELDS
    assert field in early
    assert field not in late


@pytest.mark.parametrize("field", sorted(STAGE_3_ONLY))
def test_a_stage_3_field_is_not_handed_to_stages_1_and_2(field):
    early, _ = stage_branches()
    assert field in FIELDS
    assert field not in early


def test_every_field_of_one_branch_alone_is_in_a_table():
    """A field that a newer DeepSpeed adds to one branch has to be sorted in here."""
    early, late = stage_branches()
    settled = {"offload_param", "offload_optimizer", "zenflow", "stage"}
    read_at_any_stage = {"load_from_fp32_weights"}
    # Not handed over by the engine but read by the optimizer itself, or at checkpoints: checked on their own.
    elsewhere = {"elastic_checkpoint", "contiguous_gradients"}
    assert early - late - STAGE_1_2_ONLY - settled - read_at_any_stage - elsewhere == set()
    assert late - early - STAGE_3_ONLY - settled - read_at_any_stage - elsewhere == set()


def test_a_key_that_is_called_never_read_is_read_by_nothing():
    for key in NEVER_READ:
        name = key.rpartition(".")[2]
        holders = read_as(rf"\b{name}\b", outside=("autotuning", "inference"))
        definitions = {"runtime/config.py", "runtime/zero/config.py", "runtime/constants.py", "runtime/engine.py"}
        assert holders <= definitions, f"{name} is now mentioned in {holders - definitions}"
        getter = next((method for method, field in getters().items() if field == name), None)
        if getter is not None:
            assert read_as(rf"\b{getter}\(\)") == set()


@pytest.mark.parametrize("key", sorted({key for keys in NVME_ONLY.values() for key in keys}))
def test_an_nvme_key_is_read_by_the_swapping_code_alone(key):
    reads = read_as(rf"(config|offload_param|offload_optimizer)\.{key}\b")
    allowed = {
        *("runtime/zero/stage3.py", "runtime/zero/partition_parameters.py"),
        *("runtime/zero/offload_config.py", "runtime/zero/parameter_offload.py"),
    }
    assert {path for path in reads if not path.startswith("runtime/swap_tensor")} <= allowed
    assert reads, f"nothing reads {key} any more"
