"""How many independent directions a cloud of features fills: the entropy of its spectrum."""

from __future__ import annotations

import torch
from torch import Tensor


def spectral_entropy(rows: Tensor) -> float:
    """The entropy -sum p log p of the normalised eigenvalues p of the covariance of rows; NaN if they do not vary.

    Its exponential is a number of directions: 1 if all rows lie on a line, the number of columns if none is preferred.

    >>> cross = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    >>> round(spectral_entropy(cross), 4), round(spectral_entropy(cross[:2]), 4)  # log 2 and log 1
    (0.6931, 0.0)
    """
    rows = rows.detach().double()
    rows = rows - rows.mean(dim=0)
    # The two products have the same eigenvalues but for zeros; the smaller one costs less.
    product = rows @ rows.T if rows.shape[0] < rows.shape[1] else rows.T @ rows
    if not product.isfinite().all():
        return float("nan")
    eigenvalues = torch.linalg.eigvalsh(product.cpu()).clamp(min=0)  # on a GPU a single small one is slower
    return torch.special.entr(eigenvalues / eigenvalues.sum()).sum().item()
