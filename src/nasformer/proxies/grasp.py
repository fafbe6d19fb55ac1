"""GraSP: how much the gradient would shrink if each weight were taken away."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from nasformer.proxies.gradients import (
    chunk_for,
    cross_entropy_chunks,
    cross_entropy_gradients,
    finite_or_nan,
    gradients_of,
    inner,
    trainable_weights,
)
from nasformer.proxies.probe import Probe
from nasformer.proxies.proxy import Inapplicable, proxy


@proxy(
    "grasp",
    formula="sum -W . Hg, with H the Hessian of the loss and g its gradient",
    sees="labelled batch",
    loss="mean cross-entropy, differentiated twice",
    higher="weights that hold the gradient flow up",
    paper="Wang et al., GraSP, ICLR 2020; as a proxy: Abdelfattah et al., ICLR 2021",
)
def grasp(model: nn.Module, probe: Probe) -> float:
    """The sum of -W . Hg over all linear and convolutional weights, with the sign of zero-cost-nas.

    GraSP prunes weights with the largest -W . Hg; zero-cost-nas takes their sum for a score that is better when
    higher, and so do we. No temperature on the logits (T = 1), and the probe's batch rather than images per class.
    """
    # Fused attention cannot be differentiated twice on every device; written out, it can.
    with sdpa_kernel(SDPBackend.MATH):
        try:
            return finite_or_nan(-weights_times_hessian_times_gradient(model, probe))
        except RuntimeError as error:
            if "derivative for" not in str(error):
                raise
            raise Inapplicable(f"a layer of the model cannot be differentiated twice: {error}") from error


def weights_times_hessian_times_gradient(model: nn.Module, probe: Probe) -> float:
    """The sum of W . Hg. H is a sum over chunks of the batch; g, which it acts on, is that of the whole batch."""
    weights = trainable_weights(model)
    chunk = chunk_for(probe.images) // 4  # the graph of a gradient is several times that of a loss
    whole = cross_entropy_gradients(model, probe.images, probe.labels, chunk)
    total = 0.0
    for loss in cross_entropy_chunks(model, probe.images, probe.labels, chunk):
        gradients = gradients_of(loss, weights, create_graph=True)
        product = torch.stack([(whole[name] * gradient).sum() for name, gradient in gradients.items()]).sum()
        total += sum(inner(weights[name], second) for name, second in gradients_of(product, weights).items())
    return total
