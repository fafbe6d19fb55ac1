"""How well proxies rank trained nets of public tables: the tables of docs/results.md, with every score on record.

python benchmarks/golden_tables.py ground_truth_autoformer.json ground_truth_pit.json --proxy stream,dss,snip \
    --out benchmarks/records/golden_tables-cpu.json

The record is written after every ten nets, and what it holds already is not scored again: with the same seed and the
same --out, further proxies and tables are added to it. It prints Kendall's tau as rows of Markdown tables, over all
rows with 95 % bootstrap intervals, and within five size bands. Of `imagenet_super` only rows of embed 192 and 216
count: the checkpoint that they inherit from is defective at 240. `--rows odd` takes every second row alone: those that
the constants of `stream-fit` were not fitted on; `--rows sample` takes a third of these, for scores that take long.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from nasformer.proxies.ranking import Ranking, Table, rank, read_table
from nasformer.proxies.scoring import Scorer
from nasformer.utils.device import choose_device
from record import benchmark_parser, save_record

Results = dict[str, dict[str, Any]]
ROWS = {"all": slice(None), "odd": slice(1, None, 2), "sample": slice(1, None, 6)}
FEW = 10
"""Nets that are scored between two writings of the record."""


def score(table: Table, proxy: str, seed: int, device: str, known: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The scores of the first rows, a few more each time, and the mean time that one took."""
    scorer = Scorer(table.space, proxy, seed=seed, device=choose_device(device))
    values, seconds = list(known.get("scores", [])), known.get("seconds_per_net", 0.0)
    while len(values) < len(table.archs):
        found = [row[proxy] for row in scorer.score_many(table.archs[len(values) : len(values) + FEW])]
        total = seconds * len(values) + sum(score.seconds for score in found)
        values += [score.to_dict()["mean"] for score in found]
        seconds = total / len(values)
        yield {"scores": values, "seconds_per_net": seconds}


def without_defective(table: Table) -> Table:
    """The table without the accuracies that weights of a defective checkpoint brought about."""
    accuracy = dict(table.accuracy)
    if "imagenet_super" in accuracy:
        pairs = zip(table.archs, accuracy["imagenet_super"], strict=True)
        accuracy["imagenet_super"] = [math.nan if arch.embed_dim == 240 else value for arch, value in pairs]
    return replace(table, accuracy=accuracy)


def some_rows(table: Table, rows: slice) -> Table:
    accuracy = {column: values[rows] for column, values in table.accuracy.items()}
    return replace(table, archs=table.archs[rows], accuracy=accuracy)


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
    parser.add_argument("--rows", choices=tuple(ROWS), default="all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu", help="auto, cpu, cuda or cuda:N")
    args = parser.parse_args()
    known: Results = {}
    if args.out and Path(args.out).exists():
        known = json.loads(Path(args.out).read_text())["results"]
    for path in args.tables:
        title, table = Path(path).stem, some_rows(without_defective(read_table(path)), ROWS[args.rows])
        rows = known.setdefault(title, {"scores": {}})["scores"]
        for proxy in args.proxy.split(","):
            for found in score(table, proxy, args.seed, args.device, rows.get(proxy, {})):
                rows[proxy] = found
                save(args, known)
            print(f"{title} {proxy}: {rows[proxy]['seconds_per_net']:.3g} s a net", flush=True)
        rankings = rank_columns(table, rows, args.seed)
        known[title]["taus"] = {column: taus(ranking) for column, ranking in rankings.items()}
        save(args, known)
        print_markdown(title, known[title]["taus"], {column: ranking.n for column, ranking in rankings.items()})


def save(args: argparse.Namespace, known: Results) -> None:
    """Writes the record; it names all that it holds, whatever this call added."""
    proxies = dict.fromkeys(proxy for table in known.values() for proxy in table["scores"])
    settings = {**vars(args), "tables": [f"{title}.json" for title in known], "proxy": ",".join(proxies)}
    save_record("golden_tables", settings, known, args.out, quiet=True)


if __name__ == "__main__":
    main()
