"""The command that looks at the winners of several searches together: patterns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nasformer.cli.commands.common import print_json
from nasformer.cli.config import PatternsCommand
from nasformer.errors import UserError
from nasformer.families.base import options_from_json
from nasformer.families.registry import get_space
from nasformer.families.space import Space
from nasformer.latency.finalists import kept_profile
from nasformer.report.patterns import find_patterns
from nasformer.runs.folder import winner
from nasformer.search.budget import Budget
from nasformer.search.journal import read_journal
from nasformer.space.arch import Arch
from nasformer.utils.files import read_json, write_bytes, write_json


class Searched(NamedTuple):
    """Where a search looked."""

    space: str
    budget: dict[str, Any]
    options: dict[str, Any]


def patterns(command: PatternsCommand, as_json: bool) -> None:
    from nasformer.report.patterns import print_patterns

    space, budget, winners = read_winners([Path(run) for run in command.runs])
    found = find_patterns(space, winners, budget)
    if command.out:
        from nasformer.report.patterns_plot import patterns_figure
        from nasformer.utils.figures import png

        write_json(Path(command.out) / "patterns.json", {"runs": command.runs, **found.to_dict()})
        write_bytes(Path(command.out) / "patterns.png", png(patterns_figure(found)))
    print_json(found.to_dict()) if as_json else print_patterns(found)


def read_winners(folders: Sequence[Path]) -> tuple[Space, Budget, list[Arch]]:
    """The winners of searches that differ in nothing that decides which archs there are to find."""
    if not folders:
        raise UserError("say which searches: nasformer patterns RUN [RUN ...]")
    places = [folder.resolve() for folder in folders]
    for number, folder in enumerate(folders):
        if places[number] in places[:number]:
            raise UserError(f"{folder} is named twice; name each run once, or its winner counts double")
    archs = [winner(folder) for folder in folders]
    searched = [searched_in(folder) for folder in folders]
    for folder, other in zip(folders, searched, strict=True):
        check_same(folders[0], searched[0], folder, other)
    space = kept_profile(get_space(searched[0].space, **searched[0].options), folders[0])
    return space, Budget(**searched[0].budget), [space.root.validate(arch) for arch in archs]


def searched_in(folder: Path) -> Searched:
    """From the result and the journal; the folder of a retraining has none, and its winner was not found there."""
    settings, _ = read_journal(folder / "search" / "journal.jsonl")
    options = options_from_json(settings.get("model_options") or {})
    return Searched(str(read_json(folder / "result.json").get("space")), settings.get("budget") or {}, options)


def check_same(first: Path, ours: Searched, folder: Path, theirs: Searched) -> None:
    for what, one, other in zip(("space", "budget", "model options"), ours, theirs, strict=True):
        if one != other:
            raise UserError(
                f"{folder} has the {what} {in_words(other)}, {first} has {in_words(one)}; "
                "name runs of one space, budget and model"
            )


def in_words(setting: Any) -> str:
    return setting if isinstance(setting, str) else ", ".join(f"{k}={v}" for k, v in setting.items()) or "none"
