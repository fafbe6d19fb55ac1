"""Nuclear norms against LAPACK's singular values, by both of their ways."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nasformer.proxies import nuclear
from nasformer.proxies.nuclear import DIRECTIONS, TOLERANCE, nuclear_norms, projected_norms, whole_norms

LARGE = 2 * DIRECTIONS + 1  # sides from here on are projected
SHAPES = [(1, 1), (1, 9), (9, 1), (5, 5), (64, 200), (200, 64), (65, 65), (70, 150), (150, 70), (96, 96)]


def exact(stack: Tensor) -> Tensor:
    return torch.linalg.matrix_norm(stack.double(), "nuc")


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def of_rank(rank: int, rows: int, columns: int, count: int = 3, seed: int = 0) -> Tensor:
    return random(count, rows, rank, seed=seed) @ random(count, rank, columns, seed=seed + 1)


@pytest.fixture
def wholes(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """The shapes that `whole_norms` got, in order; projected matrices have `DIRECTIONS` rows."""
    seen: list[torch.Size] = []
    real = whole_norms

    def watched(stack: Tensor) -> Tensor:
        seen.append(stack.shape)
        return real(stack)

    monkeypatch.setattr(nuclear, "whole_norms", watched)
    return seen


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_random_matrices(shape: tuple[int, int], dtype: torch.dtype) -> None:
    stack = random(4, *shape).to(dtype)
    found = nuclear_norms(stack)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, exact(stack), rtol=TOLERANCE, atol=0)


@pytest.mark.parametrize("rank", [1, 2, 8, DIRECTIONS, DIRECTIONS + 1, LARGE])
@pytest.mark.parametrize("shape", [(LARGE, LARGE), (80, 130), (130, 80)])
def test_any_rank(shape: tuple[int, int], rank: int) -> None:
    stack = of_rank(rank, *shape)
    torch.testing.assert_close(nuclear_norms(stack), exact(stack), rtol=TOLERANCE, atol=0)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 90),
    columns=st.integers(1, 90),
    decay=st.floats(0.05, 1.0),
    scale=st.integers(-12, 12),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_spectrum(rows: int, columns: int, decay: float, scale: int, seed: int) -> None:
    """Singular values that fall by a factor, from all alike to rank one, large and small."""
    left, _ = torch.linalg.qr(random(rows, rows, seed=seed))
    right, _ = torch.linalg.qr(random(columns, columns, seed=seed + 1))
    values = 10.0**scale * decay ** torch.arange(min(rows, columns), dtype=torch.float64)
    matrix = (left[:, : len(values)] * values) @ right[: len(values)]
    found = nuclear_norms(matrix[None]).item()
    assert found == pytest.approx(values.sum().item(), rel=TOLERANCE)


def test_few_directions_are_projected(wholes: list[torch.Size]) -> None:
    stack = of_rank(8, 100, 120)
    torch.testing.assert_close(nuclear_norms(stack), exact(stack), rtol=1e-9, atol=0)
    assert wholes == [(3, DIRECTIONS, 120)]


def test_small_matrices_are_taken_whole(wholes: list[torch.Size]) -> None:
    nuclear_norms(random(2, 2 * DIRECTIONS, 500))
    assert wholes == [(2, 2 * DIRECTIONS, 500)]


def test_only_matrices_that_the_projection_fails_are_taken_whole(wholes: list[torch.Size]) -> None:
    stack = torch.cat([of_rank(4, 100, 90, count=2), random(1, 100, 90), of_rank(4, 100, 90, count=1, seed=5)])
    torch.testing.assert_close(nuclear_norms(stack), exact(stack), rtol=TOLERANCE, atol=0)
    assert wholes == [(4, DIRECTIONS, 90), (1, 100, 90)]


@pytest.mark.parametrize("tail", [1e-2, 1e-4, 1e-6, 1e-8, 1e-12])
def test_the_bound_is_one(tail: float) -> None:
    """A few directions and a small rest: what the projection says is off by no more than it says."""
    stack = of_rank(5, 100, 90) + tail * random(3, 100, 90, seed=9)
    norms, errors = projected_norms(stack)
    off = (norms - exact(stack)).abs()
    assert (off <= errors + 1e-9 * norms).all()
    torch.testing.assert_close(nuclear_norms(stack), exact(stack), rtol=TOLERANCE, atol=0)


NEARLY_ONE_RANK: dict[str, Callable[[], Tensor]] = {
    "double": lambda: of_rank(1, 90, 90) + 1e-7 * random(3, 90, 90, seed=3),
    "as a float32 gradient": lambda: of_rank(1, 90, 90).float().double(),
}


@pytest.mark.parametrize("kind", NEARLY_ONE_RANK)
def test_nearly_of_rank_one(kind: str) -> None:
    stack = NEARLY_ONE_RANK[kind]()
    torch.testing.assert_close(nuclear_norms(stack), exact(stack), rtol=TOLERANCE, atol=0)


@pytest.mark.parametrize("side", [3, LARGE])
def test_zero_is_zero(side: int) -> None:
    assert nuclear_norms(torch.zeros(2, side, side)).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("side", [3, LARGE])
def test_what_is_not_finite_has_no_norm_and_leaves_the_others_alone(side: int, bad: float) -> None:
    stack = random(3, side, side)
    stack[1, 0, 0] = bad
    found = nuclear_norms(stack)
    assert not math.isfinite(found[1])
    torch.testing.assert_close(found[[0, 2]], exact(stack[[0, 2]]), rtol=TOLERANCE, atol=0)


@pytest.mark.parametrize("side", [20, LARGE])
def test_the_company_does_not_matter(side: int) -> None:
    stack = torch.cat([of_rank(3, side, side), random(2, side, side)])
    alone = torch.cat([nuclear_norms(matrix[None]) for matrix in stack])
    torch.testing.assert_close(nuclear_norms(stack), alone, rtol=1e-12, atol=0)


def test_no_matrices_at_all() -> None:
    assert nuclear_norms(torch.empty(0, 5, 5)).shape == (0,)
