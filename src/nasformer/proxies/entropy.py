"""Proxies by entropy: of the features of blocks (AZ-NAS), of tokens, and of activations (Entropic Score)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.special import entr

from nasformer.proxies.parts import (
    NO_ACTIVATIONS,
    Call,
    Draw,
    Probe,
    activation_layers,
    batch_norms,
    channel_dim,
    hooks,
    is_attention,
    is_block,
    is_mlp,
    kaiming_fan_in,
    record_calls,
    reinitialise,
    require_blocks,
    weight_layers,
)
from nasformer.proxies.registry import Inapplicable, register_proxy
from nasformer.proxies.saliency import finite_or_nan

# AZ-NAS adds up ranks of its three scores and of the complexity (`macs`), as a search by several proxies does. Features
# are the outputs of whole blocks; the published code for transformers also takes those between attention and
# feed-forward half, which only nets of its own class can name. Weights are the model's own, as in that code; its
# convolutional nets get Kaiming's fan-in.

AZ_NAS = "Lee and Ham, AZ-NAS: Assembling Zero-Cost Proxies for Network Architecture Search, CVPR 2024"


@register_proxy(
    "az_expressivity",
    formula="sum over blocks of the entropy of the normalised eigenvalues of the output features' covariance; double",
    sees="noise (16 images)",
    higher="features fill more directions",
    paper=AZ_NAS,
)
def az_expressivity(model: nn.Module, probe: Probe) -> float:
    """How many directions the features of all blocks fill; each token (or pixel) of each image is a sample."""
    return sum(_block_entropies(model, probe))


@register_proxy(
    "az_progressivity",
    formula="smallest increase of a block's expressivity over that of the block before",
    sees="noise (16 images)",
    higher="expressivity grows from block to block",
    paper=AZ_NAS,
)
def az_progressivity(model: nn.Module, probe: Probe) -> float:
    """How much expressivity grows from block to block, at the least.

    The paper leaves it out for transformers, whose width is the same in all blocks.
    """
    require_blocks(model, 2)
    return min(after - before for before, after in pairwise(_block_entropies(model, probe)))


@register_proxy(
    "az_trainability",
    formula="mean over blocks of 2 - s - 1/s, s = largest singular value of E[g_in g_out^T] with random signs g_out at"
    " the block's output and g_in = what arrives at the output of the block before; double",
    sees="noise (16 images)",
    loss="random signs at each block's output",
    higher="gradients keep their size (s = 1 is best and gives 0)",
    paper=AZ_NAS,
)
def az_trainability(model: nn.Module, probe: Probe) -> float:
    """How well gradients keep their size from block to block.

    Random signs have the identity as covariance, so the mean of g_in g_out^T is the least-squares map of gradients.
    Neighbours with different numbers of tokens (between stages) are left out; the paper folds pixels into channels
    there. The published code adds 1e-6 to s.
    """
    require_blocks(model, 2)
    for parameter in model.parameters():
        parameter.requires_grad_()  # some path must be differentiable, whatever the model froze
    with record_calls(model, is_block) as calls:
        model(_noise(probe))
    source = probe.generator("az gradients")
    norms = [norm for before, after in pairwise(calls) if (norm := _gradient_norm(before, after, source)) is not None]
    if not norms:
        raise Inapplicable("no two neighbouring blocks have outputs with the same number of tokens")
    scores = torch.tensor([2 - norm - 1 / norm if norm else float("nan") for norm in norms], dtype=torch.float64)
    return scores.mean().item()


def _noise(probe: Probe) -> Tensor:
    return probe.noise("az", at_most=16)  # the paper has 64


@torch.no_grad()
def _block_entropies(model: nn.Module, probe: Probe) -> list[float]:
    require_blocks(model)
    with record_calls(model, is_block) as calls:
        model(_noise(probe))
    return [spectral_entropy(_features_as_rows(call.output, call.module)) for call in calls]


def _gradient_norm(before: Call, after: Call, source: torch.Generator) -> float | None:
    """The spectral norm of the map of gradients from one block's output to that of the block before."""
    signs = torch.randint(0, 2, after.output.shape, generator=source) * 2.0 - 1
    g_out = signs.to(after.output)
    (g_in,) = torch.autograd.grad(after.output, before.output, g_out, retain_graph=True, allow_unused=True)
    if g_in is None:
        return None
    g_in, g_out = _features_as_rows(g_in, before.module).double(), _features_as_rows(g_out, after.module).double()
    if len(g_in) != len(g_out):
        return None
    return torch.linalg.matrix_norm(g_in.T @ g_out / len(g_out), ord=2).item()


def _features_as_rows(x: Tensor, block: nn.Module) -> Tensor:
    """Features as rows, one for each token or pixel: [batch * tokens, channels]."""
    if not isinstance(x, Tensor) or x.ndim not in (3, 4):
        raise Inapplicable("the outputs of the model's blocks are neither tokens nor maps")
    if x.ndim == 4 and not _channels_last(x, block):
        x = x.movedim(1, -1)
    return x.reshape(-1, x.shape[-1])


def _channels_last(x: Tensor, block: nn.Module) -> bool:
    """Whether a map has its channels last, as blocks such as Swin's have it, which normalise the last axis."""
    widths = {m.normalized_shape[-1] for m in block.modules() if isinstance(m, nn.LayerNorm)}
    return x.shape[-1] in widths and x.shape[1] not in widths


@register_proxy(
    "token_entropy",
    formula="sum over qkv, proj, fc1, fc2 of all blocks of the entropy of the normalised eigenvalues of the covariance"
    " of their outputs over tokens and images; double",
    sees="noise (4 images)",
    higher="tokens fill more directions",
    paper="our reading of: Dissecting Representation Structure in Vision Transformers",
)
@torch.no_grad()
def token_entropy(model: nn.Module, probe: Probe) -> float:
    """How many directions the tokens fill, after each linear layer of every block.

    The paper measures entropy after these four layers; its exact formula was not at hand, this one is ours.

    The entropy of the spectrum has no unit and is never negative, so that a further layer cannot lower the sum. The
    differential entropy of a Gaussian (log of the standard deviations) would depend on the scale of the initial
    weights and be negative for small ones: deeper nets would then score lower, whatever they compute.
    """
    entropies: list[float] = []

    def measure(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        entropies.append(spectral_entropy(output.reshape(-1, output.shape[-1])))

    layers = [m for name, m in model.named_modules() if is_attention(name, m) or is_mlp(name, m)]
    if not layers:
        raise Inapplicable("the model has no linear layers named attn.* or mlp.*")
    with hooks(layer.register_forward_hook(measure) for layer in layers):
        model(probe.noise("token entropy", at_most=4))  # 788 tokens at 224 pixels
    return sum(entropies)


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


# Entropic Score (Cavagnero et al., ICCV Workshops 2023), meant for topology.
#
# The paper calls it the aggregated element-wise entropy of activations; its formula, its input and its code are not
# public. Here are six readings of these words, each a mean over the outputs of all non-linearities and over three
# initialisations. The default, `entropic`, is the plainest: Shannon's entropy of the values of a layer, by a histogram.
# The others are `entropic-<reading>`. What speaks for and against each is measured by `benchmarks/entropic_readings.py`
# and `benchmarks/readings_of_trained.py` (numbers in docs/results.md): width hardly moves the default; depth and the
# seed do, less than topology. `gap`, `sigmoid` and `softmax` are steadier, but see hardly more than the share of
# inverted bottlenecks.
#
# Weights are Kaiming's by fan-in. FreeREA, by the same authors, has fan-out; then the variance before a non-linearity
# is 2 / expansion, a matter of width, and depthwise convolutions almost vanish, whose fan-out counts channels that they
# do not feed. Gains are 1: at 1e-6, where ConvNeXt's layer scale starts, no later layer would see what a block
# computes. Batch norms use the statistics of the batch as in FreeREA, whose nets are in training mode.
#
# The readings: each turns the output of one layer into one number. It gets activations [batch, ...] and which dimension
# holds the channels, counted from the end. All are means (over images, positions or units), so that a larger tensor
# does not score higher for its size alone.

BINS = 32
RANGE = 4  # standard deviations on either side of the mean that the bins cover
BATCH = 8  # only `binary`, which compares images, would gain from more
REPEATS = 3
DEFAULT = "histogram"

Entropy = Callable[[Tensor, int], Tensor]
READINGS: dict[str, Entropy] = {}


def reading(formula: str, higher: str) -> Callable[[Entropy], Entropy]:
    """Decorator that registers a reading, and its mean over layers and initialisations as a proxy."""

    def register(entropy: Entropy) -> Entropy:
        name = entropy.__name__
        READINGS[name] = entropy

        @register_proxy(
            "entropic" if name == DEFAULT else f"entropic-{name}",
            formula=f"mean over the outputs a of all non-linearities, and over 3 inits, of: {formula}",
            sees=f"noise ({BATCH} images)",
            init="Kaiming normal by fan-in, gains 1",
            higher=higher,
            paper="our reading of: Cavagnero et al., Entropic Score metric, ICCV Workshops 2023",
        )
        def score(model: nn.Module, probe: Probe) -> float:
            return entropies(model, probe, [name])[name]

        return entropy

    return register


@reading("H(histogram of the values in 32 bins from -4 to 4 standard deviations) / ln 32", "values are more varied")
def histogram(a: Tensor, channels: int) -> Tensor:
    """How varied the values of a layer are: entropy of their histogram / ln 32.

    32 bins over 4 standard deviations on either side of the mean; what lies beyond is counted in the outermost. So
    neither scale nor the extremes, which grow with the number of elements, move the bins. 0 for a constant.
    """
    std, mean = torch.std_mean(a, correction=0)
    if std == 0:
        return torch.zeros_like(std)
    bins = (((a - mean) / std + RANGE) * (BINS / (2 * RANGE))).long().clamp_(0, BINS - 1)
    counts = torch.bincount(bins.flatten(), minlength=BINS)
    return entr(counts / a.numel()).sum() / math.log(BINS)


@reading(
    "binary entropy, in bits, of the share of images that switch a unit on; mean over units",
    "more units tell images apart",
)
def binary(a: Tensor, channels: int) -> Tensor:
    """How much of a coin toss each unit is: binary entropy of the share of images that switch it on, in bits.

    A unit is one entry of the tensor, as in NASWOT's codes. 1 if half of the images switch each unit on, 0 if a unit is
    on, or off, for all of them. Blind to the scale of the activations.
    """
    on = (a > 0).float().mean(0)
    return (entr(on) + entr(1 - on)).mean() / math.log(2)


@reading(
    "H(p) / ln n, p = |a| / sum |a| over the n elements of an image's tensor; mean over images",
    "activity is spread more evenly",
)
def mass(a: Tensor, channels: int) -> Tensor:
    """How evenly an image's activity is spread over all elements: H(p) / ln n, p = |a| / sum |a|.

    0 if a single element is active, 1 if all are equally. Blind to the scale of the activations.

    >>> mass(torch.tensor([[0.0, 3.0, 0.0, -3.0]]), -1).item()  # two of four: ln 2 / ln 4
    0.5
    """
    return _mass_entropy(a).mean() / math.log(a[0].numel())


@reading(
    "H(p) - ln n, p = |a| / sum |a| over the n elements of an image's tensor; mean over images",
    "activity is spread more evenly, whatever the number of elements",
)
def gap(a: Tensor, channels: int) -> Tensor:
    """How far an image's activity is from an even spread: H(p) - ln n, p as in `mass`.

    The entropy of n independent values is ln n less a constant that depends on their distribution alone. So this
    forgets n, which the ratio does not. 0 is the maximum.
    """
    return _mass_entropy(a).mean() - math.log(a[0].numel())


def _mass_entropy(a: Tensor) -> Tensor:
    amounts = a.abs().flatten(1)
    return entr(amounts / amounts.sum(1, keepdim=True)).sum(1)


@reading("H(softmax over the C channels) / ln C; mean over positions", "positions are less decided between channels")
def softmax(a: Tensor, channels: int) -> Tensor:
    """How undecided each position is between its channels: H(softmax over channels) / ln C.

    1 if all channels are equal, whatever their value; it falls as activations grow.
    """
    return entr(a.softmax(channels)).sum(channels).mean() / math.log(a.shape[channels])


@reading("-s ln s, s = sigmoid(a); mean over elements", "activations are closer to -0.54")
def sigmoid(a: Tensor, channels: int) -> Tensor:
    """The paper's words taken literally: the mean over elements of -s ln s with s = sigmoid(a).

    1/e at most, for activations of -ln(e - 1) = -0.54; (ln 2) / 2 for a silent layer; towards 0 as activations grow.
    """
    return entr(a.sigmoid()).mean()


@torch.no_grad()
def entropies(
    model: nn.Module, probe: Probe, readings: Iterable[str] = READINGS, draw: Draw = kaiming_fan_in
) -> dict[str, float]:
    """Several readings of the same forward passes, by name."""
    if len(probe.images) < 2:
        raise Inapplicable("the Entropic Score needs a batch of at least 2: of one image, nothing varies")
    for norm in batch_norms(model):
        norm.train()
    source, passes = probe.generator("entropic weights"), list[dict[str, float]]()
    for repeat in range(REPEATS):
        reinitialise(model, draw, source)
        passes.append(_layer_means(model, probe.noise(f"entropic {repeat}", at_most=BATCH), list(readings)))
    return {name: finite_or_nan(math.fsum(each[name] for each in passes) / REPEATS) for name in passes[0]}


def _layer_means(model: nn.Module, images: Tensor, readings: list[str]) -> dict[str, float]:
    """Each reading's mean over layers. Layers are read as they run, so that no activations are kept."""
    values: dict[str, list[Tensor]] = {name: [] for name in readings}
    after_linear = False

    def remember(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal after_linear
        after_linear = isinstance(module, nn.Linear)

    def read(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if len(output) % len(images):
            return  # not about the images, such as a small net that makes position biases
        channels = channel_dim(output, after_linear) - output.dim()
        by_image = output.unflatten(0, (len(images), -1))  # windows of an image may be part of the batch
        for name in readings:
            values[name].append(READINGS[name](by_image, channels))

    handles = [layer.register_forward_hook(remember) for layer in weight_layers(model).values()]
    handles += [layer.register_forward_hook(read) for layer in activation_layers(model)]
    with hooks(handles):
        model(images)
    if not any(values.values()):
        raise Inapplicable(NO_ACTIVATIONS)
    return {name: torch.stack(each).double().mean().item() for name, each in values.items()}
