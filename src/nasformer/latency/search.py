"""What a search does with a profile: tells the journal, keeps a copy in the run folder, and measures the finalists."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from nasformer.families import Space
from nasformer.latency.finalists import decide
from nasformer.latency.profile import Profile
from nasformer.progress import say
from nasformer.search import Budget, SearchResult
from nasformer.space import Arch

COPY, RECORD = Path("search") / "profile.json", Path("search") / "finalists.json"


def profile_settings(profile: Profile | None) -> dict[str, str]:
    """For the journal of a search: with the costs of another profile it must not go on."""
    return {"profile": profile.fingerprint} if profile else {}


def keep_profile(profile: Profile | None, folder: Path | None) -> None:
    """A copy in the run folder, so that the run says by what it went; the first one stays, as its journal does."""
    if profile and folder and not (folder / COPY).exists():
        profile.save(folder / COPY)


def kept_profile(space: Space, folder: Path) -> Space:
    """The space with the costs that the search of a run folder went by."""
    path = folder / COPY
    return replace(space, predicted=Profile.load(path).costs) if path.exists() else space


def measured_winner(
    profile: Profile | None, space: Space, result: SearchResult, budget: Budget, folder: Path | None
) -> tuple[Arch, dict[str, float], dict[str, Any]]:
    """The winner, what it was measured to need, and all about it for the result; without a profile just the winner."""
    if profile is None:
        return result.best.arch, {}, {}
    ranking = [candidate.arch for candidate in result.ranking]
    verdict = decide(profile, space, ranking, budget, folder / RECORD if folder else None)
    if verdict.note:
        say(verdict.note)
    return verdict.arch, verdict.measured(), {"latency": verdict.to_dict(profile)}
