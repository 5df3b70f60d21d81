"""Sampler coverage against the samplers themselves, run rank by rank in one process."""

import itertools
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_lib.data.coverage import SamplerSettings, cover, require_every_rank_has_a_batch, trainer_epoch_order
from course_lib.errors import FINDING, CourseError

COMBINATIONS = list(itertools.product(range(26), (1, 2, 3, 4, 8), (1, 2, 3, 4), (False, True)))
"""(samples, batch size, ranks, drop_last)"""


def by_step(batches_of_rank):
    """Per-rank lists of batches as steps[step][rank], with () where a rank has run out."""
    return tuple(
        tuple(tuple(batch) for batch in step) for step in itertools.zip_longest(*batches_of_rank, fillvalue=())
    )


def accelerate_steps(samples, size, ranks, drop_last, even_batches, order=None):
    from accelerate.data_loader import BatchSamplerShard
    from torch.utils.data import BatchSampler

    def batch_sampler():
        return BatchSampler(order or range(samples), size, drop_last)

    if ranks == 1:  # prepare_data_loader leaves a single process its own sampler
        return by_step([list(batch_sampler())])
    # Lists are copied because the shard goes on appending to the batches that it yields.
    shards = [BatchSamplerShard(batch_sampler(), ranks, rank, even_batches=even_batches) for rank in range(ranks)]
    return by_step([[list(batch) for batch in shard] for shard in shards])


@pytest.mark.parametrize("even_batches", [True, False])
def test_accelerate_deals_as_predicted(even_batches):
    for samples, size, ranks, drop_last in COMBINATIONS:
        settings = SamplerSettings(batch_size=size, ranks=ranks, drop_last=drop_last, even_batches=even_batches)
        expected = accelerate_steps(samples, size, ranks, drop_last, even_batches)
        assert cover(samples, settings).steps == expected, (samples, size, ranks, drop_last)


def test_torch_distributed_sampler_deals_as_predicted():
    from torch.utils.data import BatchSampler, DistributedSampler

    for samples, size, ranks, drop_last in COMBINATIONS:
        if samples == 0:
            continue  # DistributedSampler divides by the number of samples
        batches = []
        for rank in range(ranks):
            sampler = DistributedSampler(range(samples), ranks, rank, shuffle=False, drop_last=drop_last)
            batches.append(list(BatchSampler(sampler, size, drop_last)))
        settings = SamplerSettings(batch_size=size, ranks=ranks, kind="torch", drop_last=drop_last)
        assert cover(samples, settings).steps == by_step(batches), (samples, size, ranks, drop_last)


def dispatcher_steps(monkeypatch, samples, size, ranks, drop_last):
    """What accelerate's dispatcher slices on rank 0; the other ranks take the other slices of the same tensor."""
    import accelerate.data_loader as loader
    import torch

    steps = []

    def slice_of_every_rank(batch, data_slice, process_index, num_processes):
        if data_slice == slice(0, num_processes) and slice_of_every_rank.first:
            slice_of_every_rank.first = False  # the samples kept to fill the last step, not a step
            return batch[data_slice]
        share = data_slice.stop - data_slice.start
        steps.append(tuple(tuple(batch[r * share : (r + 1) * share].tolist()) for r in range(num_processes)))
        return batch[data_slice]

    slice_of_every_rank.first = not drop_last
    state = types.SimpleNamespace(num_processes=ranks, process_index=0, device="cpu")
    monkeypatch.setattr(loader, "PartialState", lambda: state)
    monkeypatch.setattr(
        loader, "GradientState", lambda: types.SimpleNamespace(_add_dataloader=id, _remove_dataloader=id)
    )
    monkeypatch.setattr(loader, "broadcast_object_list", lambda objects: objects)
    monkeypatch.setattr(loader, "broadcast", lambda batch, from_process: batch)
    dispatcher = loader.DataLoaderDispatcher(
        torch.arange(samples),
        _drop_last=drop_last,
        slice_fn=slice_of_every_rank,
        batch_sampler=torch.utils.data.BatchSampler(range(samples), size, drop_last),
    )
    if drop_last and samples < size * ranks:
        # The dispatcher does not end such an epoch quietly.
        with pytest.raises(ValueError, match="does not contain any data"):
            next(iter(dispatcher))
        return ()
    for _ in dispatcher:
        pass
    return tuple(steps)


def test_the_dispatcher_deals_as_predicted(monkeypatch):
    for samples, size, ranks, drop_last in COMBINATIONS:
        expected = dispatcher_steps(monkeypatch, samples, size, ranks, drop_last) if samples else ()
        settings = SamplerSettings(batch_size=size, ranks=ranks, kind="dispatch", drop_last=drop_last)
        assert cover(samples, settings).steps == expected, (samples, size, ranks, drop_last)


@pytest.mark.parametrize(("samples", "size", "ranks"), [(7, 2, 2), (24, 4, 3), (5, 4, 2), (9, 2, 1)])
def test_the_shuffled_epochs_of_the_trainer_are_predicted(samples, size, ranks):
    import torch
    from accelerate.data_loader import prepare_data_loader

    loaders = [
        prepare_data_loader(
            torch.utils.data.DataLoader(list(range(samples)), batch_size=size, shuffle=True),
            num_processes=ranks,
            process_index=rank,
            put_on_device=False,
            use_seedable_sampler=True,
            data_seed=17,
        )
        for rank in range(ranks)
    ]
    settings = SamplerSettings(batch_size=size, ranks=ranks)
    for epoch in range(3):
        for loader in loaders:
            loader.set_epoch(epoch)
        real = by_step([[batch.tolist() for batch in loader] for loader in loaders])
        assert cover(samples, settings, trainer_epoch_order(samples, 17, epoch)).steps == real


settings_strategy = st.builds(
    SamplerSettings,
    batch_size=st.integers(1, 9),
    ranks=st.integers(1, 6),
    kind=st.sampled_from(["accelerate", "dispatch", "torch"]),
    drop_last=st.booleans(),
    even_batches=st.booleans(),
)


@given(st.integers(0, 80), settings_strategy)
def test_every_sample_is_used_or_said_to_be_dropped(samples, settings):
    coverage = cover(samples, settings)
    used = [sample for step in coverage.steps for batch in step for sample in batch]
    assert set(used) | set(coverage.dropped) == set(range(samples))
    assert not set(used) & set(coverage.dropped)
    assert coverage.consumed_samples == len(used)
    assert coverage.distinct_samples == len(set(used))
    assert {sample for sample in used if used.count(sample) > 1} == set(coverage.repeated)


@given(st.integers(0, 80), settings_strategy)
def test_a_coverage_that_passes_gives_every_rank_a_batch_in_every_step(samples, settings):
    coverage = cover(samples, settings)
    complete = bool(coverage.steps) and all(batch for step in coverage.steps for batch in step)
    finding = finding_of(coverage)
    if not complete or coverage.ranks_with_repeats_only:
        assert finding is not None
        assert finding.exit_code == FINDING
        assert "\n" not in finding.line()
    else:
        assert finding is None


def finding_of(coverage):
    try:
        require_every_rank_has_a_batch(coverage)
    except CourseError as error:
        return error
    return None


def test_the_practitioners_single_sample_on_two_ranks_is_refused_by_every_sampler():
    for kind, drop_last in itertools.product(("accelerate", "dispatch", "torch"), (True, False)):
        settings = SamplerSettings(batch_size=1, ranks=2, kind=kind, drop_last=drop_last)
        with pytest.raises(CourseError, match=r"1 sample for 2 ranks") as error:
            require_every_rank_has_a_batch(cover(1, settings))
        assert ("0 steps would run" in error.value.line()) == drop_last


def test_the_practitioners_three_samples_on_two_ranks_lose_one_when_the_last_is_dropped():
    coverage = cover(3, SamplerSettings(batch_size=1, ranks=2, kind="torch", drop_last=True))
    assert coverage.dropped == (2,)
    assert "dropped 2" in coverage.describe()
    require_every_rank_has_a_batch(coverage)


def test_the_default_of_the_trainer_repeats_the_first_sample_instead():
    coverage = cover(3, SamplerSettings(batch_size=1, ranks=2))
    assert coverage.steps == (((0,), (1,)), ((2,), (0,)))
    assert (coverage.repeated, coverage.dropped) == ((0,), ())
    assert "repeated 0" in coverage.describe()


def test_uneven_batches_are_refused_because_the_other_ranks_would_wait():
    coverage = cover(3, SamplerSettings(batch_size=1, ranks=2, even_batches=False))
    assert coverage.ranks_with_fewer_batches == (1,)
    with pytest.raises(CourseError, match="rank 1 runs out of batches first"):
        require_every_rank_has_a_batch(coverage)


def test_a_rank_that_would_only_repeat_is_named():
    with pytest.raises(CourseError, match="rank 1 would only repeat"):
        require_every_rank_has_a_batch(cover(2, SamplerSettings(batch_size=2, ranks=2)))


def test_no_samples_at_all_is_refused():
    with pytest.raises(CourseError, match="no rank gets a batch"):
        require_every_rank_has_a_batch(cover(0, SamplerSettings(batch_size=2, ranks=2)))


@pytest.mark.parametrize(("steps", "accumulation", "updates"), [(8, 4, 2), (9, 4, 3), (1, 4, 1)])
def test_an_incomplete_accumulation_is_an_update_too(steps, accumulation, updates):
    assert cover(steps * 2, SamplerSettings(batch_size=1, ranks=2)).updates(accumulation) == updates


def test_an_order_that_is_no_permutation_is_refused():
    with pytest.raises(ValueError, match="permutation of 3"):
        cover(3, SamplerSettings(batch_size=1, ranks=1), [0, 1, 1])


@pytest.mark.parametrize("settings", [{"batch_size": 0, "ranks": 1}, {"batch_size": 1, "ranks": 0}])
def test_a_sampler_needs_a_batch_and_a_rank(settings):
    with pytest.raises(ValueError, match="at least 1"):
        SamplerSettings(**settings)


def test_the_record_is_plain_json():
    import json

    record = cover(3, SamplerSettings(batch_size=1, ranks=2)).as_record()
    assert json.loads(json.dumps(record)) == record
    assert record["distinct_samples"] == 3
