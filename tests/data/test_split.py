from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nasformer.data.images import stratified
from nasformer.errors import UserError
from nasformer.utils.rng import generator


@given(
    counts=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    fraction=st.floats(0.01, 0.9),
    seed=st.integers(0, 5),
)
def test_fraction_is_disjoint_exhaustive_and_balanced(counts: list[int], fraction: float, seed: int) -> None:
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    labels = labels[torch.randperm(len(labels), generator=generator(seed))]
    rest, taken = stratified(labels, fraction, generator(seed))
    assert sorted(rest.tolist() + taken.tolist()) == list(range(len(labels)))
    for label, count in enumerate(counts):
        found = int((labels[taken] == label).sum())
        assert found == 0 if count == 1 else 1 <= found < count
        if count * fraction >= 1:
            assert abs(found - count * fraction) <= 1


def test_fraction_takes_the_exact_total() -> None:
    labels = torch.arange(1000) % 7
    assert len(stratified(labels, 0.1234, generator(0))[1]) == math.ceil(123.4)
    assert len(stratified(labels, 0.3, generator(0))[1]) == 300


def test_int_takes_so_many_of_each_class() -> None:
    labels = torch.tensor([0] * 5 + [1] * 9 + [2] * 4)
    rest, taken = stratified(labels, 3, generator(0))
    assert torch.bincount(labels[taken]).tolist() == [3, 3, 3]
    assert torch.bincount(labels[rest]).tolist() == [2, 6, 1]


def test_the_generator_decides() -> None:
    labels = torch.arange(200) % 4
    first = stratified(labels, 0.2, generator(0))[1]
    assert torch.equal(first, stratified(labels, 0.2, generator(0))[1])
    assert not torch.equal(first, stratified(labels, 0.2, generator(1))[1])


@pytest.mark.parametrize("amount", [0, 0.0])
def test_nothing_is_a_valid_amount(amount: float | int) -> None:
    rest, taken = stratified(torch.tensor([0, 1, 1]), amount, generator(0))
    assert (rest.tolist(), taken.tolist()) == ([0, 1, 2], [])


def test_errors() -> None:
    labels = torch.tensor([0, 0, 0, 1, 1])
    with pytest.raises(UserError, match="cannot hold out 2 images per class: class 'cat' has only 2"):
        stratified(labels, 2, generator(0), ["dog", "cat"])
    with pytest.raises(UserError, match="class 1 has only 2"):
        stratified(labels, 2, generator(0))
    with pytest.raises(UserError, match="cannot hold out -1"):
        stratified(labels, -1, generator(0))
    with pytest.raises(UserError, match=r"fraction 1.5 is not in \[0, 1\)"):
        stratified(labels, 1.5, generator(0))
