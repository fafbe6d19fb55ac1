"""How well proxies rank trained nets of public tables: the tables of docs/results.md, with every score on record.

python benchmarks/golden_tables.py ground_truth_autoformer.json ground_truth_pit.json --proxy stream,dss,snip \
    --out benchmarks/records/golden_tables-cpu.json

The record is written after every proxy, and what it holds already is not scored again: with the same seed and the same
--out, further proxies and tables are added to it. It prints Kendall's tau as rows of a Markdown table, over all rows
with 95 % bootstrap intervals and within five size bands.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from nasformer.proxies.scoring import Scorer
from nasformer.ranking.rank import Ranking, rank
from nasformer.ranking.table import Table, read_table
from record import save_record

Results = dict[str, dict[str, Any]]


def score(table: Table, proxy: str, seed: int, device: str) -> dict[str, Any]:
    """The score of every row, and the mean time that one took."""
    scores = [row[proxy] for row in Scorer(table.space, proxy, seed=seed, device=device).score_many(table.archs)]
    values = [found.to_dict()["mean"] for found in scores]
    return {"scores": values, "seconds_per_net": sum(found.seconds for found in scores) / len(scores)}


def rank_columns(table: Table, rows: dict[str, Any], seed: int) -> dict[str, Ranking]:
    """A ranking for each column of accuracies."""
    scores = {name: [float("nan") if x is None else x for x in row["scores"]] for name, row in rows.items()}
    return {column: rank(table, column, scores, seed=seed) for column in table.columns}


def print_markdown(title: str, rankings: dict[str, Ranking]) -> None:
    first = next(iter(rankings.values()))
    print(f"\n{title}\n| score | {' | '.join(f'{c} ({r.n})' for c, r in rankings.items())} | bands |")
    for name in [*first.proxies, *first.counts]:
        ranked = [(r.proxies | dict(r.counts))[name] for r in rankings.values()]
        cells = [f"{short(x.kendall.value)} {[short(e) for e in x.kendall.interval or ()]}" for x in ranked]
        print(f"| {name} | {' | '.join(cells)} | {' '.join(short(x.within.value) for x in ranked)} |")


def short(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}".replace("0.", ".", 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", help="JSON files as docs/proxies.md describes them")
    parser.add_argument("--proxy", default="stream,dss", help="names with commas between them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", help="write the record here as JSON")
    args = parser.parse_args()
    known: Results = {}
    if args.out and Path(args.out).exists():
        known = json.loads(Path(args.out).read_text())["results"]
    tables = {Path(path).stem: read_table(path) for path in args.tables}
    for title, table in tables.items():
        rows = known.setdefault(title, {"scores": {}})["scores"]
        for proxy in args.proxy.split(","):
            if proxy not in rows:
                rows[proxy] = score(table, proxy, args.seed, args.device)
                print(f"{title} {proxy}: {rows[proxy]['seconds_per_net']:.3g} s a net", flush=True)
                save_record("golden_tables", vars(args), known, args.out, quiet=True)
        rankings = rank_columns(table, rows, args.seed)
        known[title]["rankings"] = {column: ranking.to_dict() for column, ranking in rankings.items()}
        save_record("golden_tables", vars(args), known, args.out, quiet=True)
        print_markdown(title, rankings)


if __name__ == "__main__":
    main()
