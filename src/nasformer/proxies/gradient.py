"""The weight matrices that proxies sum over, and the initialisations that some of them ask for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from nasformer.proxies.activations import activations
from nasformer.proxies.core import Inapplicable, Probe, Seen, proxy, watch

Layer = nn.Linear | nn.Conv2d


def weight_layers(model: nn.Module) -> dict[str, Layer]:
    """All linear and convolutional layers by name, the head included: what "all weights" means in the papers."""
    return {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear | nn.Conv2d)}


@torch.no_grad()
def reinitialise(model: nn.Module, draw: Callable[[Tensor, torch.Generator], None], source: torch.Generator) -> None:
    """Draws every linear and convolutional weight anew and sets their biases to 0; norms and positions stay."""
    for layer in weight_layers(model).values():
        fresh = torch.empty(layer.weight.shape)  # drawn on the CPU: the same numbers on every device
        draw(fresh, source)
        layer.weight.copy_(fresh)
        if layer.bias is not None:
            layer.bias.zero_()


def gaussian(weight: Tensor, source: torch.Generator) -> None:
    """N(0, 1), as Zen-NAS and NASWOT on transformers use it."""
    weight.normal_(generator=source)


def kaiming_fan_out(weight: Tensor, source: torch.Generator) -> None:
    nn.init.kaiming_normal_(weight, mode="fan_out", nonlinearity="relu", generator=source)


def kaiming_fan_in(weight: Tensor, source: torch.Generator) -> None:
    nn.init.kaiming_normal_(weight, mode="fan_in", nonlinearity="relu", generator=source)


# ----------------------------------------------------------------------------------------------------------------------
# Gradients of the weights, in chunks of the batch, so that memory depends on the model and not on the batch.
#
# In evaluation mode no image sees another, so the gradient of a mean over images is the sum over chunks: exact.
# ----------------------------------------------------------------------------------------------------------------------

# Images at a time. 8 are about 1.5 GiB of activations at 224 pixels in a transformer of 75 million weights; a GPU has
# more memory, and starting many small kernels is what takes its time.
CHUNK = {"cpu": 8, "cuda": 64}


def chunk_for(images: Tensor) -> int:
    return CHUNK.get(images.device.type, CHUNK["cpu"])


def trainable_weights(model: nn.Module) -> dict[str, Tensor]:
    """The weights of all linear and convolutional layers by name of the layer, ready to be differentiated."""
    weights: dict[str, Tensor] = {name: layer.weight for name, layer in weight_layers(model).items()}
    if not weights:
        raise Inapplicable("the model has neither linear nor convolutional layers")
    for weight in weights.values():
        weight.requires_grad_(True)
    return weights


def cross_entropy_chunks(
    model: nn.Module, images: Tensor, labels: Tensor, chunk: int | None = None
) -> Iterator[Tensor]:
    """Each chunk's share of the mean cross-entropy over the batch; together they are the loss.

    >>> model, images, labels = nn.Flatten(), torch.eye(3), torch.tensor([0, 1, 1])
    >>> shares = list(cross_entropy_chunks(model, images, labels, chunk=2))
    >>> len(shares), torch.isclose(sum(shares), F.cross_entropy(images, labels)).item()
    (2, True)
    """
    chunk = chunk or chunk_for(images)
    for some_images, some_labels in zip(images.split(chunk), labels.split(chunk), strict=True):
        yield F.cross_entropy(model(some_images), some_labels, reduction="sum") / len(labels)


def cross_entropy_gradients(
    model: nn.Module, images: Tensor, labels: Tensor, chunk: int | None = None
) -> dict[str, Tensor]:
    """G = d(mean cross-entropy) / dW by name of the layer; 0 where a layer has no part in the output."""
    weights = trainable_weights(model)
    total = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    for loss in cross_entropy_chunks(model, images, labels, chunk):
        for name, gradient in gradients_of(loss, weights).items():
            total[name] += gradient
    return total


def logit_gradients(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """G = d(sum of all logits) / dW by name of the layer."""
    weights = trainable_weights(model)
    return gradients_of(model(images).sum(), weights)


def gradients_of(loss: Tensor, weights: dict[str, Tensor], create_graph: bool = False) -> dict[str, Tensor]:
    """The gradient of a number with respect to each weight."""
    found: tuple[Tensor | None, ...] = ()
    if loss.requires_grad:
        found = torch.autograd.grad(loss, list(weights.values()), create_graph=create_graph, allow_unused=True)
    if all(gradient is None for gradient in found):
        raise Inapplicable("no gradient reaches any linear or convolutional weight of the model")
    pairs = zip(weights.items(), found, strict=True)
    return {name: torch.zeros_like(weight) if gradient is None else gradient for (name, weight), gradient in pairs}


def inner(left: Tensor, right: Tensor) -> float:
    """The sum over all elements of left . right, in double precision."""
    return float(torch.dot(left.detach().flatten().double(), right.detach().flatten().double()))


def finite_or_nan(score: float) -> float:
    """A score that left the range of numbers is no score."""
    return score if math.isfinite(score) else float("nan")


# ----------------------------------------------------------------------------------------------------------------------
# Two plain readings of one gradient: its length layer by layer, and its product with the weights.
# ----------------------------------------------------------------------------------------------------------------------


@proxy(
    "grad_norm",
    formula="sum over layers ||G||_F",
    sees="labelled batch",
    loss="mean cross-entropy",
    higher="larger gradients at the start of training",
    paper="Abdelfattah et al., Zero-Cost Proxies for Lightweight NAS, ICLR 2021",
)
def grad_norm(model: nn.Module, probe: Probe) -> float:
    """The sum over all linear and convolutional layers of the Frobenius norm of the gradient of their weight."""
    gradients = cross_entropy_gradients(model, probe.images, probe.labels)
    return finite_or_nan(sum(inner(gradient, gradient) ** 0.5 for gradient in gradients.values()))


@proxy(
    "plain",
    formula="sum G . W",
    sees="labelled batch",
    loss="mean cross-entropy",
    higher="a loss that falls when all weights shrink together",
    paper="Abdelfattah et al., Zero-Cost Proxies for Lightweight NAS, ICLR 2021 (a baseline)",
)
def plain(model: nn.Module, probe: Probe) -> float:
    """SNIP without the absolute value: the derivative of the loss for a common factor on all weights."""
    gradients = cross_entropy_gradients(model, probe.images, probe.labels)
    layers = weight_layers(model)
    return finite_or_nan(sum(inner(gradient, layers[name].weight) for name, gradient in gradients.items()))


# ----------------------------------------------------------------------------------------------------------------------
# SNIP: how much the loss would feel it if each weight were taken away.
# ----------------------------------------------------------------------------------------------------------------------


@proxy(
    "snip",
    formula="sum |G . W|",
    sees="labelled batch",
    loss="mean cross-entropy",
    higher="more weights that matter to the loss",
    paper="Lee et al., SNIP, ICLR 2019; as a proxy: Abdelfattah et al., ICLR 2021",
)
def snip(model: nn.Module, probe: Probe) -> float:
    """The sum of |G . W| over all linear and convolutional weights, patch embedding and head included.

    Others differentiate a mask of ones that multiplies W, in training mode; the derivative with respect to the mask is
    G . W, so no mask is needed. Evaluation mode, because dropped paths would make the score a matter of luck.
    """
    gradients = cross_entropy_gradients(model, probe.images, probe.labels)
    layers = weight_layers(model)
    return finite_or_nan(sum(inner(gradient.abs(), layers[name].weight.abs()) for name, gradient in gradients.items()))


# ----------------------------------------------------------------------------------------------------------------------
# GraSP: how much the gradient would shrink if each weight were taken away.
# ----------------------------------------------------------------------------------------------------------------------


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


# ----------------------------------------------------------------------------------------------------------------------
# Fisher: how much the loss would feel it if each channel of the activations were taken away.
# ----------------------------------------------------------------------------------------------------------------------


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
