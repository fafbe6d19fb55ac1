"""A proxy of your own: how far the logits of different images lie apart in an untrained net."""

from __future__ import annotations

import torch
from torch import nn

from nasformer import Probe, register_proxy


@register_proxy(
    "logit-spread",
    formula="mean over classes of the standard deviation of the logits over a batch of noise",
    sees="noise",
    higher="images are told apart before training",
    paper="none; an example",
)
def logit_spread(model: nn.Module, probe: Probe) -> float:
    """The spread of the logits over a batch of noise."""
    with torch.no_grad():
        return model(probe.noise("logit-spread")).std(0).mean().item()
