"""The slicing rules, entry by entry."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Size, Tensor

from nasformer.models.sharing import MultiHeadSharing, centre_crop, grouped_prefix, prefix, rule_for

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


def listing(w: Tensor, s_c_out: int, n: int) -> Tensor:
    """TrioNet's Algorithm 1, step by step."""
    c_in = w.shape[1]
    h_c = s_c_out // n
    w = w.reshape(n, -1, c_in)
    return w[:, :h_c, :].reshape(s_c_out, c_in)


@pytest.mark.parametrize("heads", [4, 8])
@pytest.mark.parametrize("rows", [8, 16, 32])
def test_multi_head_sharing_is_the_listing(heads: int, rows: int) -> None:
    shared = numbered(32, 6)
    taken = MultiHeadSharing().bind({"num_heads": heads})(shared, Size([rows, 6]))
    assert torch.equal(taken, listing(shared, rows, heads))
    for row in range(rows):
        head, channel = divmod(row, rows // heads)
        assert torch.equal(taken[row], shared[head * (32 // heads) + channel])
    # What reads these channels takes its columns by the same index, and what is not in the order of heads its first.
    columns = MultiHeadSharing(dims=(1,)).bind({"num_heads": heads})(shared.T, Size([5, rows]))
    assert torch.equal(columns, taken.T[:5])
    both = MultiHeadSharing(dims=(0, 1)).bind({"num_heads": heads})(numbered(32, 32), Size([rows, 8]))
    assert torch.equal(both, listing(listing(numbered(32, 32), rows, heads).T, 8, heads).T)


def test_multi_head_sharing_of_a_window() -> None:
    shared = numbered(8, 5, 5)
    taken = MultiHeadSharing(crop=True).bind({"num_heads": 2})(shared, Size([4, 3, 3]))
    assert torch.equal(taken, shared[[0, 1, 4, 5]][:, 1:4, 1:4])
    assert torch.equal(centre_crop(shared, Size([4, 3, 3])), shared[:4, 1:4, 1:4])


def test_without_heads_multi_head_sharing_is_a_prefix() -> None:
    rule = rule_for("expand.weight", {"expand.weight": MultiHeadSharing(dims=(1,))}, {"kernel": 3})
    assert torch.equal(rule(numbered(4, 8), Size([3, 5])), numbered(4, 8)[:3, :5])


def test_the_heads_are_those_of_the_layer() -> None:
    rules = {"query.weight": MultiHeadSharing()}
    for heads, expected in ((2, [0, 1, 4, 5]), (4, [0, 2, 4, 6])):
        rule = rule_for("local.query.weight", rules, {"num_heads": heads})
        assert rule(numbered(8), Size([4])).tolist() == expected


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
