"""Jacobian covariance: a network whose outputs react to different images in different ways is worth training."""

from __future__ import annotations

import torch
from torch import nn

from nasformer.proxies.probe import Probe
from nasformer.proxies.proxy import Inapplicable, proxy

BATCH = 16
K = 1e-5  # of the paper's code: keeps the logarithm and the quotient finite


@proxy(
    "jacov",
    formula="-sum_i [log(v_i + k) + 1 / (v_i + k)], k = 1e-5, v = eigenvalues of the images' correlation matrix of"
    " d(sum of logits) / d(image); double",
    sees="labelled batch (16 of its images; labels unused)",
    loss="sum of logits",
    higher="images' Jacobians are less correlated",
    paper="Mellor et al., Neural Architecture Search without Training, version 1, 2020; Abdelfattah et al., ICLR 2021",
)
def jacov(model: nn.Module, probe: Probe) -> float:
    """How close the correlations of the input Jacobians are to none at all (all v = 1, the best there is).

    The model is in evaluation mode, so that each Jacobian is that of one image; Samsung's code is in training mode,
    where batch norm mixes the images. An image with a constant Jacobian has no correlations: then it is NaN.
    """
    images = probe.images[:BATCH].detach().clone().requires_grad_()
    if len(images) < 2:
        raise Inapplicable("jacov compares images and needs a batch of at least 2")
    (jacobian,) = torch.autograd.grad(model(images).sum(), images)
    correlations = torch.corrcoef(jacobian.flatten(1).double())
    if not correlations.isfinite().all():
        return float("nan")
    eigenvalues = torch.linalg.eigvalsh(correlations).clamp(min=0) + K
    return -(eigenvalues.log() + 1 / eigenvalues).sum().item()
