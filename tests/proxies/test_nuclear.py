"""Nuclear norms against LAPACK's singular values, by all of their ways: those of a CPU and those of a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from nasformer.proxies import dss
from nasformer.proxies.dss import (
    DIRECTIONS,
    SIDE_MULTIPLE,
    TOLERANCE,
    gradient_norms,
    grouped_norms,
    groups_of_shape,
    nuclear_norms,
    pad_and_join,
    polar_factors,
    polar_norms,
    projected_norms,
    spectral_norms,
    weight_norm,
)

LARGE = 2 * DIRECTIONS + 1  # from this many columns on matrices are projected
TALL = [(1, 1), (9, 1), (5, 5), (200, 64), (65, 65), (150, 70), (96, 96)]
WAYS = {"spectral": spectral_norms, "polar": polar_norms, "gradient": gradient_norms}

each_way = pytest.mark.parametrize("norms", WAYS.values(), ids=WAYS)


def exact(stack: Tensor) -> Tensor:
    return torch.linalg.matrix_norm(stack.double(), "nuc")


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def of_rank(rank: int, rows: int, columns: int, count: int = 3, seed: int = 0) -> Tensor:
    return random(count, rows, rank, seed=seed) @ random(count, rank, columns, seed=seed + 1)


def with_values(values: Tensor, rows: int, columns: int, seed: int = 0) -> Tensor:
    """A matrix of which the singular values are known."""
    left, _ = torch.linalg.qr(random(rows, rows, seed=seed))
    right, _ = torch.linalg.qr(random(columns, columns, seed=seed + 1))
    return (left[:, : len(values)] * values) @ right[: len(values)]


def assert_near(found: Tensor, expected: Tensor, rtol: float = TOLERANCE) -> None:
    torch.testing.assert_close(found, expected, rtol=rtol, atol=0)


@pytest.fixture
def polars(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """The shapes that `polar_norms` got, in order; projected matrices have `DIRECTIONS` columns."""
    seen: list[torch.Size] = []

    def watched(stack: Tensor) -> Tensor:
        seen.append(stack.shape)
        return polar_norms(stack)

    monkeypatch.setattr(dss, "polar_norms", watched)
    return seen


@each_way
@pytest.mark.parametrize("shape", TALL)
def test_random_matrices(norms: Callable[[Tensor], Tensor], shape: tuple[int, int]) -> None:
    stack = random(4, *shape)
    assert_near(norms(stack), exact(stack))


@each_way
@pytest.mark.parametrize("rank", [1, 2, 8, DIRECTIONS, DIRECTIONS + 1, LARGE])
def test_any_rank(norms: Callable[[Tensor], Tensor], rank: int) -> None:
    stack = of_rank(rank, 130, 80)
    assert_near(norms(stack), exact(stack))


@each_way
@settings(max_examples=40, deadline=None)
@given(
    columns=st.integers(1, 90),
    more=st.integers(0, 40),
    decay=st.floats(0.05, 1.0),
    scale=st.integers(-12, 12),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_spectrum(
    norms: Callable[[Tensor], Tensor], columns: int, more: int, decay: float, scale: int, seed: int
) -> None:
    """Singular values that fall by a factor, from all alike to rank one, large and small."""
    values = 10.0**scale * decay ** torch.arange(columns, dtype=torch.float64)
    matrix = with_values(values, columns + more, columns, seed)
    assert norms(matrix[None]).item() == pytest.approx(values.sum().item(), rel=TOLERANCE)


@each_way
@pytest.mark.parametrize("side", [3, LARGE])
def test_zero_is_zero_also_beside_others(norms: Callable[[Tensor], Tensor], side: int) -> None:
    stack = random(3, side, side)
    stack[1] = 0
    found = norms(stack)
    assert found[1] == 0
    assert_near(found[[0, 2]], exact(stack[[0, 2]]))
    assert norms(torch.zeros(2, side, side, dtype=torch.float64)).tolist() == [0, 0]


@each_way
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("side", [3, LARGE])
def test_what_is_not_finite_has_no_norm_and_leaves_the_others_alone(
    norms: Callable[[Tensor], Tensor], side: int, bad: float
) -> None:
    stack = torch.cat([random(2, side, side), of_rank(1, side, side, count=1)])
    stack[1, 0, 0] = bad
    found = norms(stack)
    assert math.isnan(found[1])
    assert_near(found[[0, 2]], exact(stack[[0, 2]]))


@each_way
@pytest.mark.parametrize("side", [20, LARGE])
def test_the_company_does_not_matter(norms: Callable[[Tensor], Tensor], side: int) -> None:
    stack = torch.cat([of_rank(3, side, side), random(2, side, side)])
    alone = torch.cat([norms(matrix[None]) for matrix in stack])
    assert_near(norms(stack), alone, rtol=1e-6 if norms is spectral_norms else 1e-12)


@each_way
def test_no_matrices_at_all(norms: Callable[[Tensor], Tensor]) -> None:
    assert norms(torch.empty(0, LARGE, LARGE, dtype=torch.float64)).shape == (0,)


def test_a_polar_factor_has_orthonormal_columns_and_leaves_a_symmetric_rest() -> None:
    stack = random(3, 40, 20)
    factors = polar_factors(stack)
    torch.testing.assert_close(factors.mT @ factors, torch.eye(20, dtype=torch.float64).expand(3, 20, 20))
    rest = factors.mT @ stack
    torch.testing.assert_close(rest, rest.mT)
    assert (torch.linalg.eigvalsh(rest) > 0).all()


@pytest.mark.parametrize("least", [1e-2, 1e-4, 1e-6])
def test_polar_norms_of_badly_conditioned_matrices(least: float) -> None:
    values = torch.logspace(0, math.log10(least), 30, dtype=torch.float64)
    found = polar_norms(with_values(values, 50, 30)[None])
    assert_near(found, values.sum()[None], rtol=1e-10)


def test_few_directions_are_projected(polars: list[torch.Size]) -> None:
    stack = of_rank(8, 120, 100)
    assert_near(gradient_norms(stack), exact(stack), rtol=1e-9)
    assert polars == [(3, 100, DIRECTIONS)]


def test_narrow_matrices_are_taken_whole(polars: list[torch.Size]) -> None:
    gradient_norms(of_rank(3, 500, 2 * DIRECTIONS))
    assert polars == [(3, 500, 2 * DIRECTIONS)]


def test_only_matrices_that_the_projection_fails_are_taken_whole(polars: list[torch.Size]) -> None:
    stack = torch.cat([of_rank(4, 100, 90, count=2), random(1, 100, 90), of_rank(4, 100, 90, count=1, seed=5)])
    assert (projected_norms(stack)[0][2] - exact(stack)[2]).abs() > 0.1 * exact(stack)[2]
    polars.clear()
    assert_near(gradient_norms(stack), exact(stack))
    assert polars == [(4, 90, DIRECTIONS), (1, 100, 90)]


@pytest.mark.parametrize("tail", [1e-2, 1e-4, 1e-6, 1e-8, 1e-12])
def test_the_bound_is_one(tail: float) -> None:
    """A few directions and a small rest: what the projection says is off by no more than it says."""
    stack = of_rank(5, 100, 90) + tail * random(3, 100, 90, seed=9)
    norms, errors = projected_norms(stack)
    off = (norms - exact(stack)).abs()
    assert (off <= errors + 1e-9 * norms).all()
    assert_near(gradient_norms(stack), exact(stack))


def test_the_bound_is_not_idle() -> None:
    """For matrices of few directions it is small, or all of them would be taken whole."""
    norms, errors = projected_norms(of_rank(8, 120, 100))
    assert (errors < 1e-9 * norms).all()


@pytest.mark.parametrize("rank", [1, 20])
def test_gradients_in_single_precision(rank: int) -> None:
    """Rounding adds a little of every direction."""
    stack = of_rank(rank, 90, 90).float()
    for (found,) in (grouped_norms([stack]), nuclear_norms([stack])):
        assert found.dtype == torch.float64
        assert_near(found, exact(stack))


# --- many stacks ---

SHAPES = [(4, 96, 70), (2, 5, 5), (1, 100, 90), (3, 7, 3), (2, 65, 65), (5, 96, 70), (1, 1, 1)]


def mixed() -> list[Tensor]:
    return [random(*shape, seed=index) for index, shape in enumerate(SHAPES)]


def assert_all_near(found: Sequence[Tensor], stacks: Sequence[Tensor]) -> None:
    for norms, stack in zip(found, stacks, strict=True):
        assert_near(norms, exact(stack))


@pytest.mark.parametrize("way", [nuclear_norms, grouped_norms])
@pytest.mark.parametrize("elements", [1, 10_000, dss.MAX_ELEMENTS])
def test_norms_come_in_the_order_of_the_stacks(
    way: Callable[[Sequence[Tensor]], list[Tensor]], elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dss, "MAX_ELEMENTS", elements)
    stacks = mixed()
    assert_all_near(way(stacks), stacks)
    assert_all_near(way(stacks[::-1]), stacks[::-1])


def test_an_iterator_of_stacks_lying_and_standing() -> None:
    stacks = [random(2, 5, 9), random(3, 9, 5), random(1, 70, 150), random(2, 1, 4).float()]
    assert_all_near(nuclear_norms(iter(stacks)), stacks)


@pytest.mark.parametrize("way", [nuclear_norms, grouped_norms])
def test_no_stacks_at_all(way: Callable[[Sequence[Tensor]], list[Tensor]]) -> None:
    assert way([]) == []


def test_what_is_not_finite_leaves_other_stacks_alone() -> None:
    stacks = mixed()
    stacks[0][1, 0, 0] = math.nan
    found = grouped_norms(stacks)
    assert found[0].isnan().tolist() == [False, True, False, False]
    assert_all_near(found[1:], stacks[1:])


@pytest.mark.parametrize("shape", [(7, 3), (96, 70)])
@each_way
def test_padding_changes_no_norm(norms: Callable[[Tensor], Tensor], shape: tuple[int, int]) -> None:
    stack, larger = random(2, *shape), torch.zeros(1, 120, 90, dtype=torch.float64)
    padded = pad_and_join([stack, larger])
    assert padded.shape == (3, 120, 90)
    assert torch.equal(padded[:2, : shape[0], : shape[1]], stack)
    assert padded.count_nonzero() == stack.count_nonzero()
    assert_near(norms(padded)[:2], exact(stack))


def test_stacks_of_about_the_same_shape_go_together() -> None:
    sides = [SIDE_MULTIPLE, SIDE_MULTIPLE + 1, 2 * SIDE_MULTIPLE, 2 * SIDE_MULTIPLE + 1, 1]
    stacks = [torch.empty(2, side, 3) for side in sides]
    assert list(groups_of_shape(stacks)) == [[0, 4], [1, 2], [3]]


@pytest.mark.parametrize("limit", [1, 6_000, 20_000, 50_000])
def test_memory_is_bounded(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the limit with all padding, unless a single stack is larger; and no part is smaller than need be."""
    monkeypatch.setattr(dss, "MAX_ELEMENTS", limit)
    stacks = [torch.empty(1 + index % 2, *sides) for index, sides in enumerate([(64, 64), (1, 1), (40, 30)] * 4)]
    parts = list(groups_of_shape(stacks))
    assert sorted(index for part in parts for index in part) == list(range(len(stacks)))
    for part in parts:
        assert len(part) == 1 or pad_and_join([stacks[index] for index in part]).numel() <= limit
    if limit == 50_000:
        assert len(parts) == 2


# --- a single matrix ---


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (70, 150), (150, 70)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_whole_norm_of_a_weight(shape: tuple[int, int], dtype: torch.dtype) -> None:
    weight = random(*shape).to(dtype)
    assert weight_norm(weight) == pytest.approx(exact(weight).item(), rel=1e-9)


def test_the_whole_norm_of_what_is_not_finite_or_zero() -> None:
    assert math.isnan(weight_norm(torch.tensor([[1.0, math.nan]])))
    assert weight_norm(torch.zeros(3, 5)) == 0
