"""Nuclear norms (sums of singular values) of many matrices at once.

The singular values of M are the square roots of the eigenvalues of its smaller Gram matrix. Squaring costs half the
digits, so it is done in double precision, where half is still eight.

Gradients of a network for a single image have few directions that matter, and eigenproblems are slow on a GPU. So a
stack of matrices is first projected onto a few random directions of its range (Halko, Martinsson & Tropp 2011). What
the projection leaves out is known exactly, by its Frobenius norm, and bounds the error; a matrix for which the bound is
too large is taken whole.
"""

from __future__ import annotations

import torch
from torch import Tensor

DIRECTIONS = 32
TOLERANCE = 1e-5


def nuclear_norms(stack: Tensor) -> Tensor:
    """The nuclear norms of [n, rows, columns] matrices, as a double tensor [n]; exact to `TOLERANCE`.

    >>> nuclear_norms(torch.tensor([[[3.0, 4.0]], [[0.0, 0.0]]])).tolist()
    [5.0, 0.0]
    """
    stack = stack.double()
    if min(stack.shape[-2:]) <= 2 * DIRECTIONS:
        return whole_norms(stack)
    norms, errors = projected_norms(stack)
    poor = ~(errors <= TOLERANCE * norms)  # so written, NaN is poor
    if poor.any():
        norms[poor] = whole_norms(stack[poor])
    return norms


def whole_norms(stack: Tensor) -> Tensor:
    """By the eigenvalues of the smaller of M M^T and M^T M; NaN for a matrix that is not finite."""
    grams = stack @ stack.mT if stack.shape[-2] <= stack.shape[-1] else stack.mT @ stack
    finite = grams.isfinite().all(-1).all(-1)  # an eigensolver would give up on the whole stack otherwise
    values = torch.linalg.eigvalsh(grams.where(finite[..., None, None], 0.0))
    return values.clamp(min=0).sqrt().sum(-1).where(finite, torch.nan)


def projected_norms(stack: Tensor) -> tuple[Tensor, Tensor]:
    """The norms of the matrices projected onto random directions, and a bound on what that leaves out.

    Of a rest R with rank r the nuclear norm is at most sqrt(r) times the Frobenius norm.
    """
    draw = torch.randn(stack.shape[-1], DIRECTIONS, dtype=stack.dtype, generator=torch.Generator().manual_seed(0))
    basis, _ = torch.linalg.qr(stack @ draw.to(stack.device))
    projected = basis.mT @ stack
    rest = (stack - basis @ projected).square().sum((-2, -1)).sqrt()
    return whole_norms(projected), rest * (min(stack.shape[-2:]) - DIRECTIONS) ** 0.5
