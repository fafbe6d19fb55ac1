"""AZ-NAS: three views of a network's blocks, read off one batch of noise.

The paper adds up ranks of these and of the complexity (`macs`); see `search.aggregate`. Features are the outputs of
whole blocks. The published code for transformers also takes those between attention and feed-forward half, which only
nets of its own class can name. Weights are the model's own, as in that code; its convolutional nets get Kaiming's
fan-in.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from nasformer.proxies.core import Inapplicable, Probe, Seen, is_block, proxy, require_blocks, watch
from nasformer.proxies.nuclear import spectral_entropy

BATCH = 16  # the paper has 64
PAPER = "Lee and Ham, AZ-NAS: Assembling Zero-Cost Proxies for Network Architecture Search, CVPR 2024"


@proxy(
    "az_expressivity",
    formula="sum over blocks of the entropy of the normalised eigenvalues of the output features' covariance; double",
    sees="noise (16 images)",
    higher="features fill more directions",
    paper=PAPER,
)
def az_expressivity(model: nn.Module, probe: Probe) -> float:
    """Every token (or pixel) of every image is one sample of a feature vector."""
    return sum(block_entropies(model, probe))


@proxy(
    "az_progressivity",
    formula="smallest increase of a block's expressivity over that of the block before",
    sees="noise (16 images)",
    higher="expressivity grows from block to block",
    paper=PAPER,
)
def az_progressivity(model: nn.Module, probe: Probe) -> float:
    """The paper leaves it out for transformers, whose width is the same in all blocks."""
    require_blocks(model, 2)
    return min(after - before for before, after in pairwise(block_entropies(model, probe)))


@proxy(
    "az_trainability",
    formula="mean over blocks of 2 - s - 1/s, s = largest singular value of E[g_in g_out^T] with random signs g_out at"
    " the block's output and g_in = what arrives at the output of the block before; double",
    sees="noise (16 images)",
    loss="random signs at each block's output",
    higher="gradients keep their size (s = 1 is best and gives 0)",
    paper=PAPER,
)
def az_trainability(model: nn.Module, probe: Probe) -> float:
    """Random signs have the identity as covariance, so the mean of g_in g_out^T is the least-squares map of gradients.

    Neighbours with different numbers of tokens (between stages) are left out; the paper folds pixels into channels
    there. The published code adds 1e-6 to s.
    """
    require_blocks(model, 2)
    for parameter in model.parameters():
        parameter.requires_grad_()  # some path must be differentiable, whatever the model froze
    with watch(model, is_block) as seen:
        model(noise(probe))
    source = probe.generator("az gradients")
    norms = [norm for before, after in pairwise(seen) if (norm := gradient_norm(before, after, source)) is not None]
    if not norms:
        raise Inapplicable("no two neighbouring blocks have outputs with the same number of tokens")
    scores = torch.tensor([2 - norm - 1 / norm if norm else float("nan") for norm in norms], dtype=torch.float64)
    return scores.mean().item()


def noise(probe: Probe) -> Tensor:
    return probe.noise("az", min(BATCH, len(probe.images)))


@torch.no_grad()
def block_entropies(model: nn.Module, probe: Probe) -> list[float]:
    require_blocks(model)
    with watch(model, is_block) as seen:
        model(noise(probe))
    return [spectral_entropy(by_channel(call.output, call.module)) for call in seen]


def gradient_norm(before: Seen, after: Seen, source: torch.Generator) -> float | None:
    """The spectral norm of the map of gradients from one block's output to that of the block before."""
    signs = torch.randint(0, 2, after.output.shape, generator=source) * 2.0 - 1
    g_out = signs.to(after.output)
    (g_in,) = torch.autograd.grad(after.output, before.output, g_out, retain_graph=True, allow_unused=True)
    if g_in is None:
        return None
    g_in, g_out = by_channel(g_in, before.module).double(), by_channel(g_out, after.module).double()
    if len(g_in) != len(g_out):
        return None
    return torch.linalg.matrix_norm(g_in.T @ g_out / len(g_out), ord=2).item()


def by_channel(x: Tensor, block: nn.Module) -> Tensor:
    """Features as rows, one for each token or pixel: [batch * tokens, channels]."""
    if not isinstance(x, Tensor) or x.ndim not in (3, 4):
        raise Inapplicable("the outputs of the model's blocks are neither tokens nor maps")
    if x.ndim == 4 and not _channels_last(x, block):
        x = x.movedim(1, -1)
    return x.reshape(-1, x.shape[-1])


def _channels_last(x: Tensor, block: nn.Module) -> bool:
    """Maps come as [batch, channels, rows, columns] but for blocks, such as Swin's, that normalise the last axis."""
    widths = {m.normalized_shape[-1] for m in block.modules() if isinstance(m, nn.LayerNorm)}
    return x.shape[-1] in widths and x.shape[1] not in widths
