"""The slicing rules, entry by entry."""

from __future__ import annotations

import itertools

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Size, Tensor

from nasformer.families.sharing import grouped_prefix, prefix, rule_for

shapes = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 4)), min_size=1, max_size=4)


def numbered(*shape: int) -> Tensor:
    return torch.arange(Size(shape).numel()).reshape(shape)


@settings(deadline=None, max_examples=50)
@given(shapes)
def test_prefix_takes_the_first_entries(sizes: list[tuple[int, int]]) -> None:
    shape = Size(small for small, _ in sizes)
    shared = numbered(*(small + more for small, more in sizes))
    taken = prefix(shared, shape)
    assert taken.shape == shape
    for index in itertools.product(*map(range, shape)):
        assert taken[index] == shared[index]


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 4), shapes)
def test_grouped_prefix_takes_the_first_rows_of_each_group(groups: int, sizes: list[tuple[int, int]]) -> None:
    (rows, more), *rest = sizes
    shape = Size([groups * rows, *(small for small, _ in rest)])
    shared = numbered(groups * (rows + more), *(small + extra for small, extra in rest))
    taken = grouped_prefix(groups)(shared, shape)
    assert taken.shape == shape
    for row, *others in itertools.product(*map(range, shape)):
        group, place = divmod(row, rows)
        assert taken[row, *others] == shared[group * (rows + more) + place, *others]


def test_slices_nest() -> None:
    """A net's slice of a wider net's slice is its slice of the shared weight."""
    shared, middle, small = numbered(24, 6), Size([12, 5]), Size([6, 2])
    for rule in (prefix, grouped_prefix(3)):
        assert torch.equal(rule(rule(shared, middle), small), rule(shared, small))


def test_slices_pass_gradients_back() -> None:
    shared = torch.zeros(6, 2, requires_grad=True)
    grouped_prefix(3)(shared, Size([3, 1])).sum().backward()
    assert shared.grad is not None
    assert shared.grad.tolist() == [[1, 0], [0, 0]] * 3


def test_whole_tensors_are_not_copied() -> None:
    shared = numbered(6, 2)
    for rule in (prefix, grouped_prefix(3)):
        assert rule(shared, shared.shape) is shared


def test_rules_go_by_the_end_of_the_name() -> None:
    rule = grouped_prefix(3)
    assert rule_for("blocks.3.attn.qkv.weight", {"qkv.weight": rule}) is rule
    assert rule_for("blocks.3.attn.proj.weight", {"qkv.weight": rule}) is prefix
