"""Fisher: how much the loss would feel it if each channel of the activations were taken away."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from nasformer.proxies.codes import activations
from nasformer.proxies.gradients import cross_entropy_chunks, finite_or_nan
from nasformer.proxies.hooks import Seen, watch
from nasformer.proxies.probe import Probe
from nasformer.proxies.proxy import Inapplicable, proxy
from nasformer.proxies.weights import weight_layers


@proxy(
    "fisher",
    formula="sum over activations and channels of 1/2 mean_n (sum over positions a . dL_n/da)^2",
    sees="labelled batch",
    loss="cross-entropy of each image",
    higher="more channels that matter to the loss",
    paper="Theis et al., Fisher pruning, 2018; Turner et al., BlockSwap, ICLR 2020",
)
def fisher(model: nn.Module, probe: Probe) -> float:
    """The sum over the outputs of all activation layers (those of `codes`) of what each channel carries.

    Positions are tokens, or rows and columns of a map. zero-cost-nas reads the outputs of linear and convolutional
    layers instead, sums over all dimensions but the first two, which for tokens are the channels, counts a channel
    once for each weight that feeds it, and differentiates the mean loss, which divides by the squared batch size.
    """
    layers = set(activations(model))
    watched = layers | set(weight_layers(model).values())
    prepare(model)
    images, total = probe.images.detach().requires_grad_(), 0.0
    with watch(model, lambda name, module: module in watched) as seen:
        for share in cross_entropy_chunks(model, images, probe.labels):
            total += sum_of_squares(share * len(images), list(outputs_with_channels(seen, layers)))
            seen.clear()
    return finite_or_nan(0.5 * total / len(images))


def prepare(model: nn.Module) -> None:
    """Then only what depends on the images has a gradient, and no layer overwrites the output of another."""
    model.requires_grad_(False)
    for module in model.modules():
        if hasattr(module, "inplace"):
            module.inplace = False  # type: ignore[assignment]


def outputs_with_channels(calls: list[Seen], layers: set[nn.Module]) -> Iterator[tuple[Tensor, int]]:
    """The output of each activation layer, and which of its dimensions are the channels.

    Tokens [B, N, C] have their channels last. With four dimensions it depends on who made the tensor: [B, C, H, W]
    comes from a convolution, [B, H, W, C] from a linear layer (ConvNeXt, Swin).
    """
    after_linear = False
    for call in calls:
        if call.module not in layers:
            after_linear = isinstance(call.module, nn.Linear)
        elif call.output.requires_grad:
            yield call.output, call.output.dim() - 1 if after_linear or call.output.dim() == 3 else 1


def sum_of_squares(losses: Tensor, activations: list[tuple[Tensor, int]]) -> float:
    """The sum over activations, images and channels; `losses` is a sum over images, so each has its own gradient."""
    if not activations:
        raise Inapplicable("the model has no activation layers (GELU, ReLU, SiLU ...) that see the images")
    outputs = [output for output, _ in activations]
    gradients = torch.autograd.grad(losses, outputs, allow_unused=True, materialize_grads=True)
    total = 0.0
    for (output, channels), gradient in zip(activations, gradients, strict=True):
        positions = [dimension for dimension in range(1, output.dim()) if dimension != channels]
        felt = (output.detach() * gradient).double()
        total += float((felt.sum(positions) if positions else felt).square().sum())
    return total
