"""Class-balanced splits: take some samples of every class out of a set."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from nasformer.errors import UserError


def stratified(
    labels: Tensor, amount: float | int, source: torch.Generator, classes: Sequence[str] | None = None
) -> tuple[Tensor, Tensor]:
    """Split sample numbers into (rest, taken), both ascending.

    Args:
        amount: an int takes so many samples of every class, a float that fraction of every class. A fraction
            takes ceil(fraction * N) samples in all, and at least one of each class that has two or more.
        classes: names for the error message.

    >>> from nasformer.data.rng import generator
    >>> rest, taken = stratified(torch.tensor([0] * 8 + [1] * 4), 0.25, generator(0))
    >>> len(rest), (taken < 8).sum().item(), (taken >= 8).sum().item()
    (9, 2, 1)
    """
    counts = torch.bincount(labels)
    quota = _per_class(counts, amount, classes) if isinstance(amount, int) else _fraction(counts, amount)
    shuffled = torch.randperm(len(labels), generator=source)
    grouped = shuffled[labels[shuffled].argsort(stable=True)]
    start = counts.cumsum(0) - counts
    place = torch.arange(len(labels)) - start[labels[grouped]]
    is_taken = place < quota[labels[grouped]]
    return grouped[~is_taken].sort().values, grouped[is_taken].sort().values


def _per_class(counts: Tensor, amount: int, classes: Sequence[str] | None) -> Tensor:
    if amount < 0:
        raise UserError(f"cannot hold out {amount} images per class; give 0 or more, or a fraction such as 0.1")
    smallest = int(torch.where(counts > 0, counts, counts.max() + 1).argmin())
    if amount and counts[smallest] <= amount:
        name = repr(classes[smallest]) if classes else str(smallest)
        found = f"class {name} has only {int(counts[smallest])}"
        raise UserError(f"cannot hold out {amount} images per class: {found}; hold out fewer or a fraction such as 0.1")
    return counts.clamp(max=amount)


def _fraction(counts: Tensor, fraction: float) -> Tensor:
    """Share out ceil(fraction * N) by largest remainder, but leave a class on both sides where it can."""
    if not 0 <= fraction < 1:
        raise UserError(
            f"hold-out fraction {fraction} is not in [0, 1); give a fraction, or an int for images per class"
        )
    if fraction == 0:
        return torch.zeros_like(counts)
    exact = counts.double() * fraction
    quota = exact.floor().long()
    missing = math.ceil(round(int(counts.sum()) * fraction, 6)) - int(quota.sum())
    quota[(exact - quota).argsort(descending=True, stable=True)[:missing]] += 1
    return torch.minimum(quota.clamp(min=1), (counts - 1).clamp(min=0))
