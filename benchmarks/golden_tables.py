"""How well proxies rank trained nets of public tables: the tables of docs/results.md, with every score on record.

python benchmarks/golden_tables.py ground_truth_autoformer.json ground_truth_pit.json --proxy stream,dss,snip \
    --out benchmarks/records/golden_tables-cpu.json

The record is written after every proxy, and what it holds already is not scored again: with the same seed and the same
--out, further proxies and tables are added to it. It prints Kendall's tau as rows of Markdown tables, over all rows
with 95 % bootstrap intervals, and within five size bands. Of `imagenet_super` only rows of embed 192 and 216 count: the
checkpoint that they inherit from is defective at 240. `--rows odd` ranks every second row alone: those that the
constants of `stream-fit` were not fitted on.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from nasformer.proxies.scoring import Scorer
from nasformer.ranking.rank import Ranking, rank
from nasformer.ranking.table import Table, read_table
from record import benchmark_parser, save_record

Results = dict[str, dict[str, Any]]


def score(table: Table, proxy: str, seed: int, device: str) -> dict[str, Any]:
    """The score of every row, and the mean time that one took."""
    scores = [row[proxy] for row in Scorer(table.space, proxy, seed=seed, device=device).score_many(table.archs)]
    values = [found.to_dict()["mean"] for found in scores]
    return {"scores": values, "seconds_per_net": sum(found.seconds for found in scores) / len(scores)}


def without_defective(table: Table) -> Table:
    """The table without the accuracies that weights of a defective checkpoint brought about."""
    accuracy = dict(table.accuracy)
    if "imagenet_super" in accuracy:
        pairs = zip(table.archs, accuracy["imagenet_super"], strict=True)
        accuracy["imagenet_super"] = [math.nan if arch.embed_dim == 240 else value for arch, value in pairs]
    return replace(table, accuracy=accuracy)


def every_second(table: Table) -> Table:
    """The table without its first row, its third and so on."""
    accuracy = {column: values[1::2] for column, values in table.accuracy.items()}
    return replace(table, archs=table.archs[1::2], accuracy=accuracy)


def rank_columns(table: Table, rows: dict[str, Any], seed: int) -> dict[str, Ranking]:
    """A ranking for each column of accuracies."""
    scores = {name: [float("nan") if x is None else x for x in row["scores"]] for name, row in rows.items()}
    return {column: rank(table, column, scores, seed=seed) for column in table.columns}


def taus(ranking: Ranking) -> dict[str, dict[str, Any]]:
    """Kendall's tau of each score and count, with its interval, and the one within size bands."""
    return {
        name: {"kendall": x.kendall.value, "interval": x.kendall.interval, "within_bands": x.within.value}
        for name, x in [*ranking.proxies.items(), *ranking.counts.items()]
    }


def print_markdown(title: str, rankings: dict[str, dict[str, Any]], rows: dict[str, int]) -> None:
    header = f"| score | {' | '.join(f'{column} ({count})' for column, count in rows.items())} |"
    print(f"\n{title}, over all rows\n{header}\n{'|---' * (len(rows) + 1)}|")
    for name in next(iter(rankings.values())):
        cells = [column[name] for column in rankings.values()]
        print(f"| {name} | {' | '.join(map(with_interval, cells))} |")
    print(f"\n{title}, within size bands\n{header}\n{'|---' * (len(rows) + 1)}|")
    for name in next(iter(rankings.values())):
        print(f"| {name} | {' | '.join(short(column[name]['within_bands']) for column in rankings.values())} |")


def with_interval(cell: dict[str, Any]) -> str:
    if cell["kendall"] is None:
        return "–"
    return f"{short(cell['kendall'])} [{', '.join(map(short, cell['interval']))}]"


def short(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}".replace("0.", ".", 1)


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("tables", nargs="+", help="JSON files as docs/proxies.md describes them")
    parser.add_argument("--proxy", default="stream,dss", help="names with commas between them")
    parser.add_argument("--rows", choices=("all", "odd"), default="all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    known: Results = {}
    if args.out and Path(args.out).exists():
        known = json.loads(Path(args.out).read_text())["results"]
    tables = {Path(path).stem: without_defective(read_table(path)) for path in args.tables}
    if args.rows == "odd":
        tables = {title: every_second(table) for title, table in tables.items()}
    for title, table in tables.items():
        rows = known.setdefault(title, {"scores": {}})["scores"]
        for proxy in args.proxy.split(","):
            if proxy not in rows:
                rows[proxy] = score(table, proxy, args.seed, args.device)
                print(f"{title} {proxy}: {rows[proxy]['seconds_per_net']:.3g} s a net", flush=True)
                save_record("golden_tables", vars(args), known, args.out, quiet=True)
        rankings = rank_columns(table, rows, args.seed)
        known[title]["taus"] = {column: taus(ranking) for column, ranking in rankings.items()}
        save_record("golden_tables", vars(args), known, args.out, quiet=True)
        print_markdown(title, known[title]["taus"], {column: ranking.n for column, ranking in rankings.items()})


if __name__ == "__main__":
    main()
