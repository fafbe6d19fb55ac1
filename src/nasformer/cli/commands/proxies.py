"""The commands that train nothing: proxies, score, rank, and search with --proxy."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

from nasformer.cli.commands.common import chosen_space, print_finalists, print_json
from nasformer.cli.config import ProxiesCommand, RankCommand, ScoreCommand, SearchCommand
from nasformer.errors import UserError
from nasformer.proxies.catalogue import catalogue
from nasformer.proxies.registry import get_proxies, parse_names
from nasformer.proxies.scoring import Score
from nasformer.ranking.plot import plot_ranking
from nasformer.ranking.rank import rank as rank_scores
from nasformer.ranking.table import Table, read_table
from nasformer.ranking.view import print_ranking
from nasformer.runs import training_free
from nasformer.search.budget import format_quantity
from nasformer.search.journal import Journal
from nasformer.space.arch import Arch
from nasformer.utils.files import write_json
from nasformer.utils.progress import progress

CHUNK = 16  # nets scored between two signs of progress


def proxies(command: ProxiesCommand, as_json: bool) -> None:
    facts = catalogue()
    if command.name:
        facts = {name: facts[name] for name in parse_names(command.name, facts)}
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
    table = read_table(command.table)
    known = table.select(command.target)
    table = table if command.out else known  # scores that are kept serve all columns, so they are of all rows
    scores, seconds = score_table(command, table) if command.proxy else ({}, {})
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


def score_table(command: RankCommand, table: Table) -> tuple[dict[str, list[float]], dict[str, float]]:
    """The scores of all nets by proxy, and the mean time that one took."""
    names = [proxy.name for proxy in get_proxies(command.proxy)]
    folder = Path(command.out) / "scores" if command.out else None
    found = {name: scores_of(replace(command, proxy=name), table, folder) for name in names}
    means = {name: [score.mean for score in scores] for name, scores in found.items()}
    return means, {name: sum(score.seconds for score in scores) / len(scores) for name, scores in found.items()}


def scores_of(command: RankCommand, table: Table, folder: Path | None) -> list[Score]:
    """The scores by one proxy. With a folder they are kept: for other columns, and in case of a kill."""
    scorer, archs = training_free.make_scorer(command, table.space), table.archs
    settings = {**scorer.settings, "seed": command.seed, "data": command.data, "archs": fingerprint(archs)}
    journal = Journal(folder / f"{command.proxy}.jsonl", settings) if folder else nullcontext()
    with journal as book, progress(command.proxy, len(archs)) as report:
        scores = [Score.from_dict(record) for record in (book.records if book else [])]
        for start in range(len(scores), len(archs), CHUNK):
            fresh = [row[command.proxy] for row in scorer.score_many(archs[start : start + CHUNK])]
            if book:
                book.append(*(score.to_dict() for score in fresh))
            scores += fresh
            report(len(scores))
    complain_about(command.proxy, scores)
    return scores


def fingerprint(archs: list[Arch]) -> str:
    return blake2b("".join(arch.to_json() for arch in archs).encode(), digest_size=8).hexdigest()


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
    print_finalists(summary)
    if summary["note"]:
        print(summary["note"])
    print(f"winner: {Arch.from_dict(summary['winner']['arch']).to_json()}")
    if command.out:
        print(
            f"report: {Path(command.out) / 'report.html'}   next: nasformer retrain {command.out} --data DATA --out NEW"
        )
    return None
