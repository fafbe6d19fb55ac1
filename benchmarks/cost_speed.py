"""Architectures costed per second in closed form, against building each model (on the meta device) and counting.

python benchmarks/cost_speed.py --out cost.json
"""

from __future__ import annotations

import time

import torch

import nasformer
from record import benchmark_parser, save_record


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--space", default="autoformer-tiny")
    args = parser.parse_args()
    space = nasformer.get_space(args.space)
    archs = [space.sample(seed) for seed in range(5000)]
    with torch.device("meta"):
        space.build(archs[0])  # imports what it needs

    start = time.perf_counter()
    closed = [space.cost(arch).params for arch in archs]
    closed_rate = len(archs) / (time.perf_counter() - start)

    start = time.perf_counter()
    with torch.device("meta"):
        built = [sum(p.numel() for p in space.build(arch).parameters()) for arch in archs[:10]]
    built_rate = len(built) / (time.perf_counter() - start)
    if built != closed[: len(built)]:
        raise SystemExit("the closed form disagrees with the built models")

    results = {"closed_form_per_second": closed_rate, "built_per_second": built_rate, "ratio": closed_rate / built_rate}
    print("  ".join(f"{name} {value:,.1f}" for name, value in results.items()))
    save_record("cost_speed", vars(args), results, args.out)


if __name__ == "__main__":
    main()
