"""Commands on training-free proxies: proxies, score and rank."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from nasformer.cli.main import print_json
from nasformer.errors import UserError
from nasformer.models.registry import SpaceOptions
from nasformer.proxies.registry import ProbeOptions
from nasformer.runs.options import ExecutorOptions
from nasformer.utils.units import OptionGroup, check_range, check_seed

if TYPE_CHECKING:
    from nasformer.proxies.ranking import Table
    from nasformer.proxies.scoring import Score, Scorer
    from nasformer.search.journal import Journal
    from nasformer.space.arch import Arch

CHUNK = 16  # nets scored between two signs of progress
MAX_RESAMPLES = 100_000


@dataclass
class ProxiesCommand(OptionGroup):
    """List the training-free proxies, or describe one."""

    positional = ("name",)
    example = "nasformer proxies dss"

    name: str | None = None
    """the proxy to describe"""


@dataclass
class ScoringOptions(ProbeOptions):
    """How untrained architectures are scored."""

    data: str = ""
    """images for the proxies that want a labelled batch; none: noise with random labels"""
    seed: int = 0
    """seed of everything random"""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N"""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_seed(self)


@dataclass
class ScoreCommand(ScoringOptions, SpaceOptions):
    """Score an untrained architecture by training-free proxies."""

    main = ("space", "arch", "proxy", "data", "img_size", "repeats", "probe_size", "seed", "device")
    example = "nasformer score --space autoformer-tiny-mlp3 --arch autoformer-t --proxy dss,naswot"

    arch: str = ""
    """a JSON file, inline JSON or a preset's name"""


@dataclass
class RankCommand(ScoringOptions, ExecutorOptions):
    """How well do proxies rank trained nets, and do they know more than the parameter count?"""

    main = ("table", "target", "proxy", "bands", "out", "data", "seed", "device")
    example = "nasformer rank --table nets.json --target accuracy --proxy dss,stream --out runs/ranking"

    table: str = ""
    """JSON with a space, archs and their accuracies, see docs/proxies.md; or a run folder: its candidates"""
    target: str = ""
    """the column of accuracies to compare with; of a run: accuracy"""
    bands: int = 5
    """groups of equal size, by parameters, within which nets are compared as well"""
    resamples: int = 1000
    """bootstrap resamples for the intervals"""
    out: str = ""
    """a folder for ranking.json, ranking.png and the scores, which another column then need not compute again"""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "bands", 1)
        check_range(self, "resamples", 1, MAX_RESAMPLES)


def proxies(options: ProxiesCommand, as_json: bool) -> None:
    from nasformer.proxies.registry import catalogue

    entries = catalogue(options.name)
    if as_json:
        return print_json({name: entry.to_dict() for name, entry in entries.items()})
    for name, entry in entries.items():
        print(f"{name:18} {entry.formula}")
        if options.name:
            facts = entry.to_dict()
            print("\n".join(f"  {field:8} {value}" for field, value in facts.items() if field != "formula"))
    return None


def score(options: ScoreCommand, as_json: bool) -> None:
    from nasformer.runs.run import make_scorer

    if not options.arch:
        raise UserError("name an architecture with --arch: a JSON file, inline JSON or a preset's name")
    space = options.chosen_space()
    arch = space.arch(options.arch)
    scorer = make_scorer(options, space)
    scores = scorer.score(arch)
    if as_json:
        proxies = {name: score.to_dict() for name, score in scores.items()}
        return print_json({"space": space.name, "arch": arch.to_dict(), **scorer.space.costs(arch), "proxies": proxies})
    for name, score in scores.items():
        print(f"{name:18} {in_words(score)}")
    return None


def in_words(score: Score) -> str:
    if score.reason:
        return f"not applicable: {score.reason}"
    spread = f" ± {score.std:.3g} over {len(score.values)} repeats" if len(score.values) > 1 else ""
    return f"{score.mean:.6g}{spread}   ({score.seconds:.3g} s)"


def rank(options: RankCommand, as_json: bool) -> None:
    from nasformer.results.folder import check_output
    from nasformer.utils.files import locked

    if not options.table or not options.target:
        raise UserError("say which table and column: nasformer rank --table FILE --target COLUMN --proxy dss,snip")
    if not options.out:
        return rank_in(options, None, as_json)
    folder = check_output(options.out, "scores")
    with locked(folder / ".lock"):
        return rank_in(options, folder, as_json)


def rank_in(options: RankCommand, folder: Path | None, as_json: bool) -> None:
    from nasformer.proxies.ranking import rank, read_table
    from nasformer.report.ranking import plot_ranking, print_ranking
    from nasformer.utils.files import write_json

    table = read_table(options.table)
    with_target = table.select(options.target)
    table = table if folder else with_target  # scores that are kept serve all columns, so they are of all rows
    scores, seconds = score_table(options, table, folder) if options.proxy else ({}, {})
    settings = {"bands": options.bands, "resamples": options.resamples, "seed": options.seed}
    ranking = rank(table, options.target, scores, seconds, **settings)
    if folder:
        write_json(folder / "ranking.json", ranking.to_dict())
        plot_ranking(ranking, table, scores, options.target, folder / "ranking.png")
    print_json(ranking.to_dict()) if as_json else print_ranking(ranking)


def score_table(
    options: RankCommand, table: Table, folder: Path | None
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """The scores of all nets by proxy, and the mean time that one took."""
    from nasformer.proxies.registry import get_proxies

    names = [proxy.name for proxy in get_proxies(options.proxy)]
    kept = folder / "scores" if folder else None
    scores = {name: score_nets(replace(options, proxy=name), table, kept) for name in names}
    means = {name: [score.mean for score in values] for name, values in scores.items()}
    return means, {name: sum(score.seconds for score in values) / len(values) for name, values in scores.items()}


def read_scores(journal: Journal, most: int) -> list[Score]:
    """The stored scores of the first nets of a table."""
    from nasformer.proxies.scoring import Score
    from nasformer.utils.schema import from_json

    lines = enumerate(journal.records, 2)
    scores = [from_json(Score, record, f"{journal.path}, line {number}") for number, record in lines]
    if len(scores) > most:
        raise UserError(f"{journal.path} has {len(scores)} scores of {most} nets; use another --out folder")
    return scores


def score_nets(options: RankCommand, table: Table, folder: Path | None) -> list[Score]:
    """The scores by one proxy. In a folder they are stored, for other columns and for a run that was killed."""
    from hashlib import blake2b

    from nasformer.runs.run import make_scorer
    from nasformer.search.journal import Journal
    from nasformer.utils.progress import progress

    scorer, archs = make_scorer(options, table.space), table.archs
    digest = blake2b("".join(arch.to_json() for arch in archs).encode(), digest_size=8).hexdigest()
    settings = {**scorer.settings, "seed": options.seed, "data": options.data, "archs": digest}
    opened = Journal(folder / f"{options.proxy}.jsonl", settings) if folder else nullcontext()
    with opened as journal, progress(options.proxy, len(archs)) as report:
        scores = read_scores(journal, len(archs)) if journal else []
        chunks = [archs[start : start + CHUNK] for start in range(len(scores), len(archs), CHUNK)]
        for rows in score_chunks(scorer, chunks, options, folder):
            fresh = [row[options.proxy] for row in rows]
            if journal:
                journal.append(*(score.to_dict() for score in fresh))
            scores += fresh
            report(len(scores))
    reasons = [score.reason for score in scores if score.reason]
    if reasons:
        print(f"{options.proxy} does not apply to {len(reasons)} of {len(scores)} nets: {reasons[0]}", file=sys.stderr)
    return scores


def score_chunks(
    scorer: Scorer, chunks: Sequence[Sequence[Arch]], options: RankCommand, folder: Path | None
) -> Iterator[list[dict[str, Score]]]:
    """The scores of chunks of nets, in their order; here, or on workers."""
    from nasformer.runs.pools import RayPool, result_of
    from nasformer.runs.search import ProxyJob

    if options.executor == "local":
        yield from map(scorer.score_many, chunks)
        return
    job = ProxyJob(scorer, "score_many")
    with closing(RayPool(job, options, scorer.device.type == "cuda", folder, options.trial_timeout)) as pool:
        yield from map(result_of, pool.map(chunks))
