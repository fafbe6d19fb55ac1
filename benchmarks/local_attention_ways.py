"""Ways to local attention other than that of nasformer.layers.resnet, to measure it against."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention


def unfolded(q: Tensor, k: Tensor, v: Tensor, positions: Tensor, window: int) -> Tensor:
    """The naive way: window² copies of all keys and values."""
    logits = torch.einsum("bhdyx,bhdpyx->bhpyx", q, _unfold(k, window)) + _terms(q, positions)
    weights = logits.masked_fill(_outside(q, window), -torch.inf).softmax(2)
    return torch.einsum("bhpyx,bhdpyx->bhdyx", weights.to(v.dtype), _unfold(v, window))


def _unfold(x: Tensor, window: int) -> Tensor:
    columns = F.unfold(x.flatten(1, 2), window, padding=window // 2)
    return columns.unflatten(1, (x.shape[1], x.shape[2], -1)).unflatten(-1, x.shape[-2:])


def _outside(q: Tensor, window: int) -> Tensor:
    ones = q.new_ones(1, 1, 1, *q.shape[-2:])
    return _unfold(ones, window)[0, 0, 0] == 0


def _terms(q: Tensor, positions: Tensor) -> Tensor:
    return torch.einsum("bhdyx,hdp->bhpyx", q, positions.flatten(2).to(q.dtype))


class _Shifted(torch.autograd.Function):
    """One place of the window after the other, on shifted views of padded keys and values."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, positions: Tensor, window: int) -> Tensor:
        weights, out = _terms(q, positions).contiguous(), torch.zeros_like(v)
        for place, keys in enumerate(_shifts(_padded(k, window), window)):
            weights[:, :, place] += (q * keys).sum(2)
        weights = weights.masked_fill_(_outside(q, window), -torch.inf).softmax(2)
        for place, values in enumerate(_shifts(_padded(v, window), window)):
            out.addcmul_(weights[:, :, place, None], values)
        ctx.save_for_backward(q, k, v, positions, weights, out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        q, k, v, positions, weights, out = ctx.saved_tensors
        window, mean = positions.shape[-1], (grad * out).sum(2)
        keys, values = _padded(k, window), _padded(v, window)
        d_keys, d_values = torch.zeros_like(keys), torch.zeros_like(values)
        d_q, d_logits = torch.zeros_like(q), torch.empty_like(weights)
        for place, (value, d_value) in enumerate(zip(_shifts(values, window), _shifts(d_values, window), strict=True)):
            weight = weights[:, :, place]
            d_logits[:, :, place] = ((grad * value).sum(2) - mean) * weight
            d_value.addcmul_(weight[:, :, None], grad)
        for place, (key, d_key) in enumerate(zip(_shifts(keys, window), _shifts(d_keys, window), strict=True)):
            d_logit = d_logits[:, :, place, None]
            d_q.addcmul_(d_logit, key)
            d_key.addcmul_(d_logit, q)
        d_q += torch.einsum("bhpyx,hdp->bhdyx", d_logits, positions.flatten(2).to(q.dtype))
        d_positions = torch.einsum("bhpyx,bhdyx->hdp", d_logits, q).view_as(positions).to(positions.dtype)
        rim = (-(window // 2),) * 4
        return d_q, F.pad(d_keys, rim), F.pad(d_values, rim), d_positions, None


def shifted(q: Tensor, k: Tensor, v: Tensor, positions: Tensor, window: int) -> Tensor:
    return _Shifted.apply(q, k, v, positions, window)


def _padded(x: Tensor, window: int) -> Tensor:
    return F.pad(x, (window // 2,) * 4)


def _shifts(padded: Tensor, window: int) -> list[Tensor]:
    height, width = (side - window + 1 for side in padded.shape[-2:])
    return [padded[..., i : i + height, j : j + width] for i in range(window) for j in range(window)]


class _Fused(torch.autograd.Function):
    """Plain sums over overlapping views. Only for a compiler, which makes one loop of each and no copy."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, positions: Tensor, window: int) -> Tensor:
        logits = (q[..., None, None] * _windows(k, window)).sum(2)
        logits = logits + torch.einsum("bhdyx,hdij->bhyxij", q, positions.to(q.dtype))
        outside = _outside(q, window).permute(1, 2, 0).unflatten(-1, (window, window))
        logits = logits.masked_fill(outside, -torch.inf)
        weights = logits.flatten(-2).softmax(-1).view_as(logits).to(v.dtype)
        out = (weights[:, :, None] * _windows(v, window)).sum((-2, -1))
        ctx.save_for_backward(q, k, v, positions, weights, out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        q, k, v, positions, weights, out = ctx.saved_tensors
        window, mean = positions.shape[-1], (grad * out).sum(2)[..., None, None]
        d_logits = weights * ((grad[..., None, None] * _windows(v, window)).sum(2) - mean)
        d_q = (d_logits[:, :, None] * _windows(k, window)).sum((-2, -1))
        d_q = d_q + torch.einsum("bhyxij,hdij->bhdyx", d_logits, positions.to(q.dtype))
        d_k = (_lookers(d_logits)[:, :, None] * _windows(q, window)).sum((-2, -1))
        d_v = (_lookers(weights)[:, :, None] * _windows(grad, window)).sum((-2, -1))
        d_positions = torch.einsum("bhyxij,bhdyx->hdij", d_logits, q).to(positions.dtype)
        return d_q, d_k, d_v, d_positions, None


def fused(q: Tensor, k: Tensor, v: Tensor, positions: Tensor, window: int) -> Tensor:
    return _Fused.apply(q, k, v, positions, window)


def _windows(x: Tensor, window: int) -> Tensor:
    """[.., height, width] to the view [.., height, width, window, window]."""
    return _padded(x, window).unfold(-2, window, 1).unfold(-2, window, 1)


def _lookers(x: Tensor) -> Tensor:
    """From what a position gives to each place of its window, to what it is given from there."""
    window = x.shape[-1]
    x = F.pad(x.flip(-2, -1), (0, 0, 0, 0, *(window // 2,) * 4))
    x = x.unfold(2, window, 1).unfold(3, window, 1)  # [batch, heads, y, x, i, j, window, window]
    return x.diagonal(dim1=4, dim2=6).diagonal(dim1=4, dim2=5)


_compiled_flex_attention = torch.compile(flex_attention, dynamic=False)


def flex(q: Tensor, k: Tensor, v: Tensor, positions: Tensor, window: int) -> Tensor:
    """FlexAttention, itself compiled. Blocks are 128 positions, so positions are put in the order of 8 x 16 tiles."""
    height, width = q.shape[-2:]
    order, rows, columns, mask = _flex_mask(height, width, window, q.device)
    terms = _terms(q, positions).flatten(3)[..., order].transpose(2, 3).contiguous()

    def with_position(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        row, column = (side[j] - side[i] + window // 2 for side in (rows, columns))
        place = (row * window + column).clamp(0, window**2 - 1)
        return score + terms[b, h, i, place]

    def tokens(x: Tensor) -> Tensor:  # with a head dimension of 16 at least, as it asks for on a GPU
        return F.pad(x.flatten(3)[..., order].transpose(2, 3), (0, max(0, 16 - x.shape[2])))

    y = _compiled_flex_attention(tokens(q), tokens(k), tokens(v), with_position, mask, scale=1.0)
    return y[..., : v.shape[2]].transpose(2, 3)[..., order.argsort()].unflatten(-1, (height, width))


@lru_cache
def _flex_mask(height: int, width: int, window: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor, BlockMask]:
    places = torch.arange(height * width, device=device)
    rows, columns = places // width, places % width
    order = ((rows // 8 * width + columns // 16) * height * width + places).argsort()
    rows, columns = rows[order], columns[order]

    def near(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        rim = window // 2
        return ((rows[i] - rows[j]).abs() <= rim) & ((columns[i] - columns[j]).abs() <= rim)

    return order, rows, columns, create_block_mask(near, None, None, height * width, height * width, device=device)
