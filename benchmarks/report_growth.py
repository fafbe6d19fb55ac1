"""Do resuming and reporting grow with the search? CPU seconds, memory and size of the report for long journals.

python benchmarks/report_growth.py --out report_growth.json

Searches of real spaces by evolution, with invented scores. A process of its own then does what `nasformer search` does
in a finished run folder: it goes through the journal, finds the winner and the front, and writes the report.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from record import benchmark_parser, save_record

SPACES = ("autoformer-tiny", "trionet-micro")
POPULATION = 50


class Evaluator:
    """Invented accuracies that rise with the size; always the same for an arch."""

    def __init__(self, space: Any) -> None:
        self.space, self.calls = space, 0
        self.most = space.costs(space.root.largest())["params"]

    def many(self, archs: Sequence[Any]) -> list[dict[str, float]]:
        from random import Random

        self.calls += len(archs)
        share = [self.space.costs(arch)["params"] / self.most for arch in archs]
        noise = [Random(arch.to_json()).gauss(0, 0.03) for arch in archs]
        return [{"accuracy": 0.6 + 0.2 * part + off} for part, off in zip(share, noise, strict=True)]


def search_run(folder: Path, name: str, count: int) -> int:
    """Searches, or goes on with the journal in the folder; gives the number of candidates that were evaluated."""
    from nasformer.models.registry import get_space
    from nasformer.results.result import RunResult
    from nasformer.search.problem import ModelResult
    from nasformer.search.run import search
    from nasformer.space.budget import Budget

    space = get_space(name)
    evaluator = Evaluator(space)
    budget = Budget(max_params=0.9 * evaluator.most)
    found = search(
        space,
        evaluator,  # type: ignore[arg-type]
        space.costs,
        options={"population": POPULATION, "generations": count // POPULATION, "parents": 20 * POPULATION},
        budget=budget,
        journal=folder / "search" / "journal.jsonl",
        settings={"model_options": dict(space.options)},
    )
    winner = ModelResult("winner", found.best.arch.to_dict(), dict(found.best.scores))
    result = RunResult(space=name, data="none", budget=str(budget), winner=winner, front=found.front)
    result.save(folder / "result.json")
    limits = {"max_params": budget.max_params}
    config = {"kind": "supernet", "space": name, "data": "none", "budget": limits}
    (folder / "config.json").write_text(json.dumps(config))
    return evaluator.calls


def peak() -> float:
    """The most memory that this process has held, in MiB; not that of its parent, which getrusage counts as well."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


def resume(folder: Path, name: str, count: int) -> dict[str, float]:
    """Goes through the journal and writes the report: CPU seconds without imports, memory with and without them."""
    from nasformer.report.page import write_report

    imports, start = peak(), time.process_time()
    if search_run(folder, name, count):
        raise RuntimeError("the search was not finished")
    resumed, middle = peak(), time.process_time()
    page = write_report(folder)
    return {
        "resume_seconds": middle - start,
        "report_seconds": time.process_time() - middle,
        "imports_mib": imports,
        "resume_mib": resumed,
        "peak_mib": peak(),
        "journal_mb": (folder / "search" / "journal.jsonl").stat().st_size / 1e6,
        "page_mb": page.stat().st_size / 1e6,
        "csv_mb": (folder / "candidates.csv").stat().st_size / 1e6,
    }


ROW = (
    "{space:16} {candidates:7,} {resume_seconds:5.1f} s + {report_seconds:5.1f} s {peak_mib:5.0f} MiB {page_mb:.2f} MB"
)


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--counts", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--resume", nargs=3, help=argparse.SUPPRESS)  # in the process that is measured
    args = parser.parse_args()
    if args.resume:
        folder, name, count = args.resume
        print(json.dumps(resume(Path(folder), name, int(count))))
        return
    rows = []
    for name in SPACES:
        for count in args.counts:
            with tempfile.TemporaryDirectory() as folder:
                search_run(Path(folder), name, count)
                command = [sys.executable, __file__, "--resume", folder, name, str(count)]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            rows.append({"space": name, "candidates": count, **json.loads(done.stdout)})
            print(ROW.format(**rows[-1]), flush=True)
    save_record("report_growth", {"counts": args.counts, "population": POPULATION}, {"growth": rows}, args.out)


if __name__ == "__main__":
    main()
