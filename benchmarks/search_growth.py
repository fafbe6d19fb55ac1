"""Does a search slow down as its candidates become many? Milliseconds of CPU a candidate, without the evaluation.

python benchmarks/search_growth.py --out search_growth.json

A toy space of AutoFormer's shape and a score that costs nothing, so that what is left is the search itself: proposals,
the order of the parents, the front and the winner. `resume` reads a journal of as many lines and evaluates nothing.
"""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nasformer.search.run import SearchResult, search
from nasformer.space.arch import Arch
from nasformer.space.nodes import Choice, Repeat, Struct
from record import benchmark_parser, save_record

BLOCK = Struct(num_heads=Choice(3, 4, 5, 6), mlp_ratio=Choice(2.0, 2.5, 3.0, 3.5, 4.0))
SPACE = Struct(embed_dim=Choice(192, 216, 240), blocks=Repeat(BLOCK, depth=Choice(12, 13, 14)))
OBJECTIVES = {1: ("noise",), 2: ("trend", "-params")}


def costs(arch: Arch) -> dict[str, float]:
    dim = arch.embed_dim
    return {"params": sum(dim * int(256 * block.num_heads + 2 * dim * block.mlp_ratio) for block in arch.blocks)}


class Evaluator:
    """Noise, by which parents stay different and operators never run out, and a noisy trend, whose fronts are long."""

    def __call__(self, arch: Arch) -> dict[str, float]:
        genes = (arch.embed_dim, *(gene for block in arch.blocks for gene in block.values()))
        noise = hash(genes) % 10_007 / 10_007  # numbers hash alike in every process
        return {"noise": noise, "trend": costs(arch)["params"] ** 0.5 * (1 + noise)}

    def many(self, archs: Sequence[Arch]) -> list[dict[str, float]]:
        return [self(arch) for arch in archs]


def run(strategy: str, objectives: int, count: int, journal: Path | None = None) -> tuple[float, SearchResult]:
    options = {"evaluations": count} if strategy == "random" else {"generations": count // 50}
    start = time.process_time()
    result = search(
        SPACE,
        Evaluator(),
        costs,
        strategy=strategy,
        options=options,
        objectives=OBJECTIVES[objectives],
        journal=journal,
    )
    return time.process_time() - start, result


def resume(strategy: str, objectives: int, count: int) -> dict[str, Any]:
    """Seconds to read a journal back, and the most memory that this process has ever held."""
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder) / "journal.jsonl"
        run(strategy, objectives, count, journal)
        size = journal.stat().st_size
        seconds, _ = run(strategy, objectives, count, journal)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"lines": count, "megabytes": size / 1e6, "seconds": seconds, "peak_mib": peak}


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--counts", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    args = parser.parse_args()
    rows = []
    for strategy in ("random", "evolution"):
        for objectives in OBJECTIVES:
            for count in args.counts:
                seconds, result = run(strategy, objectives, count)
                row = {"strategy": strategy, "objectives": objectives, "candidates": len(result.candidates)}
                rows.append({**row, "front": len(result.front), "ms": 1000 * seconds / len(result.candidates)})
                print("{strategy:10} {objectives} {candidates:7,} front {front:5} {ms:.3f} ms".format(**rows[-1]))
    resumed = {strategy: resume(strategy, 2, args.counts[-1]) for strategy in ("random", "evolution")}
    save_record("search_growth", vars(args), {"growth": rows, "resume": resumed}, args.out)


if __name__ == "__main__":
    main()
