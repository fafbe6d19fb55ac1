"""Attention with relative positions for evaluation: one Triton kernel against the extra columns of our layer.

`RelativeAttention` gives a library's fused attention extra columns: the queries' products with the vectors of each
coordinate, and for keys and values the coordinates as zeros and ones. The kernel reads them from where they are, which
saves the copies of queries, keys and values with their columns; it has no backward pass. It is not part of nasformer:
on an H200 (2026-11-18) attention alone took 0.134 to 0.147 ms by the kernel and 0.120 ms by the library, to which the
copies come, but whole evaluations were no faster (41,700 against 42,200 img/s at 224 px).

    python benchmarks/relative_attention.py --compile --out relative_attention.json
    TRITON_INTERPRET=1 python benchmarks/relative_attention.py --device cpu --batch-size 2 --tokens 4
"""

from __future__ import annotations

import math
import time
from statistics import median

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from nasformer.layers.attention import RelativeAttention
from record import benchmark_parser, save_record

QUERIES, KEYS, STAGES = 64, 64, 3
"""Queries and keys of a block, and how many blocks of keys are loaded ahead."""


class FusedRelativeAttention(RelativeAttention):
    """`RelativeAttention` to rounding, where no gradients are asked for."""

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(x).unflatten(2, (3, self.num_heads, self.head_dim))
        suits = self.max_distance is not None and qkv.dtype in (torch.bfloat16, torch.float16)
        if not suits or torch.is_grad_enabled() or self.head_dim not in (16, 32, 64, 128):
            return super().forward(x)
        key_vectors, value_vectors = (vectors(self.index).to(qkv.dtype) for vectors in (self.rel_pos_k, self.rel_pos_v))
        # The vectors differ from token to token, so these products have tokens as their batch.
        terms = qkv[:, :, 0].transpose(0, 1).flatten(1, 2) @ key_vectors.transpose(1, 2)
        values, mass = attend(qkv, terms, self.coordinates.to(qkv.dtype))
        values = values + (mass @ value_vectors).unflatten(1, (len(x), self.num_heads)).transpose(0, 1)
        return self.proj(values.flatten(2))


@torch.library.custom_op("nasformer::relative_attention", mutates_args=())
def attend(qkv: Tensor, terms: Tensor, coordinates: Tensor) -> tuple[Tensor, Tensor]:
    """Attention of [batch, tokens, q k v, heads, head_dim], and its mass on each coordinate.

    Args:
        terms: What the logits of a query have in addition at each coordinate: [tokens, batch * heads, coordinates].
        coordinates: Those of each key, as zeros and ones: [tokens, coordinates].

    Returns:
        Values [batch, tokens, heads, head_dim] and mass [tokens, batch * heads, coordinates].
    """
    batch, tokens, _, heads, head_dim = qkv.shape
    values, mass = outputs_of(qkv, terms, coordinates)
    count, grid = terms.shape[2], (-(-tokens // QUERIES), batch * heads)
    scale = head_dim**-0.5 / math.log(2)  # the kernel's exponentials have base 2
    sizes = (tokens, heads, count, scale, head_dim, max(16, 1 << (count - 1).bit_length()))
    _attend[grid](
        qkv.contiguous(), terms.contiguous(), coordinates, values, mass, *sizes, QUERIES, KEYS, num_stages=STAGES
    )
    return values, mass


@attend.register_fake
def outputs_of(qkv: Tensor, terms: Tensor, coordinates: Tensor) -> tuple[Tensor, Tensor]:
    batch, tokens, _, heads, head_dim = qkv.shape
    return qkv.new_empty(batch, tokens, heads, head_dim), terms.new_empty(terms.shape)


@triton.jit
def _attend(  # type: ignore[no-untyped-def]
    qkv_ptr,
    terms_ptr,
    coordinates_ptr,
    values_ptr,
    mass_ptr,
    tokens,
    heads,
    count,
    scale,
    HEAD_DIM: tl.constexpr,
    COUNT: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
):
    """A block of queries of one head of one image; all tensors are contiguous."""
    item, dims, places = tl.program_id(1), tl.arange(0, HEAD_DIM), tl.arange(0, COUNT)
    image, head = item // heads, item % heads
    width = heads * HEAD_DIM
    start = qkv_ptr + image.to(tl.int64) * tokens * 3 * width + head * HEAD_DIM
    rows = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    inside, known = rows[:, None] < tokens, places[None, :] < count
    row = (rows[:, None].to(tl.int64) * tl.num_programs(1) + item) * count + places[None, :]
    q = tl.load(start + rows[:, None] * 3 * width + dims[None, :], mask=inside, other=0.0)
    terms = tl.load(terms_ptr + row, mask=inside & known, other=0.0)
    largest, total = tl.full((QUERIES,), float("-inf"), tl.float32), tl.zeros((QUERIES,), tl.float32)
    values, mass = tl.zeros((QUERIES, HEAD_DIM), tl.float32), tl.zeros((QUERIES, COUNT), tl.float32)
    for first in range(0, tokens, KEYS):
        keys = first + tl.arange(0, KEYS)
        here = keys[:, None] < tokens
        place = start + keys[:, None] * 3 * width + dims[None, :]
        k = tl.load(place + width, mask=here, other=0.0)
        v = tl.load(place + 2 * width, mask=here, other=0.0)
        c = tl.load(coordinates_ptr + keys[:, None] * count + places[None, :], mask=here & known, other=0.0)
        logits = (tl.dot(q, tl.trans(k)) + tl.dot(terms, tl.trans(c))) * scale
        logits = tl.where(keys[None, :] < tokens, logits, float("-inf"))
        peak = tl.maximum(largest, tl.max(logits, 1))
        weights, shrink = tl.exp2(logits - peak[:, None]), tl.exp2(largest - peak)
        total = total * shrink + tl.sum(weights, 1)
        weights = weights.to(v.dtype)
        values = tl.dot(weights, v, values * shrink[:, None])
        mass = tl.dot(weights, c, mass * shrink[:, None])
        largest = peak
    out = values_ptr + image.to(tl.int64) * tokens * width + rows[:, None] * width + head * HEAD_DIM + dims[None, :]
    tl.store(out, (values / total[:, None]).to(values_ptr.dtype.element_ty), mask=inside)
    tl.store(mass_ptr + row, (mass / total[:, None]).to(mass_ptr.dtype.element_ty), mask=inside & known)


def milliseconds(layer: nn.Module, x: Tensor, compiled: bool) -> float:
    """Median of 20 forward passes, each waited for."""
    run, times = torch.compile(layer, dynamic=False) if compiled else layer, list[float]()
    for _ in range(23):
        start = time.perf_counter()
        run(x)
        if x.is_cuda:
            torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - start))
    return median(times[3:])


@torch.no_grad()
def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=14, help="rows and columns of patches")
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    results, grid = {}, (args.tokens, args.tokens)
    dtype = torch.float16 if args.device == "cpu" else torch.bfloat16  # which Triton's interpreter does not know
    for heads in (3, 4):
        layer = RelativeAttention(192, heads, 64, grid).to(args.device, dtype).eval()
        x = torch.randn(args.batch_size, args.tokens**2 + 1, 192, device=args.device, dtype=dtype)
        columns, expected = milliseconds(layer, x, args.compile), layer(x).float()
        layer.__class__ = FusedRelativeAttention
        difference = (layer(x).float() - expected).abs().max() / expected.abs().max()
        facts = {"columns": columns, "kernel": milliseconds(layer, x, args.compile), "difference": float(difference)}
        results[f"{heads} heads"] = {**facts, "times_faster": columns / facts["kernel"]}
        print(f"{heads} heads", "  ".join(f"{key} {value:.4g}" for key, value in results[f"{heads} heads"].items()))
    save_record("relative_attention", vars(args), results, args.out, quiet=True)


if __name__ == "__main__":
    main()
