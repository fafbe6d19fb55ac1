"""Entropy of features and flow of gradients, block by block: the scores of AZ-NAS, and token entropy.

AZ-NAS adds up ranks of its three scores and of the complexity (`macs`), as a search by several proxies does. Features
are the outputs of whole blocks; the published code for transformers also takes those between attention and
feed-forward half, which only nets of its own class can name. Weights are the model's own, as in that code; its
convolutional nets get Kaiming's fan-in.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from nasformer.proxies.parts import Call, Probe, hooks, is_attention, is_block, is_mlp, record_calls, require_blocks
from nasformer.proxies.registry import Inapplicable, register_proxy

PAPER = "Lee and Ham, AZ-NAS: Assembling Zero-Cost Proxies for Network Architecture Search, CVPR 2024"


@register_proxy(
    "az_expressivity",
    formula="sum over blocks of the entropy of the normalised eigenvalues of the output features' covariance; double",
    sees="noise (16 images)",
    higher="features fill more directions",
    paper=PAPER,
)
def az_expressivity(model: nn.Module, probe: Probe) -> float:
    """How many directions the features of all blocks fill; each token (or pixel) of each image is a sample."""
    return sum(_block_entropies(model, probe))


@register_proxy(
    "az_progressivity",
    formula="smallest increase of a block's expressivity over that of the block before",
    sees="noise (16 images)",
    higher="expressivity grows from block to block",
    paper=PAPER,
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
    paper=PAPER,
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
