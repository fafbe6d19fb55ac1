"""Proxies that read gradients at the start of training: SNIP, GraSP, Fisher, ZiCo, AutoProxA and two plain baselines.

Most follow zero-cost-nas (Abdelfattah et al., ICLR 2021), in evaluation mode instead of training mode, because dropped
paths would make the score a matter of luck. All linear and convolutional weights count, patch embedding and head too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from nasformer.proxies.parts import (
    NO_ACTIVATIONS,
    Call,
    Probe,
    activation_layers,
    attention_linears,
    batch_norms,
    channel_dim,
    kaiming_fan_out,
    mlp_linears,
    record_calls,
    reinitialise,
    weight_layers,
)
from nasformer.proxies.registry import Inapplicable, register_proxy

# Gradients of the weights, in chunks of the batch, so that memory depends on the model and not on the batch.
#
# In evaluation mode no image sees another, so the gradient of a mean over images is the sum over chunks: exact.

# Images at a time. 8 are about 1.5 GiB of activations at 224 pixels in a transformer of 75 million weights; a GPU has
# more memory, and starting many small kernels is what takes its time.
CHUNK = {"cpu": 8, "cuda": 64}


def chunk_size(images: Tensor) -> int:
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
    chunk = chunk or chunk_size(images)
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
    gradients: tuple[Tensor | None, ...] = ()
    if loss.requires_grad:
        gradients = torch.autograd.grad(loss, list(weights.values()), create_graph=create_graph, allow_unused=True)
    if all(gradient is None for gradient in gradients):
        raise Inapplicable("no gradient reaches any linear or convolutional weight of the model")
    pairs = zip(weights.items(), gradients, strict=True)
    return {name: torch.zeros_like(weight) if gradient is None else gradient for (name, weight), gradient in pairs}


def inner(left: Tensor, right: Tensor) -> float:
    """The sum over all elements of left . right, in double precision."""
    return float(torch.dot(left.detach().flatten().double(), right.detach().flatten().double()))


def finite_or_nan(score: float) -> float:
    """The score, or NaN where it left the range of numbers."""
    return score if math.isfinite(score) else float("nan")


@register_proxy(
    "grad_norm",
    formula="sum over layers ||G||_F",
    sees="labelled batch",
    loss="mean cross-entropy",
    higher="larger gradients at the start of training",
    paper="Abdelfattah et al., Zero-Cost Proxies for Lightweight NAS, ICLR 2021",
)
def grad_norm(model: nn.Module, probe: Probe) -> float:
    """The sum over layers of the Frobenius norm of the gradient of their weight."""
    gradients = cross_entropy_gradients(model, probe.images, probe.labels)
    return finite_or_nan(sum(inner(gradient, gradient) ** 0.5 for gradient in gradients.values()))


@register_proxy(
    "plain",
    formula="sum G . W",
    sees="labelled batch",
    loss="mean cross-entropy",
    higher="a loss that falls when all weights shrink together",
    paper="Abdelfattah et al., Zero-Cost Proxies for Lightweight NAS, ICLR 2021 (a baseline)",
)
def plain(model: nn.Module, probe: Probe) -> float:
    """SNIP without the absolute value: the derivative of the loss for a common factor on all weights."""
    gradients, layers = cross_entropy_gradients(model, probe.images, probe.labels), weight_layers(model)
    return finite_or_nan(sum(inner(gradient, layers[name].weight) for name, gradient in gradients.items()))


@register_proxy(
    "snip",
    formula="sum |G . W|",
    sees="labelled batch",
    loss="mean cross-entropy",
    higher="more weights that matter to the loss",
    paper="Lee et al., SNIP, ICLR 2019; as a proxy: Abdelfattah et al., ICLR 2021",
)
def snip(model: nn.Module, probe: Probe) -> float:
    """How much the loss would change if each weight were taken away.

    Others differentiate a mask of ones that multiplies W; the derivative with respect to the mask is G . W, so no mask
    is needed.
    """
    gradients, layers = cross_entropy_gradients(model, probe.images, probe.labels), weight_layers(model)
    return finite_or_nan(sum(inner(gradient.abs(), layers[name].weight.abs()) for name, gradient in gradients.items()))


@register_proxy(
    "grasp",
    formula="sum -W . Hg, with H the Hessian of the loss and g its gradient",
    sees="labelled batch",
    loss="mean cross-entropy, differentiated twice",
    higher="weights that hold the gradient flow up",
    paper="Wang et al., GraSP, ICLR 2020; as a proxy: Abdelfattah et al., ICLR 2021",
)
def grasp(model: nn.Module, probe: Probe) -> float:
    """How much the gradient would shrink if each weight were taken away, with the sign of zero-cost-nas.

    GraSP prunes weights with the largest -W . Hg; zero-cost-nas takes their sum for a score that is better when
    higher, and so do we. No temperature on the logits (T = 1), and the probe's batch rather than images per class.
    """
    # Fused attention cannot be differentiated twice on every device; written out, it can.
    with sdpa_kernel(SDPBackend.MATH):
        try:
            return finite_or_nan(-_weights_times_hessian_times_gradient(model, probe))
        except RuntimeError as error:
            if "derivative for" not in str(error):
                raise
            raise Inapplicable(f"a layer of the model cannot be differentiated twice: {error}") from error


def _weights_times_hessian_times_gradient(model: nn.Module, probe: Probe) -> float:
    """The sum of W . Hg. H is a sum over chunks of the batch; g, which it acts on, is that of the whole batch."""
    weights = trainable_weights(model)
    chunk = chunk_size(probe.images) // 4  # the graph of a gradient is several times that of a loss
    whole = cross_entropy_gradients(model, probe.images, probe.labels, chunk)
    total = 0.0
    for loss in cross_entropy_chunks(model, probe.images, probe.labels, chunk):
        gradients = gradients_of(loss, weights, create_graph=True)
        product = torch.stack([(whole[name] * gradient).sum() for name, gradient in gradients.items()]).sum()
        total += sum(inner(weights[name], second) for name, second in gradients_of(product, weights).items())
    return total


@register_proxy(
    "fisher",
    formula="sum over activations and channels of 1/2 mean_n (sum over positions a . dL_n/da)^2",
    sees="labelled batch",
    loss="cross-entropy of each image",
    higher="more channels that matter to the loss",
    paper="Theis et al., Fisher pruning, 2018; Turner et al., BlockSwap, ICLR 2020",
)
def fisher(model: nn.Module, probe: Probe) -> float:
    """How much the loss would change if each channel of the outputs of activation layers were taken away.

    Positions are tokens, or rows and columns of a map. zero-cost-nas reads the outputs of linear and convolutional
    layers instead, sums over all dimensions but the first two, which for tokens are the channels, counts a channel
    once for each weight that feeds it, and differentiates the mean loss, which divides by the squared batch size.
    """
    model.requires_grad_(False)  # only what depends on the images has a gradient then
    for module in model.modules():
        if hasattr(module, "inplace"):
            module.inplace = False  # type: ignore[assignment]  # no layer may overwrite the output of another
    activations = set(activation_layers(model))
    recorded = activations | set(weight_layers(model).values())
    images, total = probe.images.detach().requires_grad_(), 0.0
    with record_calls(model, lambda name, module: module in recorded) as calls:
        for share in cross_entropy_chunks(model, images, probe.labels):
            total += _sum_of_squares(share * len(images), list(_outputs_with_channels(calls, activations)))
            calls.clear()
    return finite_or_nan(0.5 * total / len(images))


def _outputs_with_channels(calls: Sequence[Call], activations: set[nn.Module]) -> Iterator[tuple[Tensor, int]]:
    """The output of each activation layer, and which of its dimensions holds the channels."""
    after_linear = False
    for call in calls:
        if call.module not in activations:
            after_linear = isinstance(call.module, nn.Linear)
        elif call.output.requires_grad:
            yield call.output, channel_dim(call.output, after_linear)


def _sum_of_squares(losses: Tensor, activations: Sequence[tuple[Tensor, int]]) -> float:
    """The sum over activations, images and channels; `losses` is a sum over images, so each has its own gradient."""
    if not activations:
        raise Inapplicable(f"{NO_ACTIVATIONS} that see the images")
    outputs = [output for output, _ in activations]
    gradients = torch.autograd.grad(losses, outputs, allow_unused=True, materialize_grads=True)
    total = 0.0
    for (output, channels), gradient in zip(activations, gradients, strict=True):
        positions = [dimension for dimension in range(1, output.dim()) if dimension != channels]
        products = (output.detach() * gradient).double()
        total += float((products.sum(positions) if positions else products).square().sum())
    return total


@register_proxy(
    "zico",
    formula="sum over layers of log( sum over weights of mean_b |g_b| / std_b g_b )",
    sees="labelled batch, in two halves",
    loss="mean cross-entropy of each half",
    higher="gradients that are large and agree between batches",
    paper="Li et al., ZiCo, ICLR 2023",
)
def zico(model: nn.Module, probe: Probe) -> float:
    """How large gradients are relative to their spread over two batches: the official score, as the authors compute it.

    Weights with no deviation, and layers with no other weights, are left out, as in the official code. That code has
    the whole model in training mode; here only batch norm is, for it needs the statistics of a batch to keep signals
    in range.
    """
    gradients = gradients_of_halves(model, probe)
    sums = [_inverse_variation(both.double()) for both in gradients.values()]
    if not any(sums):
        raise Inapplicable("the gradients of all batches are the same")
    return finite_or_nan(sum(math.log(value) for value in sums if value))


def gradients_of_halves(model: nn.Module, probe: Probe) -> dict[str, Tensor]:
    """The gradients of each half of the labelled batch, [2, ...], by name of the layer; batch norms train."""
    norms = batch_norms(model)
    for norm in norms:
        norm.train()
    size, least = len(probe.images) // 2, 2 if norms else 1  # a single image has no statistics
    if size < least:
        raise Inapplicable(f"needs at least {2 * least} images")
    chunk = size if norms else None  # images see each other in a batch norm that trains, so their batch stays whole
    first, second = (
        cross_entropy_gradients(model, probe.images[half], probe.labels[half], chunk)
        for half in (slice(size), slice(size, 2 * size))
    )
    return {name: torch.stack([first[name], second[name]]) for name in first}


def _inverse_variation(gradients: Tensor) -> float:
    """The sum over the weights of a layer of mean |g| / std g, over the first dimension."""
    mean, deviation = gradients.abs().mean(0), gradients.std(0, correction=0)
    varies = deviation != 0  # true for NaN as well, which must not pass for "no deviation"
    return float((mean[varies] / deviation[varies]).sum())


@register_proxy(
    "autoprox",
    formula="sum over attention linears ||G||_1 + sum over MLP linears mean(sigmoid(G))",
    sees="ones",
    loss="sum of the logits",
    higher="larger gradients in attention",
    paper="Wei et al., Auto-Prox, AAAI 2024",
)
def autoprox(model: nn.Module, probe: Probe) -> float:
    """A score that search itself came up with, in the form in which a later paper compares with AutoProxA.

    The authors' configuration names its two inputs, t2 and t4g, but the code that would say what they are was never
    published; it also has a min-max scaling, a Frobenius norm and a square root that this form has not. The second
    term is about 0.5 for each linear layer of an MLP: it counts them.
    """
    attention, mlp = attention_linears(model), mlp_linears(model)
    if not attention or not mlp:
        raise Inapplicable("the model has no attention or no MLP with linear layers that can be told by name")
    gradients = {name: gradient.double() for name, gradient in logit_gradients(model, probe.ones()).items()}
    score = sum(float(gradients[name].abs().sum()) for name in attention)
    return finite_or_nan(score + sum(float(gradients[name].sigmoid().mean()) for name in mlp))


# SynFlow and LogSynflow: how much signal flows through all paths of a network, whatever the data.
#
# Both make everything positive, in double precision, and differentiate the sum of the logits R for an image of ones.


@register_proxy(
    "synflow",
    formula="log10 of sum |W . dR/dW|, R = sum of f(1; |theta|)",
    sees="ones",
    loss="sum of the logits",
    init="own, absolute values, in double precision",
    higher="more signal through all paths together",
    paper="Tanaka et al., SynFlow, NeurIPS 2020; as a proxy: Abdelfattah et al., ICLR 2021",
)
def synflow(model: nn.Module, probe: Probe) -> float:
    """The logarithm of the flow over all linear and convolutional weights of the linearised network.

    The logarithm is ours: flows of deep networks differ by hundreds of powers of ten, and ranks stay the same. In a
    network of linear layers and ReLUs every layer has the same flow; layer norm, softmax and GELU, which nobody takes
    out of transformers, break this law, and layer norm hides the scale of what lies before it.
    """
    linearise(model)
    gradients, layers = logit_gradients(model, probe.ones().double()), weight_layers(model)
    flow = sum(inner(gradient.abs(), layers[name].weight) for name, gradient in gradients.items())
    if flow == 0:
        raise Inapplicable("no signal flows through the model, so its flow has no logarithm")
    return finite_or_nan(math.log10(flow))


@register_proxy(
    "logsynflow",
    formula="sum |W . log(1 + |dR/dW|)|, R = sum of f(1; |theta|), norms as constants",
    sees="ones",
    loss="sum of the logits",
    init="Kaiming normal by fan-out, gains 1, absolute values, in double precision",
    higher="more weights that signal flows through",
    paper="Cavagnero et al., FreeREA, WACV 2023",
)
def logsynflow(model: nn.Module, probe: Probe) -> float:
    """SynFlow with gradients damped by a logarithm, so that deep networks do not win by explosion.

    FreeREA leaves out batch norm, the only norm of its networks. Layer norm cannot just go, or transformers overflow;
    but it is made a constant scale (`ConstantNorms`). With layer norm as it is, the score hardly changed with the depth
    of a hybrid net, and with the seed nearly as much as with the topology; now it grows with size and changes by parts
    in a thousand (docs/results.md). Hence also one initialisation, where FreeREA averages over three.

    FreeREA has log(1 + g), with g >= 0 in its networks. GELU and softmax can make g negative, even below -1: hence
    log(1 + |g|). Auto-Prox has |log g| instead, another score that is undefined for such g.

    Gains are 1. FreeREA's networks have none but those of batch norm. With ConvNeXt's layer scale at 1e-6, where it
    starts, the gradients of a whole block vanish beside the 1 of log(1 + |g|).
    """
    reinitialise(model, kaiming_fan_out, probe.generator("logsynflow"))
    linearise(model)
    with ConstantNorms():
        gradients = logit_gradients(model, probe.ones().double())
    layers = weight_layers(model)
    return finite_or_nan(
        sum(inner(gradient.abs().log1p(), layers[name].weight) for name, gradient in gradients.items())
    )


@torch.no_grad()
def linearise(model: nn.Module) -> None:
    """Makes every parameter its absolute value, every batch norm the identity, and the whole model double.

    A network of linear layers, convolutions and ReLUs is then a linear function on positive inputs. Layer norm, softmax
    and GELU stay what they are. zero-cost-nas takes the absolute value of buffers as well; ours stay, because what is
    a buffer and not a statistic of batch norm is a constant, such as the -100 of an attention mask.

    >>> net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).eval()
    >>> _ = nn.init.constant_(net[0].weight, -1.0), nn.init.zeros_(net[0].bias), net[1].running_mean.fill_(7.0)
    >>> linearise(net)
    >>> net(torch.ones(1, 2).double()).tolist()
    [[2.0, 2.0]]
    """
    model.double()
    device = next(model.parameters(), torch.empty(0)).device
    for norm in batch_norms(model):
        _make_identity(norm, device)
    for parameter in model.parameters():
        parameter.abs_()


def _make_identity(norm: _BatchNorm, device: torch.device) -> None:
    """Makes a batch norm the identity; it is not removed, since some carry an activation that has to stay."""
    norm.eval()
    norm.running_mean = torch.zeros(norm.num_features, dtype=torch.double, device=device)
    norm.running_var = torch.ones(norm.num_features, dtype=torch.double, device=device) - norm.eps
    if norm.affine:
        nn.init.ones_(norm.weight)
        nn.init.zeros_(norm.bias)


class ConstantNorms(TorchFunctionMode):
    """Context in which layer norm, RMS norm and group norm divide by the size of their input as by a constant.

    Gradients then pass a norm as they pass a linear layer. As it is, a norm hides the scale of all that lies before it:
    the gradients there nearly cancel, and what is left of them is noise. To leave norms out would do as well, but a
    transformer then leaves the range of numbers.

    >>> x = torch.tensor([[3.0, 4.0]], requires_grad=True)
    >>> with ConstantNorms():
    ...     y = F.layer_norm(x, (2,))
    >>> torch.autograd.grad(y.sum(), x)[0].mul(12.5**0.5)  # one over the root of the mean square
    tensor([[1., 1.]])
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in _NORMS:
            return func(*args, **(kwargs or {}))
        x, shape, weight, bias = _NORMS[func](*args, **(kwargs or {}))
        last = tuple(range(-len(shape), 0))
        y = x / x.detach().square().mean(last, keepdim=True).sqrt().clamp_min(torch.finfo(x.dtype).tiny)
        return (y if weight is None else y * weight) + (0 if bias is None else bias)


def _layer_norm(x: Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: float = 0) -> tuple[Any, ...]:
    return x, shape, weight, bias


def _rms_norm(x: Tensor, shape: Any, weight: Any = None, eps: float | None = None) -> tuple[Any, ...]:
    return x, shape, weight, None


def _group_norm(x: Tensor, groups: int, weight: Any = None, bias: Any = None, eps: float = 0) -> tuple[Any, ...]:
    """Arguments of a layer norm over the image in place of each group: for a constant scale that is near enough."""
    channels = (-1, *[1] * (x.dim() - 2))
    return x, x.shape[1:], *(part if part is None else part.view(channels) for part in (weight, bias))


_NORMS: dict[Any, Any] = {F.layer_norm: _layer_norm, F.rms_norm: _rms_norm, F.group_norm: _group_norm}
