"""Does a report grow with the search? CPU seconds, memory and size of `write_report` for journals of many candidates.

python benchmarks/report_growth.py --out report_growth.json

Random archs of real spaces with invented scores in generations of 50; each report is written by a process of
its own, so that its memory can be told.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SPACES = ("autoformer-tiny", "trionet-micro")
POPULATION = 50


def write_run(folder: Path, name: str, count: int) -> None:
    """A run folder as a search with so many candidates leaves it, as far as a report reads it."""
    from nasformer.families.registry import get_space
    from nasformer.search.journal import Journal

    space, rng = get_space(name), random.Random(0)
    archs = [space.root.sample(rng) for _ in range(count)]
    limit = 1.1 * space.costs(archs[0])["params"]
    settings = {"objectives": ["accuracy"], "budget": {"max_params": limit}, "model_options": dict(space.options)}
    best: dict[str, Any] = {}
    with Journal(folder / "search" / "journal.jsonl", settings, fsync=False) as journal:
        for number, arch in enumerate(archs):
            params = int(limit * rng.uniform(0.5, 1.0))
            scores = {"params": params, "macs": 200 * params, "accuracy": rng.gauss(0.6 + 0.2 * params / limit, 0.03)}
            head = {"id": number, "generation": number // POPULATION, "origin": "mutation", "parents": [number // 2]}
            journal.append({**head, "arch": arch, **scores})
            if not best or scores["accuracy"] > best["accuracy"]:
                best = {"name": "winner", "arch": arch.to_dict(), **scores}
    (folder / "config.json").write_text(json.dumps({"space": name, "data": "none", "budget": {"max_params": limit}}))
    (folder / "result.json").write_text(json.dumps({"space": name, "data": "none", "winner": best}))


def report(folder: Path) -> dict[str, float]:
    """Writes the report here and now: CPU seconds without imports, peak memory with them."""
    from nasformer.report.page import write_report

    start = time.process_time()
    page = write_report(folder)
    seconds = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    csv = (folder / "candidates.csv").stat().st_size / 1e6
    return {"seconds": seconds, "peak_mib": peak, "page_mb": page.stat().st_size / 1e6, "csv_mb": csv}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--out", help="write the record here as JSON")
    parser.add_argument("--report", type=Path, help=argparse.SUPPRESS)  # the folder, in the process that reports
    args = parser.parse_args()
    if args.report:
        print(json.dumps(report(args.report)))
        return
    rows = []
    for name in SPACES:
        for count in args.counts:
            with tempfile.TemporaryDirectory() as folder:
                write_run(Path(folder), name, count)
                command = [sys.executable, __file__, "--report", folder]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
            rows.append({"space": name, "candidates": count, **json.loads(done.stdout)})
            print("{space:16} {candidates:7,} {seconds:6.1f} s {peak_mib:6.0f} MiB {page_mb:.2f} MB".format(**rows[-1]))

    from record import save_record

    settings = {"counts": args.counts, "population": POPULATION}
    save_record("report_growth", settings, {"growth": rows}, args.out)


if __name__ == "__main__":
    main()
