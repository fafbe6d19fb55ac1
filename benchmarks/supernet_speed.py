"""Speed of a supernet: training and inherited evaluation with a random arch each step.

Measured in the same run, as these machines are noisy: the extracted static model of the same archs, and timm's ViT of
about the same size (no relative positions) as the floor.

    python benchmarks/supernet_speed.py --device cuda --img-size 224 --batch-size 512 --compile --out speed.json
    python benchmarks/supernet_speed.py --device cpu --img-size 224 --batch-size 8 --steps 6
    python benchmarks/supernet_speed.py --space s3-tiny --compile --archs 2 --turns 2 --batch-size 256
    python benchmarks/supernet_speed.py --space trionet-small --img-size 32 --compile --archs 2 --turns 2

Every arch runs before anything is timed, so that nothing compiles or is recorded meanwhile (on a GPU the supernet's
segments are replayed as CUDA graphs, as in training; `--no-graphs` leaves that out). Spaces with hundreds of kinds of
blocks (S3, TrioNet) take seconds for each of them: `--archs` says how many archs take turns. `--turns` compares the
step of the supernet with that of the extracted model for so many archs, one after the other.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import nasformer
from nasformer.space.arch import Arch
from nasformer.supernet.supernet import COMPILE_OPTIONS
from nasformer.utils.cuda_graphs import WARMUP_RUNS, CudaGraphs
from record import benchmark_parser, save_record

STATICS = ("timm vit_tiny", "extracted")


class Bench:
    """One device, one batch, one way of timing."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.device = torch.device(args.device)
        patches = {"patch_size": args.patch_size} if args.patch_size else {}
        self.space = nasformer.get_space(args.space, img_size=args.img_size, **patches)
        self.x = torch.randn(args.batch_size, 3, args.img_size, args.img_size, device=self.device)
        self.y = torch.randint(0, self.space.full_options["num_classes"], (args.batch_size,), device=self.device)

    def autocast(self) -> torch.autocast | nullcontext[None]:
        return torch.autocast("cuda", torch.bfloat16) if self.device.type == "cuda" else nullcontext()

    @property
    def replays(self) -> int:
        """How often archs run before all that comes often is recorded."""
        return WARMUP_RUNS if self.device.type == "cuda" and not self.args.no_graphs else 0

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def train_step(self, forward: Callable[[Tensor], Tensor], optimizer: torch.optim.Optimizer) -> None:
        with self.autocast():
            loss = F.cross_entropy(forward(self.x), self.y, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    @torch.no_grad()
    def evaluate(self, forward: Callable[[Tensor], Tensor]) -> None:
        with self.autocast():
            forward(self.x).argmax(-1)

    def seconds(self, steps: list[Callable[[], None]]) -> float:
        """Median seconds of the steps, each waited for; on CUDA the mean of the queue, as training runs it."""
        self.synchronize()
        if self.device.type == "cuda":
            start = time.perf_counter()
            for step in steps:
                step()
            self.synchronize()
            return (time.perf_counter() - start) / len(steps)
        times = []
        for step in steps:
            start = time.perf_counter()
            step()
            times.append(time.perf_counter() - start)
        return statistics.median(times)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    fused = next(model.parameters()).device.type == "cuda"
    return torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.05, fused=fused)


def supernet_step(bench: Bench, supernet: nasformer.Supernet, optimizer: torch.optim.Optimizer, arch: Arch) -> None:
    bench.train_step(lambda x: supernet(x, arch), optimizer)


def bench_supernet(bench: Bench, archs: list[Arch]) -> dict[str, float]:
    supernet = make_supernet(bench)
    optimizer = adamw(supernet)
    start, seconds = time.perf_counter(), list[float]()
    for arch in archs:
        bench.train_step(lambda x, arch=arch: supernet(x, arch), optimizer)
        bench.synchronize()
        seconds.append(time.perf_counter() - start)
    print(f"first step after {seconds[0]:.0f} s, all archs once after {seconds[-1]:.0f} s", flush=True)
    for arch in archs * bench.replays:
        bench.train_step(lambda x, arch=arch: supernet(x, arch), optimizer)
    if supernet.graphs:
        print(f"recorded: {len(supernet.graphs.recordings)} parts {supernet.graphs.failure}", flush=True)
    if bench.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    steps = [lambda arch=arch: bench.train_step(lambda x: supernet(x, arch), optimizer) for arch in archs]
    result = {"first_step_seconds": seconds[0], "warm_up_seconds": seconds[-1]}
    result["train"] = bench.args.batch_size / bench.seconds(steps)
    if bench.device.type == "cuda":
        result["train_gib"] = torch.cuda.max_memory_allocated() / 2**30
        if bench.args.profile:
            profile(steps[:4])
    supernet.eval()
    for arch in [*archs, *archs * bench.replays]:
        bench.evaluate(lambda x, arch=arch: supernet(x, arch))
    steps = [lambda arch=arch: bench.evaluate(lambda x: supernet(x, arch)) for arch in archs]
    result["eval"] = bench.args.batch_size / bench.seconds(steps)
    if bench.args.profile and bench.device.type == "cuda":
        profile(steps[:4])
    return result


def make_supernet(bench: Bench) -> nasformer.Supernet:
    supernet = nasformer.Supernet(bench.space).to(bench.device)
    supernet.graphs = CudaGraphs.on(bench.device, not bench.args.no_graphs)
    if bench.args.compile:
        supernet.compile()
    return supernet


def compiled(bench: Bench, model: nn.Module) -> Callable[[Tensor], Tensor]:
    return torch.compile(model, dynamic=False, options=COMPILE_OPTIONS) if bench.args.compile else model


def bench_static(bench: Bench, model: nn.Module, repeats: int) -> dict[str, float]:
    model = model.to(bench.device).train()
    forward = compiled(bench, model)
    optimizer = adamw(model)
    for _ in range(3):
        bench.train_step(forward, optimizer)
    result = {"train": bench.args.batch_size / bench.seconds([lambda: bench.train_step(forward, optimizer)] * repeats)}
    model.eval()
    for _ in range(3):
        bench.evaluate(forward)
    result["eval"] = bench.args.batch_size / bench.seconds([lambda: bench.evaluate(forward)] * repeats)
    return result


def paired_ratio(bench: Bench, archs: list[Arch]) -> dict[str, float]:
    """Time of a supernet step over that of the extracted model's, for the same archs in turns."""
    supernet = make_supernet(bench)
    optimizer = adamw(supernet)
    times: dict[str, list[float]] = {"supernet": [], "extracted": []}
    for arch in archs:
        model = supernet.train().extract(arch)
        own, forward = adamw(model), compiled(bench, model)
        turns = {
            "supernet": partial(supernet_step, bench, supernet, optimizer, arch),
            "extracted": partial(bench.train_step, forward, own),
        }
        for step in [*turns.values()] * (2 + bench.replays):  # the first compiles and creates the optimizer's state
            step()
        for name, step in turns.items():
            times[name].append(bench.seconds([step] * bench.args.repeats))
    ratios = [a / b for a, b in zip(times["supernet"], times["extracted"], strict=True)]
    return {"train_time_over_extracted": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios)}


def profile(steps: list[Callable[[], None]]) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as prof:
        for step in steps:
            step()
        torch.cuda.synchronize()
    table = prof.key_averages().table(sort_by="self_cuda_time_total", row_limit=30, max_name_column_width=70)
    print(table, flush=True)


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--space", default="autoformer-tiny")
    parser.add_argument("--img-size", type=int, default=224)
    parser.add_argument("--patch-size", type=int, help="in place of the space's own")
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--archs", type=int, help="archs that take turns; by default another one each step")
    parser.add_argument("--turns", type=int, default=0, help="archs whose step is compared with the extracted model's")
    parser.add_argument("--repeats", type=int, default=3, help="steps of each in a turn")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--no-graphs", action="store_true", help="launch every kernel by itself")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument(
        "--beside", nargs="*", choices=STATICS, default=STATICS, help="static models to measure as well"
    )
    args = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    bench, distinct = Bench(args), args.archs or args.steps
    archs = [bench.space.sample(step % distinct) for step in range(args.steps)]
    results: dict[str, dict[str, float]] = {}

    def add(name: str, figures: dict[str, float]) -> None:
        """Tells and records, so that a run that is cut short leaves what it has."""
        results[name] = figures
        print(f"{name:15}", "  ".join(f"{key} {value:,.2f}" for key, value in figures.items()), flush=True)
        save_record("supernet_speed", vars(args), results, args.out, quiet=True)

    add("supernet", bench_supernet(bench, archs))
    for name in args.beside:
        if name == "extracted" or args.space.startswith("autoformer"):
            add(name, bench_static(bench, static_model(bench, archs, name), args.steps))
    if args.turns:
        add("same archs in turns", paired_ratio(bench, archs[: args.turns]))


def static_model(bench: Bench, archs: list[Arch], name: str) -> nn.Module:
    """The extracted model whose cost is nearest to the mean of the archs, or timm's ViT of that image size."""
    if name == "extracted":
        mean = statistics.mean(bench.space.cost(arch).macs for arch in archs)
        return bench.space.build(min(archs, key=lambda arch: abs(bench.space.cost(arch).macs - mean)))
    import timm

    sizes = {name: bench.space.full_options[name] for name in ("img_size", "patch_size")}
    return timm.create_model("vit_tiny_patch16_224", class_token=True, **sizes)


if __name__ == "__main__":
    main()
