"""Would a Triton kernel for MLPs pay, which computes GELU in the matrix product that its argument comes from?

By itself GELU reads and writes the widest activations of a transformer, forward and backward. Here the first product
writes what GELU gives, and in the backward pass the product with the second layer's weights is multiplied by GELU's
derivative before it is written, and summed up for the bias:

    hidden = GELU(x @ weight1.T + bias1)                            forward
    gradient = (gradient of y @ weight2) * GELU'(...), its sums     backward

Times forward and backward of one MLP of AutoFormer-T, beside torch's own, compiled. An experiment: the library has
torch's. Results are compared with double precision first, on a CPU by Triton's interpreter (which is wrong in bf16).

    python benchmarks/fused_mlp.py --out fused_mlp.json
    TRITON_INTERPRET=1 python benchmarks/fused_mlp.py --check        # without a GPU
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

from record import benchmark_parser, save_record

ROWS, COLUMNS, INNER = 128, 128, 64  # of a tile that a program computes, and of its step along the sum
OPTIONS = {"num_warps": 8, "num_stages": 3}


@triton.jit
def gelu(x):  # type: ignore[no-untyped-def]
    return 0.5 * x * (1 + tl.erf(x * 0.7071067811865476))


@triton.jit
def gelu_derivative(x):  # type: ignore[no-untyped-def]
    density = tl.exp(-0.5 * x * x) * 0.3989422804014327
    return 0.5 * (1 + tl.erf(x * 0.7071067811865476)) + x * density


@triton.jit
def product_kernel(  # type: ignore[no-untyped-def]
    a,
    b,
    bias,
    argument,
    result,
    sums,
    rows,
    columns,
    inner: tl.constexpr,
    stride_inner,
    stride_column,
    BACKWARD: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
):
    """A tile of GELU(a @ b + bias), or of a @ b * GELU'(argument) and the sums of its columns.

    Args:
        argument: Of GELU: written in the forward pass, read in the backward pass.
        sums: Of the rows of each tile, so that their total does not depend on which tile is ready first.
    """
    tiles = tl.cdiv(columns, COLUMNS)
    tile, row_tile = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    row = row_tile * ROWS + tl.arange(0, ROWS)
    column = tile * COLUMNS + tl.arange(0, COLUMNS)
    k = tl.arange(0, INNER)
    in_rows, in_columns = row[:, None] < rows, column[None, :] < columns
    a_tile = a + row[:, None].to(tl.int64) * inner + k[None, :]
    b_tile = b + k[:, None] * stride_inner + column[None, :] * stride_column
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, inner, INNER):
        left = tl.load(a_tile + start, mask=in_rows & (start + k[None, :] < inner), other=0.0)
        right = tl.load(b_tile + start * stride_inner, mask=in_columns & (start + k[:, None] < inner), other=0.0)
        total = tl.dot(left, right, total)
    offsets, inside = row[:, None].to(tl.int64) * columns + column[None, :], in_rows & in_columns
    if BACKWARD:
        x = tl.load(argument + offsets, mask=inside, other=0.0).to(tl.float32)
        rounded = (total * gelu_derivative(x)).to(result.dtype.element_ty)
        tl.store(sums + row_tile * columns + column, tl.sum(rounded.to(tl.float32), 0), mask=column < columns)
    else:
        x = total + tl.load(bias + column, mask=column < columns, other=0.0).to(tl.float32)[None, :]
        x = x.to(result.dtype.element_ty)  # as a product by itself would be rounded
        tl.store(argument + offsets, x, mask=inside)
        rounded = gelu(x.to(tl.float32)).to(result.dtype.element_ty)
    tl.store(result + offsets, rounded, mask=inside)


def launch(a: Tensor, b: Tensor, bias: Tensor, argument: Tensor, result: Tensor, sums: Tensor, backward: bool) -> None:
    """Computes all tiles, for a [rows, inner] and b [inner, columns]."""
    rows, columns = result.shape
    grid = (triton.cdiv(rows, ROWS) * triton.cdiv(columns, COLUMNS),)
    flags = {"BACKWARD": backward, "ROWS": ROWS, "COLUMNS": COLUMNS, "INNER": INNER}
    wrap_triton(product_kernel)[grid](
        a, b, bias, argument, result, sums, rows, columns, a.shape[1], *b.stride(), **flags, **OPTIONS
    )


@triton_op("nasformer::linear_gelu", mutates_args={})
def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """GELU of a linear layer of x [rows, inputs], and GELU's argument."""
    hidden = x.new_empty(len(x), len(weight))
    argument = torch.empty_like(hidden)
    launch(x, weight.T, bias, argument, hidden, x.new_empty(0, dtype=torch.float32), False)
    return hidden, argument


@triton_op("nasformer::gelu_backward", mutates_args={})
def gelu_backward(gradient: Tensor, weight: Tensor, argument: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of GELU's argument by that of what a linear layer made of GELU, and its sum over the rows."""
    result = torch.empty_like(argument)
    sums = gradient.new_empty(triton.cdiv(len(gradient), ROWS), argument.shape[1], dtype=torch.float32)
    launch(gradient, weight, gradient, argument, result, sums, True)
    return result, sums.sum(0)


class FusedMlp(torch.autograd.Function):
    """Linear layer, GELU, linear layer of [rows, inputs]; all tensors have the same 16-bit type."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, bias2: Tensor) -> Tensor:
        hidden, argument = linear_gelu(x, weight1, bias1)
        ctx.save_for_backward(x, weight1, weight2, hidden, argument)
        return torch.addmm(bias2, hidden, weight2.T)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        x, weight1, weight2, hidden, argument = ctx.saved_tensors
        gradient = gradient.contiguous()
        of_argument, of_bias1 = gelu_backward(gradient, weight2, argument)
        of_weight1, of_weight2 = of_argument.T @ x, gradient.T @ hidden
        return of_argument @ weight1, of_weight1, of_bias1.to(x.dtype), of_weight2, gradient.sum(0)


def plain_mlp(x: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, bias2: Tensor) -> Tensor:
    return F.linear(F.gelu(F.linear(x, weight1, bias1)), weight2, bias2)


def make_tensors(rows: int, width: int, hidden: int, dtype: torch.dtype, device: str) -> list[Tensor]:
    shapes = {(rows, width): 1.0, (hidden, width): 0.1, (hidden,): 0.1, (width, hidden): 0.1, (width,): 0.1}
    tensors = [(torch.randn(shape, device=device) * scale).to(dtype) for shape, scale in shapes.items()]
    return [tensor.requires_grad_() for tensor in tensors]


def check(dtype: torch.dtype, device: str, bound: float) -> None:
    """Compares outputs and gradients with those in double precision, for sizes that are no multiple of a tile."""
    tensors = make_tensors(300, 216, 168, dtype, device)
    exact = [tensor.detach().double().requires_grad_() for tensor in tensors]
    ours, theirs = FusedMlp.apply(*tensors), plain_mlp(*exact)
    gradient = torch.randn_like(ours)
    pairs = [(ours, theirs)]
    pairs += zip(
        torch.autograd.grad(ours, tensors, gradient),
        torch.autograd.grad(theirs, exact, gradient.double()),
        strict=True,
    )
    errors = [float((a.detach().double() - b.detach()).norm() / b.detach().norm()) for a, b in pairs]
    print(f"{dtype}: largest relative error {max(errors):.1e}")
    if not max(errors) < bound:
        raise SystemExit(f"errors of {errors} are beyond {bound}")


def milliseconds(mlp: Callable[..., Tensor], tensors: list[Tensor]) -> float:
    """Forward and backward: the median."""
    gradient = torch.randn_like(mlp(*tensors))
    step = lambda: torch.autograd.grad(mlp(*tensors), tensors, gradient)  # noqa: E731
    times: Any = triton.testing.do_bench(step, warmup=50, rep=200, return_mode="all")
    return statistics.median(times)


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--tokens", type=int, default=512 * 197)
    parser.add_argument("--check", action="store_true", help="compare with double precision only")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not args.check:
        raise SystemExit("speed is measured on a GPU; without one: TRITON_INTERPRET=1 and --check")
    check(torch.float16, device, 2e-3)
    if not args.check:
        check(torch.bfloat16, device, 1e-2)
        measure(args, device)


def measure(args: argparse.Namespace, device: str) -> None:
    results = dict[str, dict[str, float]]()
    for width in (192, 216, 240):
        tensors = make_tensors(args.tokens, width, 4 * width, torch.bfloat16, device)
        compiled = torch.compile(plain_mlp, dynamic=False)
        figures = {"plain": milliseconds(compiled, tensors), "fused": milliseconds(FusedMlp.apply, tensors)}
        results[f"width {width}"] = {**figures, "times as fast": figures["plain"] / figures["fused"]}
        print(f"width {width}", figures, flush=True)
    save_record("fused_mlp", vars(args), results, args.out, quiet=True)


if __name__ == "__main__":
    main()
