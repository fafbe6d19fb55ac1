"""Counts of size as proxies: the baselines that every other proxy has to beat."""

from __future__ import annotations

from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from nasformer.families.base import Backbone
from nasformer.proxies.core import Probe, proxy, require_blocks


@proxy("params", formula="number of parameters", sees="nothing", higher="larger", paper="baseline")
def params(model: nn.Module, probe: Probe) -> float:
    """All parameters, each shared one counted once."""
    return float(sum(parameter.numel() for parameter in model.parameters()))


@proxy(
    "macs",
    formula="multiply-accumulates of one image's forward pass",
    sees="nothing (the shape of the images)",
    higher="larger",
    paper="baseline; the complexity term of AZ-NAS",
)
def macs(model: nn.Module, probe: Probe) -> float:
    """For our own models the closed form that budgets use (relative positions left out, as papers do).

    For any other model, half of what torch's counter of operations sees: all matrix products and convolutions.
    """
    if isinstance(model, Backbone):
        return float(sum(segment.cost().macs for segment in model.plan(model.arch, **model.options)))
    # On the meta device nothing is computed, and every version of torch counts fused attention there.
    model.to("meta").requires_grad_(False)  # rather than no_grad, under which the counter fails on nested inputs
    with FlopCounterMode(display=False) as counter:
        model(probe.ones().to("meta"))
    return counter.get_total_flops() / 2


@proxy(
    "depth",
    formula="number of blocks (modules named blocks.<number>)",
    sees="nothing",
    higher="deeper",
    paper="baseline",
)
def depth(model: nn.Module, probe: Probe) -> float:
    """Blocks at any level count: ``blocks.3`` as well as ``stages.1.blocks.3``."""
    return float(require_blocks(model))
