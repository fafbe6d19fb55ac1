"""Training-free work of the command line: scorers from options, and a proxy search in a run folder.

RUN/config.json            what was asked, and the versions that did it
RUN/search/journal.jsonl   every candidate
RUN/result.json            the winner beside its references
RUN/plots/, RUN/report.html
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nasformer.agreement import fit_to_data
from nasformer.config import DataConfig, ProbeConfig, SearchCommand, SpaceConfig
from nasformer.data import BatchSource
from nasformer.device import choose_device
from nasformer.errors import UserError
from nasformer.families import Space
from nasformer.files import locked, write_json
from nasformer.folders import load_batches
from nasformer.pipeline import noted_in
from nasformer.proxies.scoring import Scorer
from nasformer.proxies.search import search_training_free
from nasformer.recipe import AugmentConfig, Recipe
from nasformer.search import Budget, SearchResult, references
from nasformer.space import Arch
from nasformer.train.distributed import World

EVALUATIONS = 8000  # TF-TAS's


def make_scorer(command: Any, space: Space) -> Scorer:
    """The scorer that a command asks for; where data is named, the space is fitted to it."""
    check_probing(command)
    device, batches = choose_device(command.device), None
    if command.data:
        # Images keep their size, unless another was asked for, by an option or in a table.
        asked = command.img_size if isinstance(command, SpaceConfig) else space.options.get("img_size")
        batches = probe_batches(command, asked)
        space = fit_to_data(space, batches, command)
    return Scorer(space, command.proxy, batches=batches, seed=command.seed, device=device, **command.probing())


def check_probing(command: ProbeConfig) -> None:
    for name in ("repeats", "probe_size"):
        if getattr(command, name) < 1:
            raise UserError(f"{name} is {getattr(command, name)}; give 1 or more")


def probe_batches(command: Any, img_size: int | None) -> BatchSource:
    """Plain training images, shuffled, without augmentation."""
    plain = Recipe(batch_size=command.probe_size, augment=AugmentConfig(crop="none", hflip=0.0, smoothing=0.0))
    asked = {name: getattr(command, name) for name in ("data_root", "download", "max_bad") if hasattr(command, name)}
    config = DataConfig(data=command.data, seed=command.seed, **asked)
    return load_batches(config, plain, World(), choose_device(command.device), img_size)


def search_in_folder(command: SearchCommand, space: Space) -> dict[str, Any]:
    """Searches by proxies; with a run folder it can be killed and goes on."""
    scorer, budget = make_scorer(command, space), command.budget()
    with opened(command, scorer.space) as folder:
        result = search_training_free(
            scorer,
            budget=budget,
            strategy=command.search.strategy,
            options=command.search.options(EVALUATIONS),
            objectives=tuple(command.search.objectives),
            seed=command.seed,
            journal=folder / "search" / "journal.jsonl" if folder else None,
            settings={"data": command.data},
        )
        summary = summarise(scorer, result, budget, command)
        if folder:
            publish(folder, summary)
    return summary


@contextmanager
def opened(command: SearchCommand, space: Space) -> Iterator[Path | None]:
    """The run folder, locked, with its config; None where the user wants none."""
    if not command.out:
        yield None
        return
    folder = Path(command.out)
    if (folder / "supernet").exists() or (folder / "train").exists():
        raise UserError(f"{folder} is the run of a training; give the proxy search another --out folder")
    with locked(folder / ".lock"), noted_in(folder, command, space):
        yield folder


def summarise(scorer: Scorer, result: SearchResult, budget: Budget, command: SearchCommand) -> dict[str, Any]:
    """The winner beside a random arch, the smallest and the largest in the budget, all scored alike."""

    def row(name: str, arch: Arch) -> dict[str, Any]:
        scores = {proxy: score.to_dict()["mean"] for proxy, score in scorer.score(arch).items()}
        return {"name": name, "arch": arch.to_dict(), **scorer.space.costs(arch), **scores}

    rivals = references(scorer.space.root, scorer.space.costs, budget, command.seed)
    return {
        "space": scorer.space.name,
        "data": command.data or None,
        "budget": str(budget),
        "proxies": [proxy.name for proxy in scorer.proxies],
        "candidates": len(result.candidates),
        "winner": row("winner", result.best.arch),
        "references": [row(name, arch) for name, arch in rivals.items()],
        "front": [one.to_dict() for one in result.front],
        "note": result.note,
    }


def publish(folder: Path, summary: dict[str, Any]) -> None:
    from nasformer.report import write_report

    write_json(folder / "result.json", summary)
    write_report(folder)
