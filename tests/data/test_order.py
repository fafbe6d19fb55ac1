from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nasformer.data.loaders import batch_indices, clamp_batch, rank_slice, steps_per_epoch
from nasformer.errors import UserError


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


def test_errors() -> None:
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
