"""DSS, the indicator of TF-TAS (Zhou et al., CVPR 2022): diversity of attention plus saliency of the MLPs.

    DSS = sum over attention matrices  ||dL/dW||_* ||W||_*   +   sum over MLP matrices  sum |dL/dW . W|

with L the sum of the logits for one image of ones, through an untrained network in evaluation mode. Convolutions (patch
embedding, pooling) are not measured, nor is the head or what joins two stages.

Choices of ours: the paper's text and algorithm include the matrix of queries, keys and values; the published code
loses it (it joins slices where no gradient is recorded), which is ``dss-code``. Neither takes absolute weights first,
as another benchmark's version does: that ranks far worse on PiT. The algorithm says training mode; the code uses
evaluation mode, and so do we, since stochastic depth would add nothing but noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from nasformer.proxies.nuclear import nuclear_norms, weight_norm
from nasformer.proxies.parts import Condition, Probe, is_attention, is_mlp
from nasformer.proxies.registry import Inapplicable, register_proxy
from nasformer.proxies.untrained import SharedCall, SideBySide
from nasformer.space.arch import Arch

# Archs that run together. On a CPU there is nothing to gain, and alone each score is the same to the last bit.
CHUNK = {"cuda": 256}


def dss(model: nn.Module, probe: Probe, diverse: Condition = is_attention) -> float:
    """The score of one model; `diverse` says which layers count by their nuclear norms."""
    modules = dict(model.named_modules())
    attention = [module.weight for name, module in modules.items() if diverse(name, module)]
    mlp = [module.weight for name, module in modules.items() if is_mlp(name, module)]
    if not attention:
        raise Inapplicable("the model has no attention with linear layers such as attn.qkv and attn.proj")
    gradients = torch.autograd.grad(model(probe.ones()).sum(), [*attention, *mlp])
    norms = nuclear_norms(gradient[None] for gradient in gradients[: len(attention)])
    diversity = [norm * weight_norm(weight.detach()) for norm, weight in zip(norms, attention, strict=True)]
    salience = [saliency(g[None], w) for g, w in zip(gradients[len(attention) :], mlp, strict=True)]
    return torch.cat(diversity + salience).sum().item()


def saliency(gradients: Tensor, weight: Tensor) -> Tensor:
    return (gradients * weight.detach()).abs().sum((1, 2), dtype=torch.float64)


def dss_many(nets: SideBySide, archs: Sequence[Arch], probe: Probe, diverse: Condition = is_attention) -> list[float]:
    """The scores of many archs side by side: exact, and hundreds of times faster on a GPU."""
    if nets.layers.has_batch_norm:  # whose statistics depend on all layers before, so that no two archs share a layer
        return [_dss_or_nan(nets.layers.model(arch), probe, diverse) for arch in archs]
    size = CHUNK.get(probe.device.type, 1)
    chunks = [archs[start : start + size] for start in range(0, len(archs), size)]
    return [score for chunk in chunks for score in _side_by_side(nets, chunk, probe, diverse).tolist()]


def _dss_or_nan(model: nn.Module, probe: Probe, diverse: Condition) -> float:
    try:
        return dss(model, probe, diverse)
    except Inapplicable:
        return float("nan")


def _side_by_side(nets: SideBySide, archs: Sequence[Arch], probe: Probe, diverse: Condition) -> Tensor:
    """The scores of archs; NaN for one without attention, as a hybrid may be."""
    ones = probe.ones().requires_grad_()  # weights need no gradient here, but the graph must start somewhere
    logits, calls = nets.run(archs, ones, lambda name, module: diverse(name, module) or is_mlp(name, module))
    outputs = [call.output for call in calls]
    arriving = torch.autograd.grad(torch.cat(logits).sum(), outputs) if outputs else ()
    pairs = list(zip(calls, arriving, strict=True))
    attention = [(call, delta) for call, delta in pairs if diverse(call.name, call.module)]
    norms = nuclear_norms(_weight_gradients(call, delta) for call, delta in attention)
    scores = torch.full((len(archs),), torch.nan, dtype=torch.float64, device=ones.device)
    for call, _ in attention:
        scores[call.members] = 0.0
    for (call, _), norm in zip(attention, norms, strict=True):
        scores[call.members] += norm * nets.weight_norm(call)
    for call, delta in pairs:
        if is_mlp(call.name, call.module):
            scores[call.members] += saliency(_weight_gradients(call, delta), call.weight)
    return scores


def _weight_gradients(call: SharedCall, arriving: Tensor) -> Tensor:
    """Each arch's own gradient of the weight: [members, out, in]."""
    return arriving.flatten(1, -2).mT @ call.input.flatten(1, -2)


def is_projection(name: str, module: nn.Module) -> bool:
    """Whether a layer is an output projection: what is left of attention in the published code."""
    return is_attention(name, module) and name.endswith("proj")


def _register(name: str, formula: str, diverse: Condition) -> None:
    register = register_proxy(
        name,
        formula=formula,
        sees="one image of ones",
        loss="sum of the logits",
        higher="attention whose weights and gradients have many directions, and more salient MLP weights",
        paper="TF-TAS, Zhou et al., CVPR 2022",
        many=partial(dss_many, diverse=diverse),
    )
    register(partial(dss, diverse=diverse))


_register("dss", "sum_{qkv, proj} ||G||_* ||W||_* + sum_{fc1, fc2} |G . W|", is_attention)
_register("dss-code", "sum_{proj} ||G||_* ||W||_* + sum_{fc1, fc2} |G . W|: qkv is lost", is_projection)
