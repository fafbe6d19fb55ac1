"""Time and memory of local attention, forward and with backward, with several sizes of tiles, against naive unfolding.

python benchmarks/local_attention.py --device cuda --out local_attention.json

The maps are those of a ResNet's four stages at 224 px (56 .. 7, 64 .. 512 channels) and of the same at 32 px.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.profiler import ProfilerActivity, profile

from nasformer.layers.resnet import local_attention
from record import benchmark_parser, save_record

Way = Callable[..., Tensor]
Inputs = tuple[Tensor, Tensor, Tensor, Tensor]
CHANNELS = {56: 64, 28: 128, 14: 256, 7: 512, 32: 64, 16: 128, 8: 256, 4: 512}
SMALL = (32, 16, 8, 4)


def ways(size: int, device: str, compiled: bool) -> dict[str, Way]:
    """Naive unfolding, ours with several sizes of tiles, and FlexAttention; few where all are compiled."""
    chosen: dict[str, Way] = {"unfolded": unfolded, "local_attention": local_attention}
    if compiled:
        tile = 8 if size > 16 else 4
        tiled: dict[str, Way] = {f"tiles of {tile}": partial(local_attention, tile=tile)}
        return chosen | tiled | ({"flex": flex} if device == "cuda" else {})
    tiles = {f"tiles of {tile}": partial(local_attention, tile=tile) for tile in (4, 6, 8) if tile < size}
    whole = {"whole map": partial(local_attention, tile=size)} if size <= 32 else {}
    return chosen | tiles | whole


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


def inputs(batch: int, heads: int, size: int, window: int, device: str) -> Inputs:
    torch.manual_seed(0)
    dim = CHANNELS[size] // heads

    def random(*shape: int) -> Tensor:
        return (0.5 * torch.randn(shape, device=device)).requires_grad_()

    q, k, v = (random(batch, heads, dim, size, size) for _ in range(3))
    return q, k, v, random(heads, dim, window, window)


def precision(name: str, device: str) -> AbstractContextManager[object]:
    return torch.autocast(device, torch.bfloat16) if name == "bf16" else nullcontext()


def milliseconds(work: Callable[[], object], device: str, seconds: float) -> float:
    """The median time of repeated calls, as many as fit into the seconds but 3 at least and 30 at most."""
    times: list[float] = []
    while len(times) < 3 or (sum(times) < seconds and len(times) < 30):
        synchronize(device)
        start = time.perf_counter()
        work()
        synchronize(device)
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times)


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def peak_mebibytes(work: Callable[[], object], device: str) -> float:
    """The most that is allocated at once, on top of what is there before the work."""
    if device != "cuda":
        return peak_of_cpu(work) / 2**20
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def peak_of_cpu(work: Callable[[], object]) -> int:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    steps = sorted((event["ts"], event["args"]["Bytes"]) for event in events if event["name"] == "[memory]")
    now = peak = 0
    for _, step in steps:
        now += step
        peak = max(peak, now)
    return peak


def measure(way: Way, tensors: Inputs, args: argparse.Namespace, dtype: str, compiled: bool) -> dict[str, float]:
    def forward() -> Tensor:
        with precision(dtype, args.device):
            return way(*tensors, args.window)

    def both() -> None:
        y = forward()
        torch.autograd.grad(y, tensors, torch.ones_like(y))

    result = {"first_seconds": milliseconds_once(both, args.device) / 1000}
    if not compiled:  # for it would be compiled once more without gradients
        with torch.no_grad():
            result["forward_ms"] = milliseconds(forward, args.device, args.seconds)
            result["forward_mib"] = peak_mebibytes(forward, args.device)
    result["both_ms"] = milliseconds(both, args.device, args.seconds)
    result["both_mib"] = peak_mebibytes(both, args.device)
    return result


def milliseconds_once(work: Callable[[], object], device: str) -> float:
    start = time.perf_counter()
    work()
    synchronize(device)
    return 1000 * (time.perf_counter() - start)


def compare(size: int, dtype: str, compiled: bool, args: argparse.Namespace) -> dict[str, Any]:
    batch = args.small_batch if size in SMALL else args.batch
    tensors = inputs(batch, args.heads, size, args.window, args.device)
    with torch.no_grad(), precision(dtype, args.device):
        expected = unfolded(*tensors, args.window)
    results: dict[str, Any] = {}
    for name, way in ways(size, args.device, compiled).items():
        if args.ways and name not in (*args.ways, "unfolded"):
            continue
        try:
            results[name] = attempt(way, tensors, expected, compiled and name not in ("unfolded", "flex"), args, dtype)
            ratios(results[name], results["unfolded"])
        except Exception as error:  # one way that fails must not lose the others
            results[name] = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:300]}
        show(label(size, dtype, compiled), name, results[name])
    return {"batch": batch, "channels": CHANNELS[size], "ways": results}


def attempt(
    way: Way, tensors: Inputs, expected: Tensor, compiled: bool, args: argparse.Namespace, dtype: str
) -> dict[str, float]:
    if compiled:
        torch.compiler.reset()
        way = torch.compile(way, dynamic=False)
    result = measure(way, tensors, args, dtype, compiled)
    with precision(dtype, args.device):
        difference = way(*tensors, args.window).detach().float() - expected.float()
    return result | {"relative_error": float(difference.norm() / expected.float().norm())}


def parts(result: dict[str, Any]) -> list[str]:
    return [part for part in ("forward", "both") if f"{part}_ms" in result]


def ratios(result: dict[str, float], naive: dict[str, float]) -> None:
    for part in parts(result):
        result[f"{part}_times_faster"] = naive[f"{part}_ms"] / result[f"{part}_ms"]
        result[f"{part}_times_leaner"] = naive[f"{part}_mib"] / result[f"{part}_mib"]


def label(size: int, dtype: str, compiled: bool) -> str:
    return f"{size}x{size} {dtype} {'compiled' if compiled else 'eager'}"


def show(setting: str, name: str, result: dict[str, Any]) -> None:
    line = f"{setting:22} {name:16}"
    if "error" in result:
        print(line, result["error"], flush=True)
        return
    for part in parts(result):
        time_, memory, faster, leaner = (
            result[f"{part}_{key}"] for key in ("ms", "mib", "times_faster", "times_leaner")
        )
        line += f" {part} {time_:8.2f} ms {memory:7.0f} MiB ({faster:5.2f} x faster, {leaner:5.2f} x leaner)"
    print(line, f"error {result['relative_error']:.0e}", flush=True)


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sizes", type=int, nargs="*", default=list(CHANNELS), choices=list(CHANNELS))
    parser.add_argument("--compiled-sizes", type=int, nargs="*", help="default: 56 and 16 on a GPU, none on a CPU")
    parser.add_argument("--batch", type=int, help="default: 64 on a GPU, 8 on a CPU")
    parser.add_argument("--small-batch", type=int, help="for maps of 32 px images; default: 512 on a GPU, 8 on a CPU")
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--window", type=int, default=7)
    parser.add_argument("--dtypes", nargs="+", help="of fp32 and bf16; default: both on a GPU, fp32 on a CPU")
    parser.add_argument("--ways", nargs="*", help="only these and unfolded")
    parser.add_argument("--seconds", type=float, default=0.05, help="spend about so long on each time")
    parser.add_argument("--limit", type=float, default=80, help="begin nothing after so many seconds")
    args = parser.parse_args()
    on_gpu = args.device == "cuda"
    args.batch = args.batch or (64 if on_gpu else 8)
    args.small_batch = args.small_batch or (512 if on_gpu else 8)
    args.dtypes = args.dtypes or (["fp32", "bf16"] if on_gpu else ["fp32"])
    if args.compiled_sizes is None:
        args.compiled_sizes = [56, 16] if on_gpu else []

    settings = [(size, dtype, False) for size in args.sizes for dtype in args.dtypes]
    settings += [(size, args.dtypes[-1], True) for size in args.compiled_sizes]
    results: dict[str, Any] = {}
    start = time.perf_counter()
    for size, dtype, compiled in settings:
        if time.perf_counter() - start < args.limit:
            results[label(size, dtype, compiled)] = compare(size, dtype, compiled, args)
        else:
            print(label(size, dtype, compiled), "left out: no time left")
    save_record("local_attention", vars(args), results, args.out)


if __name__ == "__main__":
    main()
