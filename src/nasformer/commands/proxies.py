"""The commands that train nothing: proxies, score, rank, and search with --proxy."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from nasformer import training_free
from nasformer.commands.common import chosen_space, print_json
from nasformer.config import ProxiesCommand, RankCommand, ScoreCommand, SearchCommand
from nasformer.errors import UserError
from nasformer.files import write_json
from nasformer.progress import progress
from nasformer.proxies.proxy import get_proxies, list_proxies
from nasformer.proxies.scoring import Score
from nasformer.ranking import plot_ranking, print_ranking, read_table
from nasformer.ranking import rank as rank_scores
from nasformer.search import format_quantity
from nasformer.space import Arch

CHUNK = 64  # nets scored between two signs of progress


def proxies(command: ProxiesCommand, as_json: bool) -> None:
    found = get_proxies(command.name) if command.name else list(list_proxies().values())
    fields = ("formula", "sees", "loss", "init", "higher", "paper")
    facts = {proxy.name: {name: getattr(proxy, name) for name in fields} for proxy in found}
    if as_json:
        return print_json(facts)
    for name, known in facts.items():
        print(f"{name:18} {known['formula']}")
        if command.name:
            print("\n".join(f"  {field:8} {value}" for field, value in known.items() if field != "formula"))
    return None


def score(command: ScoreCommand, as_json: bool) -> None:
    space = chosen_space(command)
    if not command.arch:
        raise UserError("name an architecture with --arch: a JSON file, inline JSON or a preset's name")
    arch = space.arch(command.arch)
    scorer = training_free.make_scorer(command, space)
    if not scorer.holds(arch):
        raise UserError(f"the arch is larger than {space.name} allows; name the space that it belongs to")
    scores = scorer.score(arch)
    if as_json:
        found = {name: score.to_dict() for name, score in scores.items()}
        return print_json({"space": space.name, "arch": arch.to_dict(), **scorer.space.costs(arch), "proxies": found})
    for name, score in scores.items():
        print(f"{name:18} {in_words(score)}")
    return None


def in_words(score: Score) -> str:
    if score.reason:
        return f"not applicable: {score.reason}"
    spread = f" ± {score.std:.3g} over {len(score.values)} repeats" if len(score.values) > 1 else ""
    return f"{score.mean:.6g}{spread}   ({score.seconds:.3g} s)"


def rank(command: RankCommand, as_json: bool) -> None:
    if not command.table or not command.target:
        raise UserError("say which table and column: nasformer rank --table FILE --target COLUMN --proxy dss,snip")
    table = read_table(command.table).select(command.target)
    scores, seconds = score_table(command, table.space, table.archs) if command.proxy else ({}, {})
    ranking = rank_scores(
        table,
        command.target,
        scores,
        seconds,
        bands=command.bands,
        resamples=command.resamples,
        seed=command.seed,
    )
    if command.out:
        folder = Path(command.out)
        write_json(folder / "ranking.json", ranking.to_dict())
        plot_ranking(ranking, table, scores, command.target, folder / "ranking.png")
    print_json(ranking.to_dict()) if as_json else print_ranking(ranking)


def score_table(command: RankCommand, space: Any, archs: list[Arch]) -> tuple[dict[str, list[float]], dict[str, float]]:
    """The scores of all nets by proxy, and the mean time that one took."""
    scorer = training_free.make_scorer(command, space)
    rows: list[dict[str, Score]] = []
    with progress("score", len(archs)) as report:
        for start in range(0, len(archs), CHUNK):
            rows += scorer.score_many(archs[start : start + CHUNK])
            report(len(rows))
    names = [proxy.name for proxy in scorer.proxies]
    for name in names:
        complain_about(name, [row[name] for row in rows])
    means = {name: [row[name].mean for row in rows] for name in names}
    return means, {name: sum(row[name].seconds for row in rows) / len(rows) for name in names}


def complain_about(name: str, scores: list[Score]) -> None:
    reasons = [score.reason for score in scores if score.reason]
    if reasons:
        print(f"{name} does not apply to {len(reasons)} of {len(scores)} nets: {reasons[0]}", file=sys.stderr)


def search_by_proxy(command: SearchCommand, as_json: bool) -> None:
    summary = training_free.search_in_folder(command, chosen_space(command))
    if as_json:
        return print_json(summary)
    from rich.console import Console
    from rich.table import Table

    names = summary["proxies"]
    table = Table(title=f"{summary['space']}, {summary['budget']}, {summary['candidates']:,} candidates, untrained")
    for column in ("", "parameters", "MACs", *names):
        table.add_column(column, justify="left" if not column else "right")
    for row in [summary["winner"], *summary["references"]]:
        costs = [format_quantity(row[name]) for name in ("params", "macs")]
        table.add_row(row["name"], *costs, *("–" if row[name] is None else f"{row[name]:.5g}" for name in names))
    Console().print(table)
    if summary["note"]:
        print(summary["note"])
    print(f"winner: {Arch.from_dict(summary['winner']['arch']).to_json()}")
    if command.out:
        print(
            f"report: {Path(command.out) / 'report.html'}   next: nasformer retrain {command.out} --data DATA --out NEW"
        )
    return None
