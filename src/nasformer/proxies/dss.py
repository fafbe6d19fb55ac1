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

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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
        scores[call.members] += norm * _weight_norm(nets, call)
    for call, delta in pairs:
        if is_mlp(call.name, call.module):
            scores[call.members] += saliency(_weight_gradients(call, delta), call.weight)
    return scores


def _weight_norm(nets: SideBySide, call: SharedCall) -> float:
    """The nuclear norm of a weight, computed once: in a search each comes up thousands of times."""
    key = (call.segment, call.name)
    if key not in nets.norms:
        nets.norms[key] = weight_norm(call.weight)
    return nets.norms[key]


def _weight_gradients(call: SharedCall, arriving: Tensor) -> Tensor:
    """Each arch's own gradient of the weight: [members, out, in]."""
    return arriving.flatten(1, -2).mT @ call.input.flatten(1, -2)


def is_projection(name: str, module: nn.Module) -> bool:
    """Whether a layer is an output projection, the only part of attention that the published code measures."""
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


# Nuclear norms (sums of singular values) of many matrices.
#
# On a CPU they come from the eigenvalues of the smaller Gram matrix, in double precision, of which squaring leaves
# eight digits. Eigenproblems are slow on a GPU, matrix products are not: there M is turned step by step into its polar
# factor U (M = UH, with the same singular vectors and all singular values 1), and the norm is the inner product of the
# two.
#
# Gradients of a network for a single image have few directions that matter. So on a GPU large matrices are first
# projected onto a few random directions of their range (Halko, Martinsson & Tropp 2011). What the projection leaves
# out is known exactly, by its Frobenius norm, and bounds the error; where the bound is too large, the matrix is taken
# whole.

DIRECTIONS = 32
TOLERANCE = 1e-5
POLAR_STEPS = 32
SIDE_MULTIPLE = 64  # sides are padded with zeros to it, which changes no norm, so that more matrices go together
MAX_ELEMENTS = 2**27  # numbers taken together, 1 GiB of them


def nuclear_norms(stacks: Iterable[Tensor]) -> list[Tensor]:
    """The norms of stacks of matrices, each [n, rows, columns], as double tensors [n]; exact to `TOLERANCE`.

    >>> [norms.tolist() for norms in nuclear_norms([torch.tensor([[[3.0, 4.0]], [[0.0, 0.0]]])])]
    [[5.0, 0.0]]
    """
    upright = [stack if stack.shape[-2] >= stack.shape[-1] else stack.mT for stack in stacks]
    if upright and upright[0].is_cuda:
        return grouped_norms(upright)
    return [spectral_norms(stack.double()) for stack in upright]


def grouped_norms(upright: Sequence[Tensor]) -> list[Tensor]:
    """The norms on a GPU: stacks of about the same shape at once."""
    norms: dict[int, Tensor] = {}
    for indices in groups_of_shape(upright):
        stack = pad_and_join([upright[index] for index in indices]).double()
        sizes = [len(upright[index]) for index in indices]
        norms |= zip(indices, gradient_norms(stack).split(sizes), strict=True)
    return [norms[index] for index in range(len(upright))]


def groups_of_shape(stacks: Sequence[Tensor]) -> Iterator[list[int]]:
    """Indices of stacks of about the same shape, as many as memory allows."""
    by_shape: dict[tuple[int, int], list[int]] = defaultdict(list)
    for index, stack in enumerate(stacks):
        by_shape[padded_side(stack.shape[-2]), padded_side(stack.shape[-1])].append(index)
    for (rows, columns), indices in by_shape.items():
        group, elements = list[int](), 0
        for index in indices:
            more = len(stacks[index]) * rows * columns
            if group and elements + more > MAX_ELEMENTS:
                yield group
                group, elements = [], 0
            group.append(index)
            elements += more
        yield group


def padded_side(side: int) -> int:
    return -(-side // SIDE_MULTIPLE) * SIDE_MULTIPLE


def pad_and_join(stacks: Sequence[Tensor]) -> Tensor:
    rows, columns = (max(stack.shape[side] for stack in stacks) for side in (-2, -1))
    return torch.cat([F.pad(stack, (0, columns - stack.shape[-1], 0, rows - stack.shape[-2])) for stack in stacks])


def gradient_norms(stack: Tensor) -> Tensor:
    """The norms of gradients: through a projection where that pays and suffices, otherwise whole."""
    if stack.shape[-1] <= 2 * DIRECTIONS:
        return polar_norms(stack)
    norms, errors = projected_norms(stack)
    poor = ~(errors <= TOLERANCE * norms)  # so written, NaN is poor
    if poor.any():
        norms[poor] = polar_norms(stack[poor])
    return norms


def weight_norm(matrix: Tensor) -> float:
    """The norm of a single weight matrix, none of whose directions can be left out."""
    stack = (matrix if matrix.shape[0] >= matrix.shape[1] else matrix.mT).double()[None]
    return (polar_norms(stack) if matrix.is_cuda else spectral_norms(stack)).item()


def spectral_norms(stack: Tensor) -> Tensor:
    """The norms by the eigenvalues of M^T M; NaN for a matrix that is not finite."""
    grams = stack.mT @ stack
    finite = grams.isfinite().all(-1).all(-1)  # an eigensolver would give up on the whole stack otherwise
    values = torch.linalg.eigvalsh(grams.where(finite[..., None, None], 0.0))
    return values.clamp(min=0).sqrt().sum(-1).where(finite, torch.nan)


def polar_norms(stack: Tensor) -> Tensor:
    """The norms as inner products with the polar factors."""
    return (polar_factors(stack) * stack).sum((-2, -1))


def polar_factors(stack: Tensor) -> Tensor:
    """The polar factors by a Newton-Schulz iteration of fifth order.

    Each step takes a singular value s of the iterate to s (15 - 10 s^2 + 3 s^4) / 8, nearer to 1: small ones grow
    almost twofold. After all steps only values below a hundred-millionth of the largest have not reached 1.
    """
    size = torch.linalg.matrix_norm(stack, keepdim=True)
    polar = stack / size.clamp(min=torch.finfo(stack.dtype).tiny)
    identity = torch.eye(stack.shape[-1], dtype=stack.dtype, device=stack.device)
    for _ in range(POLAR_STEPS):
        gram = polar.mT @ polar
        polar = polar @ (1.875 * identity - 1.25 * gram + 0.375 * gram @ gram)
    return polar


def projected_norms(stack: Tensor) -> tuple[Tensor, Tensor]:
    """The norms of the matrices projected onto random directions, and a bound on what that leaves out.

    Of a rest R with rank r the nuclear norm is at most sqrt(r) times the Frobenius norm.
    """
    draw = torch.randn(stack.shape[-1], DIRECTIONS, dtype=stack.dtype, generator=torch.Generator().manual_seed(0))
    basis = polar_factors(stack @ draw.to(stack.device))
    projected = basis.mT @ stack
    rest = torch.linalg.matrix_norm(stack - basis @ projected)
    return polar_norms(projected.mT), rest * (stack.shape[-1] - DIRECTIONS) ** 0.5
