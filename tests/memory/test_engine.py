"""What each ZeRO stage keeps and takes, derived here from its definition and checked on the timeline."""

import pytest

from course_lib.memory.engine.base import Rank
from course_lib.memory.engine.fetch import Coordinator
from course_lib.memory.engine.plain import PlainEngine
from course_lib.memory.engine.zero3 import Zero3Engine, persistent_parameters, sub_groups
from course_lib.memory.engine.zero12 import Zero12Engine
from course_lib.memory.host import host_parts, pinned_bytes
from course_lib.memory.settings import ZeroSettings
from course_lib.memory.timeline import Timeline
from course_lib.shapes.parameters import Parameter
from course_lib.units import GIB, MIB

ADAPTER, BASE = 4 * MIB, 64 * MIB
"""Elements: multiples of 512 so that rounding changes nothing."""


def parameter(name: str, numel: int, *, trainable: bool) -> Parameter:
    part = "adapters" if trainable else "attention"
    return Parameter(
        name=name, numel=numel, dtype_bytes=2, part=part, trainable=trainable, linear=not trainable, template=0
    )


def engine(kind, *, world_size: int = 1, base: int = BASE, adapter: int = ADAPTER, **settings):
    timeline = Timeline()
    rank = Rank(
        timeline=timeline,
        parameters=(parameter("base", base, trainable=False), parameter("lora_A", adapter, trainable=True)),
        settings=ZeroSettings(**settings),
        world_size=world_size,
        model_bytes=2,
        optimizer="AdamW (torch)",
    )
    made = kind(rank)
    timeline.begin("load")
    made.load(tied_bytes=0, gathered=True)
    timeline.begin("init")
    made.initialize()
    timeline.begin("forward")
    return made


def one_step(made) -> None:
    held = made.timeline.alloc(2 * ADAPTER, "block_in_flight")
    made.gradient(1, held)
    made.backward_ends()
    made.timeline.begin("step")
    made.step()
    made.timeline.end()


def test_stage_0_keeps_master_and_adam_of_the_trainable_parameters_from_the_start():
    made = engine(PlainEngine, stage=0)
    assert made.timeline.live == {
        "weights": 2 * BASE,
        "adapters": 2 * ADAPTER,
        "master_weights": 4 * ADAPTER,
        "optimizer_states": 8 * ADAPTER,
    }


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_stages_1_and_2_partition_master_and_adam_but_not_weights(world_size):
    made = engine(Zero12Engine, stage=2, world_size=world_size, reduce_bucket_size=8 * MIB)
    one_step(made)
    live = made.timeline.live
    assert live["weights"] + live["adapters"] == 2 * (BASE + ADAPTER)
    assert live["master_weights"] == 4 * ADAPTER // world_size
    assert live["optimizer_states"] == 8 * ADAPTER // world_size


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_stage_3_partitions_weights_too(world_size):
    made = engine(Zero3Engine, stage=3, world_size=world_size, reduce_bucket_size=MIB)
    one_step(made)
    live = made.timeline.live
    assert live["weights"] == 2 * BASE // world_size
    assert live["master_weights"] == 4 * ADAPTER // world_size
    assert live["gradients"] == 2 * ADAPTER // world_size


def test_stage_3_bucket_is_resident_even_for_tiny_adapters():
    small = engine(Zero3Engine, stage=3, adapter=512, reduce_bucket_size=500_000_000)
    assert small.timeline.live["zero_buffers"] == pytest.approx(1_000_000_000, abs=2 * MIB)


def test_stage_2_bucket_lives_from_the_first_gradient_to_the_end_of_backward():
    made = engine(Zero12Engine, stage=2, reduce_bucket_size=16 * MIB)
    assert "zero_buffers" not in made.timeline.live
    made.gradient(1, made.timeline.alloc(2 * ADAPTER, "block_in_flight"))
    assert made.timeline.live["zero_buffers"] == 32 * MIB
    made.backward_ends()
    assert "zero_buffers" not in made.timeline.live


def test_overlap_comm_doubles_the_stage_2_bucket():
    made = engine(Zero12Engine, stage=2, reduce_bucket_size=16 * MIB, overlap_comm=True)
    made.gradient(1, made.timeline.alloc(2 * ADAPTER, "block_in_flight"))
    assert made.timeline.live["zero_buffers"] == 2 * 32 * MIB


def test_initialisation_makes_a_gradient_as_large_as_the_master():
    made = engine(Zero12Engine, stage=2, base=MIB, adapter=256 * MIB, reduce_bucket_size=MIB)
    init = made.timeline.phases[1]
    # initialize_optimizer_states: zeros in fp32, dropped again.
    assert init.peak_bytes - init.after_bytes == 4 * 256 * MIB


def test_torch_adam_takes_one_more_fp32_tensor_and_the_fused_one_none():
    peaks = {}
    for optimizer in ("AdamW (torch)", "FusedAdam"):
        made = engine(Zero3Engine, stage=3, adapter=512 * MIB, reduce_bucket_size=MIB)
        made.rank.optimizer = optimizer
        made.gradient(1, made.timeline.alloc(2 * 512 * MIB, "block_in_flight"))
        made.backward_ends()
        phase = made.timeline.begin("step")
        made.step()
        peaks[optimizer] = phase.peak_bytes
    # exp_avg, exp_avg_sq and the fp32 gradient are there in both; √exp_avg_sq is torch's alone.
    assert peaks["AdamW (torch)"] - peaks["FusedAdam"] == 4 * 512 * MIB


def test_optimizer_offload_leaves_no_states_on_the_device_and_18_bytes_per_element_on_the_host():
    made = engine(Zero3Engine, stage=3, reduce_bucket_size=MIB, offload_optimizer="cpu", pin_memory=True)
    one_step(made)
    assert not {"master_weights", "optimizer_states", "gradients"} & set(made.timeline.live)
    assert sum(made.rank.host.values()) == 18 * ADAPTER


def test_parameter_offload_moves_the_shards_to_the_host():
    made = engine(Zero3Engine, stage=3, reduce_bucket_size=MIB, offload_param="cpu", offload_optimizer="cpu")
    assert "weights" not in made.timeline.live
    assert made.rank.host["weights"] == 2 * BASE


def test_sub_groups_split_where_the_limit_is_reached():
    assert sub_groups([4, 4, 4], 100) == [12]
    assert sub_groups([4, 4, 4], 8) == [8, 4]
    assert sub_groups([4, 4, 4], 1) == [4, 4, 4]


def test_persistence_counts_elements_up_to_the_models_threshold():
    parameters = tuple(parameter(f"p{i}", numel, trainable=False) for i, numel in enumerate((100, 5000, 90, 80)))
    settings = ZeroSettings(stage=3, param_persistence_threshold=100, model_persistence_threshold=200)
    assert persistent_parameters(parameters, settings) == {0, 2}


def test_pinned_memory_is_rounded_to_a_power_of_two():
    assert pinned_bytes(33 * GIB) == 64 * GIB
    assert pinned_bytes(64 * GIB) == 64 * GIB
    assert host_parts({"weights": 33 * GIB}, (33 * GIB,)) == {"weights": 33 * GIB, "pinned_rounding": 31 * GIB}


def gathering(world_size: int, **settings) -> Coordinator:
    rank = Rank(
        timeline=Timeline(),
        parameters=tuple(parameter(f"p{i}", MIB, trainable=False) for i in range(4)),
        settings=ZeroSettings(stage=3, **settings),
        world_size=world_size,
        model_bytes=2,
        optimizer="AdamW (torch)",
    )
    rank.timeline.begin("forward")
    rank.weights = {i: rank.timeline.alloc(2 * MIB // world_size, "weights") for i in range(4)}
    return Coordinator(rank, frozenset())


def test_one_rank_gathers_nothing():
    coordinator = gathering(1)
    coordinator.begin_step()
    coordinator.enter("m", (0, 1), forward=True, recomputing=False)
    assert "gathered_parameters" not in coordinator.rank.timeline.live


def test_several_parameters_are_gathered_twice_over_and_one_alone_once():
    for params, copies in (((0, 1), 2), ((0,), 1)):
        coordinator = gathering(2)
        coordinator.begin_step()
        coordinator.enter("m", params, forward=True, recomputing=False)
        phase = coordinator.rank.timeline.phases[-1]
        assert phase.parts["gathered_parameters"] == copies * len(params) * 2 * MIB
        coordinator.leave("m", params, forward=True)
        assert "gathered_parameters" not in coordinator.rank.timeline.live


def test_prefetch_acts_from_the_second_step_on():
    coordinator = gathering(2, prefetch_bucket_size=MIB, max_reuse_distance=0)
    peaks = []
    for _ in range(2):
        phase = coordinator.rank.timeline.begin("forward")
        coordinator.begin_step()
        for p in range(4):
            coordinator.enter(p, (p,), forward=True, recomputing=False)
            coordinator.leave(p, (p,), forward=True)
        coordinator.begin_optimizer_step()
        peaks.append(phase.parts["gathered_parameters"])
    assert peaks == [2 * MIB, 4 * MIB]


def test_near_reuse_keeps_a_parameter():
    coordinator = gathering(2, prefetch_bucket_size=0, max_reuse_distance=10 * MIB)
    for _ in range(2):
        coordinator.begin_step()
        coordinator.enter("a", (0,), forward=True, recomputing=False)
        coordinator.leave("a", (0,), forward=True)
        kept = coordinator.rank.timeline.live.get("gathered_parameters", 0)
        coordinator.enter("b", (0,), forward=True, recomputing=False)
        coordinator.leave("b", (0,), forward=True)
        coordinator.begin_optimizer_step()
    assert kept == 2 * MIB
