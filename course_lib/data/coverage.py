"""Which sample goes to which rank in which step, before any rank is started.

Three samplers, each as its library does it (accelerate 1.15, torch 2.14):
- "accelerate": what HF Trainer uses for a data set with a length. `BatchSampler` fills batches of `batch_size` in
  the order of the epoch; `BatchSamplerShard` deals them round the ranks.
- "dispatch": accelerate's `DataLoaderDispatcher` (`dispatch_batches=True`, Trainer's choice for iterable data sets):
  rank 0 reads, joins the batches of all ranks and slices them.
- "torch": `DistributedSampler` deals single samples round the ranks (strided), then each rank batches its own.
None of them says what it dropped or repeated. Not here: starting ranks (course_lib.train), and Trainer's
`train_sampling_strategy="batch_rebalance"`, which needs the lengths of the samples.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from course_lib.errors import FINDING, CourseError
from course_lib.units import ceil_div

SamplerKind = Literal["accelerate", "dispatch", "torch"]
Batch = tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplerSettings:
    """What decides the dealing. The defaults are HF TrainingArguments' (dataloader_drop_last, accelerator_config)."""

    batch_size: int
    """Samples per rank and micro-step."""
    ranks: int
    kind: SamplerKind = "accelerate"
    drop_last: bool = False
    even_batches: bool = True
    """accelerate only: fill the last step with samples from the start of the epoch."""

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.ranks < 1:
            raise ValueError(f"batch_size and ranks must be at least 1, got {self.batch_size} and {self.ranks}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Coverage:
    """One epoch: `steps[step][rank]` is the batch of that rank, `()` where the rank gets none."""

    settings: SamplerSettings
    samples: int
    steps: tuple[tuple[Batch, ...], ...]
    dropped: tuple[int, ...]
    """Samples that no rank sees in this epoch."""
    repeated: tuple[int, ...]
    """Samples that are seen more than once, each named once."""
    ranks_without_batch: tuple[int, ...]
    """Ranks that get no batch in the whole epoch."""
    ranks_with_fewer_batches: tuple[int, ...]
    """Ranks that stop before others do: the others then wait for them in a collective."""
    ranks_with_repeats_only: tuple[int, ...]
    """Ranks of which every sample was already given to a lower rank or an earlier step."""

    @property
    def distinct_samples(self) -> int:
        """Effective samples of the epoch: how many different ones are trained on."""
        return self.samples - len(self.dropped)

    @property
    def consumed_samples(self) -> int:
        """Samples computed, repeats included: what the epoch costs."""
        return sum(len(batch) for step in self.steps for batch in step)

    def updates(self, gradient_accumulation_steps: int) -> int:
        """Optimizer steps of the epoch: Trainer also steps on an incomplete last accumulation."""
        return ceil_div(len(self.steps), gradient_accumulation_steps)

    def describe(self) -> str:
        """One line for the log."""
        line = (
            f"{self.samples} samples on {self.settings.ranks} ranks × {self.settings.batch_size}: "
            f"{len(self.steps)} steps, {self.distinct_samples} samples used, {self.consumed_samples} computed"
        )
        if self.dropped:
            line += f"; dropped {_some(self.dropped)}"
        if self.repeated:
            line += f"; repeated {_some(self.repeated)}"
        if self.ranks_without_batch:
            line += f"; ranks without a batch {_some(self.ranks_without_batch)}"
        return line

    def as_record(self) -> dict[str, Any]:
        """Plain JSON types, without the steps (they can be many)."""
        return {
            "kind": self.settings.kind,
            "ranks": self.settings.ranks,
            "batch_size": self.settings.batch_size,
            "samples": self.samples,
            "steps": len(self.steps),
            "distinct_samples": self.distinct_samples,
            "consumed_samples": self.consumed_samples,
            "dropped": list(self.dropped),
            "repeated": list(self.repeated),
            "ranks_without_batch": list(self.ranks_without_batch),
            "ranks_with_fewer_batches": list(self.ranks_with_fewer_batches),
            "ranks_with_repeats_only": list(self.ranks_with_repeats_only),
        }


def cover(samples: int, settings: SamplerSettings, order: Sequence[int] | None = None) -> Coverage:
    """Deal one epoch.

    Args:
        samples: length of the data set. settings: the sampler.
        order: the epoch's order of sample indices (`trainer_epoch_order`); file order without it.

    Returns: the Coverage. Raises ValueError when `order` is not a permutation of the samples.
    """
    order = list(range(samples)) if order is None else list(order)
    if sorted(order) != list(range(samples)):
        raise ValueError(f"order must be a permutation of {samples} samples")
    deal = {"accelerate": _deal_accelerate, "dispatch": _deal_dispatch, "torch": _deal_torch}[settings.kind]
    steps = tuple(tuple(map(tuple, step)) for step in deal(order, settings))
    ranks = range(settings.ranks)
    seen: set[int] = set()
    bringing_new = set()
    for step in steps:
        for rank, batch in enumerate(step):
            if not seen.issuperset(batch):
                bringing_new.add(rank)
            seen.update(batch)
    batches = [sum(1 for step in steps if step[rank]) for rank in ranks]
    counts = Counter(sample for step in steps for batch in step for sample in batch)
    return Coverage(
        settings=settings,
        samples=samples,
        steps=steps,
        dropped=tuple(sample for sample in range(samples) if sample not in counts),
        repeated=tuple(sorted(sample for sample, count in counts.items() if count > 1)),
        ranks_without_batch=tuple(rank for rank in ranks if batches[rank] == 0),
        ranks_with_fewer_batches=tuple(rank for rank in ranks if batches[rank] < max(batches)),
        ranks_with_repeats_only=tuple(rank for rank in ranks if batches[rank] and rank not in bringing_new),
    )


def require_every_rank_has_a_batch(coverage: Coverage) -> None:
    """Raise CourseError unless every rank has a batch in every step, and at least one sample of its own.

    A run with a rank without a batch ends after 0 steps with loss 0, or hangs; both look like a run.
    """
    ranks, size = coverage.settings.ranks, coverage.settings.batch_size
    given = f"{_count(coverage.samples, 'sample')} for {_count(ranks, 'rank')} × micro batch {size}"
    more_samples = f"Use at least {ranks * size} samples, fewer ranks, or train.smoke to repeat one sample on purpose"
    if not coverage.steps:
        what, fix = f"{given}: no rank gets a batch, so 0 steps would run", more_samples
    elif coverage.ranks_without_batch:
        what = f"{given}: no batch for rank {_some(coverage.ranks_without_batch)}, and the others would wait for it"
        fix = more_samples
    elif coverage.ranks_with_fewer_batches:
        who = _some(coverage.ranks_with_fewer_batches)
        what = f"{given}: rank {who} runs out of batches first, and the others would wait for it"
        fix = f"Use a multiple of {ranks * size} samples, or even_batches or drop_last"
    elif coverage.ranks_with_repeats_only:
        what = f"{given}: rank {_some(coverage.ranks_with_repeats_only)} would only repeat samples of other ranks"
        fix = more_samples
    else:
        return
    raise CourseError(what, where="sampler", fix=fix, exit_code=FINDING)


def trainer_epoch_order(samples: int, seed: int, epoch: int) -> list[int]:
    """The order in which HF Trainer shuffles an epoch (its default `use_seedable_sampler`).

    Args:
        samples: length of the data set. seed: TrainingArguments.data_seed, or .seed where that is unset.
        epoch: counted from 0.

    Source: accelerate 1.15 `SeedableRandomSampler.__iter__` (a torch generator seeded with seed + epoch) over
    torch 2.14 `RandomSampler.__iter__` (randperm).
    """
    import torch

    generator = torch.Generator()
    generator.manual_seed(seed + epoch)
    return torch.randperm(samples, generator=generator).tolist()


def _deal_accelerate(order: list[int], settings: SamplerSettings) -> list[list[list[int]]]:
    """`BatchSamplerShard` with split_batches=False; one rank has no shard, so its last batch stays small."""
    size, ranks = settings.batch_size, settings.ranks
    per_step = size * ranks
    whole = len(order) // per_step * per_step
    steps = [_slices(order[at : at + per_step], size, ranks) for at in range(0, whole, per_step)]
    tail = order[whole:]
    if ranks == 1:
        return steps + ([[tail]] if tail and not settings.drop_last else [])
    if not tail or settings.drop_last:
        return steps
    if settings.even_batches:
        # From the start of the epoch, round and round when the whole data set is smaller than one step.
        tail = tail + [order[index % len(order)] for index in range(per_step - len(tail))]
    return [*steps, _slices(tail, size, ranks)]


def _deal_dispatch(order: list[int], settings: SamplerSettings) -> list[list[list[int]]]:
    """`DataLoaderDispatcher`: like the above, but the last step is cut into equal shares.

    It is filled up to a multiple of the ranks only, with the first samples of the epoch's first step.
    """
    size, ranks = settings.batch_size, settings.ranks
    per_step = size * ranks
    whole = len(order) // per_step * per_step
    steps = [_slices(order[at : at + per_step], size, ranks) for at in range(0, whole, per_step)]
    tail = order[whole:]
    if not tail or settings.drop_last:
        return steps
    share = ceil_div(len(tail), ranks)
    if len(tail) % ranks:
        tail = tail + order[:ranks]
    return [*steps, _slices(tail, share, ranks)]


def _deal_torch(order: list[int], settings: SamplerSettings) -> list[list[list[int]]]:
    """`DistributedSampler`, then a `BatchSampler` on each rank; `drop_last` is given to both."""
    size, ranks = settings.batch_size, settings.ranks
    if settings.drop_last:
        total = len(order) // ranks * ranks
        dealt = order[:total]
    else:
        total = ceil_div(len(order), ranks) * ranks
        dealt = [order[index % len(order)] for index in range(total)] if order else []
    own = [dealt[rank::ranks] for rank in range(ranks)]
    per_rank = len(dealt) // ranks
    if settings.drop_last:
        per_rank = per_rank // size * size
    return [[samples[at : min(at + size, per_rank)] for samples in own] for at in range(0, per_rank, size)]


def _slices(samples: list[int], size: int, ranks: int) -> list[list[int]]:
    return [samples[rank * size : (rank + 1) * size] for rank in range(ranks)]


def _some(numbers: Sequence[int], most: int = 8) -> str:
    shown = ", ".join(map(str, numbers[:most]))
    return shown if len(numbers) <= most else f"{shown} and {len(numbers) - most} more"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
