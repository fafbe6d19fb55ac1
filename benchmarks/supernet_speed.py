"""Speed of a supernet: training and inherited evaluation with a random arch each step.

Measured in the same run, as these machines are noisy: the extracted static model of the same archs, and timm's ViT of
about the same size (no relative positions) as the floor.

    python benchmarks/supernet_speed.py --device cuda --img-size 224 --batch-size 512 --compile --out speed.json
    python benchmarks/supernet_speed.py --device cpu --img-size 224 --batch-size 8 --steps 6
    python benchmarks/supernet_speed.py --space s3-tiny --compile --archs 2 --turns 2 --batch-size 256
    python benchmarks/supernet_speed.py --space trionet-small --img-size 32 --compile --archs 2 --turns 2

Every arch runs once before anything is timed, so that nothing compiles meanwhile. Spaces with hundreds of kinds of
blocks (S3, TrioNet) take seconds for each of them: `--archs` says how many archs take turns. `--turns` compares the
step of the supernet with that of the extracted model for so many archs, one after the other.

`--cast-once` measures a second way as well, in turns with the usual one: the shared weights cast to bf16 once a step,
all together, in place of layer by layer under autocast.

    python benchmarks/supernet_speed.py --img-size 32 --patch-size 4 --batch-size 1024 --cast-once --no-static
    python benchmarks/supernet_speed.py --compile --cast-once --no-static
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
from record import benchmark_parser, save_record


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
        on = self.device.type == "cuda" or self.args.cast_once
        return torch.autocast(self.device.type, torch.bfloat16) if on else nullcontext()

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def train_step(
        self, forward: Callable[[Tensor], Tensor], optimizer: torch.optim.Optimizer, casts: CastOnce | None = None
    ) -> None:
        if casts:
            casts.refresh()
        with self.autocast():
            loss = F.cross_entropy(forward(self.x), self.y, label_smoothing=0.1)
        loss.backward()
        if casts:
            casts.collect()
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


class CastOnce:
    """Low-precision copies of a supernet's linear weights, cast together once a step; so are their gradients, back.

    Autocast would cast the slice of each layer by itself, forward and backward; with one arch a step the numbers are
    the same. Weights of norms, tokens and positions stay as they are, as under autocast.
    """

    def __init__(self, supernet: nasformer.Supernet, archs: list[Arch]) -> None:
        linear = linear_weights(supernet, archs)
        names, weights = zip(*(each for each in supernet.weights.named_parameters() if each[0] in linear), strict=True)
        self.weights = list(weights)
        self.low = [weight.detach().to(torch.bfloat16).requires_grad_() for weight in self.weights]
        self.gradients = [torch.empty_like(weight) for weight in self.weights]
        copies, shared = dict(zip(names, self.low, strict=True)), supernet.shared
        supernet.shared = lambda: {**shared(), **copies}  # type: ignore[method-assign]

    @torch.no_grad()
    def refresh(self) -> None:
        torch._foreach_copy_(self.low, self.weights)

    @torch.no_grad()
    def collect(self) -> None:
        used = [number for number, low in enumerate(self.low) if low.grad is not None]
        torch._foreach_copy_([self.gradients[n] for n in used], [self.low[n].grad for n in used])
        for number in used:
            self.weights[number].grad, self.low[number].grad = self.gradients[number], None


def linear_weights(supernet: nasformer.Supernet, archs: list[Arch]) -> set[str]:
    """The names of the shared weights and biases of linear layers and convolutions."""
    names = set[str]()
    for segment in (segment for arch in archs for segment in supernet.space.plan(arch)):
        for path, module in supernet.skeleton(segment).layer.named_modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                names |= {".".join(filter(None, (segment.name, path, name))) for name, _ in module.named_parameters()}
    return names


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    fused = next(model.parameters()).device.type == "cuda"
    return torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.05, fused=fused)


def bench_cast_once(bench: Bench, archs: list[Arch]) -> dict[str, float]:
    """Training with the casts of autocast and with casts once a step, in turns: three rounds of each, their medians."""
    steps: dict[str, list[Callable[[], None]]] = {}
    for way in ("autocast", "cast once"):
        supernet = nasformer.Supernet(bench.space).to(bench.device)
        if bench.args.compile:
            supernet.compile()
        casts = CastOnce(supernet, archs) if way == "cast once" else None
        step = partial(supernet_step, bench, supernet, adamw(supernet), casts)
        for arch in archs:
            step(arch)
        steps[way] = [partial(step, arch) for arch in archs]
    rounds = [{way: bench.seconds(each) for way, each in steps.items()} for _ in range(3)]
    return {f"train, {way}": bench.args.batch_size / statistics.median(one[way] for one in rounds) for way in steps}


def supernet_step(
    bench: Bench,
    supernet: nasformer.Supernet,
    optimizer: torch.optim.Optimizer,
    casts: CastOnce | None,
    arch: Arch,
) -> None:
    bench.train_step(lambda x: supernet(x, arch), optimizer, casts)


def bench_supernet(bench: Bench, archs: list[Arch]) -> dict[str, float]:
    supernet = nasformer.Supernet(bench.space).to(bench.device)
    if bench.args.compile:
        supernet.compile()
    optimizer = adamw(supernet)
    start = time.perf_counter()
    for arch in archs:
        bench.train_step(lambda x, arch=arch: supernet(x, arch), optimizer)
    bench.synchronize()
    print(f"warm-up with compilation: {time.perf_counter() - start:.0f} s", flush=True)
    if bench.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    steps = [lambda arch=arch: bench.train_step(lambda x: supernet(x, arch), optimizer) for arch in archs]
    result = {"train": bench.args.batch_size / bench.seconds(steps)}
    if bench.device.type == "cuda":
        result["train_gib"] = torch.cuda.max_memory_allocated() / 2**30
        if bench.args.profile:
            profile(steps[:4])
    supernet.eval()
    for arch in archs:
        bench.evaluate(lambda x, arch=arch: supernet(x, arch))
    steps = [lambda arch=arch: bench.evaluate(lambda x: supernet(x, arch)) for arch in archs]
    result["eval"] = bench.args.batch_size / bench.seconds(steps)
    if bench.args.profile and bench.device.type == "cuda":
        profile(steps[:4])
    return result


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
    supernet = nasformer.Supernet(bench.space).to(bench.device)
    if bench.args.compile:
        supernet.compile()
    optimizer = adamw(supernet)
    times: dict[str, list[float]] = {"supernet": [], "extracted": []}
    for arch in archs:
        model = supernet.train().extract(arch)
        own, forward = adamw(model), compiled(bench, model)
        turns = {
            "supernet": partial(supernet_step, bench, supernet, optimizer, None, arch),
            "extracted": partial(bench.train_step, forward, own),
        }
        for step in [*turns.values()] * 2:  # the first compiles and creates the optimizer's state
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
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--cast-once", action="store_true", help="measure casts once a step as well")
    parser.add_argument("--no-static", action="store_true", help="leave the static models out")
    args = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    bench, distinct = Bench(args), args.archs or args.steps
    archs = [bench.space.sample(step % distinct) for step in range(args.steps)]
    results = {"supernet": bench_supernet(bench, archs)}
    if args.cast_once:
        results["casts"] = bench_cast_once(bench, archs)
    if not args.no_static:
        results |= bench_statics(bench, archs)
        for mode in ("train", "eval"):
            ratio = results["extracted"][mode] / results["supernet"][mode]
            results["supernet"][f"{mode}_time_over_extracted"] = ratio
    if args.turns:
        results["same archs in turns"] = paired_ratio(bench, archs[: args.turns])
    for name, figures in results.items():
        print(f"{name:15}", "  ".join(f"{key} {value:,.2f}" for key, value in figures.items()), flush=True)
    save_record("supernet_speed", vars(args), results, args.out)


def bench_statics(bench: Bench, archs: list[Arch]) -> dict[str, dict[str, float]]:
    """The extracted model whose cost is nearest to the mean of the archs, and timm's ViT where archs are plain ones."""
    mean = statistics.mean(bench.space.cost(arch).macs for arch in archs)
    typical = min(archs, key=lambda arch: abs(bench.space.cost(arch).macs - mean))
    results = {"extracted": bench_static(bench, bench.space.build(typical), bench.args.steps)}
    options = bench.space.full_options
    if bench.args.space.startswith("autoformer"):
        import timm

        sizes = {name: options[name] for name in ("img_size", "patch_size")}
        vit = timm.create_model("vit_tiny_patch16_224", class_token=True, **sizes)
        results["timm vit_tiny"] = bench_static(bench, vit, bench.args.steps)
    return results


if __name__ == "__main__":
    main()
