"""Which samples a batch has, and the batches of a dataset in memory."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

from nasformer.data.images import normalise
from nasformer.data.loaders import Batches, BatchSource, batch_indices, clamp_batch, rank_slice, steps_per_epoch
from nasformer.data.options import AugmentOptions
from nasformer.data.sources import load_data
from nasformer.errors import UserError

DATA = load_data("digits", holdout=5)
AUGMENT = AugmentOptions(padding=1, hflip=0.0, randaugment="rand-m5-inc1", mixup=0.8, cutmix=1.0, erasing=0.2)


def batches(**changes: Any) -> Batches:
    settings: dict[str, Any] = {"data": DATA, "augment": AUGMENT, "batch_size": 48}
    return Batches(**(settings | changes))


def test_shapes() -> None:
    source = batches()
    x, targets = source.train(7)
    assert x.shape == (48, 1, 8, 8)
    assert targets.shape == (48, 10)
    assert source.steps_per_epoch == len(DATA.train) // 48
    assert (source.num_classes, source.in_chans, source.img_size) == (10, 1, 8)


def test_a_run_that_goes_on_at_a_step_sees_the_same_batches() -> None:
    source: BatchSource = batches()
    whole = list(islice(source.train_batches(), 40))
    resumed = list(islice(batches().train_batches(start_step=30), 10))
    for (x, targets), (x_again, targets_again) in zip(whole[30:], resumed, strict=True):
        assert torch.equal(x, x_again)
        assert torch.equal(targets, targets_again)


@pytest.mark.parametrize("repeats", [1, 3])
def test_ranks_together_see_the_global_batch(repeats: int) -> None:
    x, targets = batches(repeats=repeats).train(11)
    parts = [batches(rank=rank, world=4, repeats=repeats).train(11) for rank in range(4)]
    assert torch.equal(torch.cat([part for part, _ in parts]), x)
    assert torch.equal(torch.cat([part for _, part in parts]), targets)


def test_training_never_sees_the_hold_out() -> None:
    plain = AugmentOptions(crop="none", hflip=0.0, smoothing=0.0)
    source = Batches(DATA, plain, batch_size=len(DATA.train))
    x, targets = source.train(0)
    expected = normalise(DATA.train.images, DATA.mean, DATA.std)
    order = [row.tobytes() for row in x.numpy()]
    assert sorted(order) == sorted(row.tobytes() for row in expected.numpy())
    label_of = {row.tobytes(): int(label) for row, label in zip(expected.numpy(), DATA.train.labels, strict=True)}
    assert [label_of[row] for row in order] == targets.argmax(1).tolist()


def test_seeds_differ() -> None:
    assert not torch.equal(batches(seed=0).train(0)[0], batches(seed=1).train(0)[0])


@pytest.mark.parametrize("split", ["train", "holdout", "test"])
def test_evaluation_gives_everything_once_in_order(split: Any) -> None:
    found = list(batches().evaluation(split, 100))
    images = getattr(DATA, split)
    assert torch.equal(torch.cat([x for x, _ in found]), normalise(images.images, DATA.mean, DATA.std))
    assert torch.equal(torch.cat([labels for _, labels in found]), images.labels)
    assert all(len(x) == 100 for x, _ in found[:-1])


def test_a_batch_larger_than_the_set_becomes_the_set() -> None:
    source = batches(batch_size=10_000, world=4)
    assert source.batch_size == len(DATA.train) // 4 * 4
    assert source.steps_per_epoch == 1
    assert len(source.train(0)[0]) == source.batch_size // 4


def test_batches_that_cannot_be() -> None:
    with pytest.raises(UserError, match="batch size 50 cannot be split over 4 processes"):
        batches(batch_size=50, world=4)
    with pytest.raises(UserError, match="no split 'val'; give train, holdout or test"):
        next(batches().evaluation("val", 10))  # type: ignore[arg-type]
    with pytest.raises(UserError, match="no images are held out; load the data with holdout="):
        next(batches(data=load_data("digits", holdout=0)).evaluation("holdout", 10))


# The order of samples


@given(n=st.integers(1, 60), batch=st.integers(1, 70), epoch=st.integers(0, 3), seed=st.integers(0, 9))
def test_an_epoch_has_each_sample_at_most_once(n: int, batch: int, epoch: int, seed: int) -> None:
    steps = steps_per_epoch(n, batch)
    seen = torch.cat([batch_indices(n, batch, epoch * steps + s, seed) for s in range(steps)]).tolist()
    assert len(seen) == len(set(seen)) == steps * min(batch, n)
    assert len(seen) > n - min(batch, n)  # only the ragged end is dropped
    assert set(seen) <= set(range(n))


def test_an_epoch_that_divides_covers_the_set() -> None:
    seen = torch.cat([batch_indices(24, 8, step, 0) for step in range(3, 6)])
    assert sorted(seen.tolist()) == list(range(24))


def test_any_step_can_be_the_first() -> None:
    once = [batch_indices(50, 8, step, 1).tolist() for step in range(20)]
    again = [batch_indices(50, 8, step, 1).tolist() for step in reversed(range(20))]
    assert once == again[::-1]


def test_epochs_and_seeds_differ() -> None:
    assert batch_indices(50, 50, 0, 0).tolist() != batch_indices(50, 50, 1, 0).tolist()
    assert batch_indices(50, 50, 0, 0).tolist() != batch_indices(50, 50, 0, 1).tolist()


def test_repeats_give_each_sample_three_times_and_a_third_of_the_set() -> None:
    n, batch = 90, 30
    seen = torch.cat([batch_indices(n, batch, step, 0, repeats=3) for step in range(3)])
    numbers, counts = seen.unique(return_counts=True)
    assert len(numbers) == n // 3
    assert (counts == 3).all()
    assert sorted(numbers.tolist()) == sorted(batch_indices(n, 30, 0, 0).tolist())  # the first of the same order


@pytest.mark.parametrize("batch", [32, 30, 64])
def test_repeats_stand_apart(batch: int) -> None:
    indices = batch_indices(1000, batch, 1, 0, repeats=3)
    assert (indices[0::2] != indices[1::2]).all()  # mixing partners
    thirds = batch_indices(1000, 30, 1, 0, repeats=3).view(3, 10)
    assert all(len(set(part.tolist())) == 10 for part in thirds)  # three ranks


def test_rank_slices_are_equal_and_in_order() -> None:
    indices = torch.arange(12)
    parts = [rank_slice(indices, rank, 4) for rank in range(4)]
    assert torch.equal(torch.cat(parts), indices)
    assert {len(part) for part in parts} == {3}


def test_a_batch_larger_than_the_set_is_the_whole_set() -> None:
    assert steps_per_epoch(5, 100) == 1
    assert sorted(batch_indices(5, 100, 3, 0).tolist()) == [0, 1, 2, 3, 4]
    assert clamp_batch(7, 99, world=3) == 6


def test_orders_that_cannot_be() -> None:
    with pytest.raises(UserError, match="training set is empty"):
        steps_per_epoch(0, 4)
    with pytest.raises(UserError, match="batch size 5 cannot be split over 2 processes; use a multiple of 2"):
        clamp_batch(10, 5, world=2)
    with pytest.raises(UserError, match="batch size 0"):
        clamp_batch(10, 0)
    with pytest.raises(UserError, match="3 training images are too few for 4 processes"):
        clamp_batch(3, 8, world=4)
    with pytest.raises(UserError, match="a batch of 5 cannot be split over 2"):
        rank_slice(torch.arange(5), 0, 2)
