"""Measured latency of a net and of cuts like those that a search finds: is half of the MACs half of the time?

python benchmarks/pretrained_latency.py --net timm:deit_tiny_patch16_224 --budgets 75 58 50 35 --out latency.json
python benchmarks/pretrained_latency.py --net timm:deit_tiny_patch16_224 --device cuda --backend compile

For each share of the MACs: random archs within the budget, whose blocks differ as those of a searched one do, and the
uniform one. Nets take turns, and the fastest run of each counts, since other programs only ever slow it down.
"""

from __future__ import annotations

import argparse
import random
from statistics import fmean
from typing import Any

import torch

from nasformer.latency.measure import cpu_threads, make_clock, make_runner, undisturbed
from nasformer.models.pretrained import source_space
from nasformer.space.arch import Arch
from nasformer.space.budget import Budget, sample_feasible, uniform_arch
from record import benchmark_parser, save_record

NEAR = 0.97
"""Random archs have from this share of a budget on."""


def archs_of(space: Any, share: int, count: int, seed: int) -> dict[str, Arch]:
    """Random archs of a budget, and the uniform one."""
    whole = space.costs(space.root.largest())["macs"]
    high = share / 100 * whole
    windows, rng = Budget(min_macs=NEAR * high, max_macs=high).windows(), random.Random(f"{seed} {share}")
    archs = {f"{share} cut {k}": sample_feasible(space.root, rng, space.costs, windows) for k in range(1, count + 1)}
    uniform = uniform_arch(space.root, space.costs, Budget(max_macs=high))
    return archs | ({f"{share} uniform": uniform} if uniform is not None else {})


def fastest(space: Any, archs: dict[str, Arch], batch: int, args: argparse.Namespace) -> dict[str, float]:
    """Milliseconds of the fastest run of each net."""
    device = torch.device(args.device)
    runner, clock = make_runner(space, args.backend, device, batch, args.threads), make_clock(device, args.threads)
    nets = {name: runner.net(arch) for name, arch in archs.items()}
    best = dict.fromkeys(nets, float("inf"))
    with cpu_threads(args.threads), undisturbed():
        for net in nets.values():
            net(runner.images)  # to warm up, and to compile
        for _ in range(args.rounds):
            for name, net in nets.items():
                best[name] = min(best[name], *(clock.time_net(net, runner.images) for _ in range(3)))
    return {name: 1000 * seconds for name, seconds in best.items()}


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--net", required=True)
    parser.add_argument("--budgets", type=int, nargs="+", default=[75, 58, 50, 35])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--archs", type=int, default=3, help="random archs a budget")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--backend", default="eager", choices=("eager", "compile"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    space = source_space(args.net)
    archs = {"full": space.root.largest()}
    for share in args.budgets:
        archs |= archs_of(space, share, args.archs, args.seed)
    macs = {name: space.costs(arch)["macs"] for name, arch in archs.items()}
    rows, summary = list[dict[str, Any]](), list[dict[str, Any]]()
    for batch in args.batches:
        times = fastest(space, archs, batch, args)
        for name, ms in times.items():
            share, speedup = macs[name] / macs["full"], times["full"] / ms
            rows.append({"batch": batch, "net": name, "ms": ms, "macs": share, "speedup": speedup})
            print(
                f"batch {batch:3} {name:12} {ms:9.2f} ms  {share:6.1%} of the MACs  {speedup:5.2f} times as fast",
                flush=True,
            )
        summary += [summary_row(rows, batch, share) for share in args.budgets]
        results = {"summary": summary, "rows": rows, "archs": {name: arch.to_dict() for name, arch in archs.items()}}
        save_record("pretrained_latency", vars(args), results, args.out, quiet=True)  # also if it is cut short
    for row in summary:
        gain = f"{row['speedup']:.2f} times as fast ({row['kept']:.0%} of 1 / share)"
        print(f"batch {row['batch']:3}, {row['budget']} % of the MACs: {gain}")


def summary_row(rows: list[dict[str, Any]], batch: int, share: int) -> dict[str, Any]:
    """The mean speed-up of the random cuts of a budget, and what part of the MACs' it is."""
    cuts = [row for row in rows if row["batch"] == batch and row["net"].startswith(f"{share} cut")]
    kept = fmean(row["speedup"] * row["macs"] for row in cuts)
    return {"batch": batch, "budget": share, "speedup": fmean(row["speedup"] for row in cuts), "kept": kept}


if __name__ == "__main__":
    main()
