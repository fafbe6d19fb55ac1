"""What the space of a run holds, so that a figure can show a net among all that it might have been."""

from __future__ import annotations

from itertools import islice
from random import Random

from nasformer.errors import UserError
from nasformer.families import Space, get_space
from nasformer.report.contents import Run
from nasformer.space import Arch, Window, corners

DRAWS, TRIES = 200, 1000


def members(run: Run) -> list[Arch]:
    """The smallest and the largest member of the run's space, for every option of a OneOf; none if it is unknown."""
    space = _space(run)
    if space is None:
        return []
    return [member for corner in corners(space.root) for member in (space.root.smallest(corner), corner)]


def random_members(run: Run) -> list[Arch]:
    """Random archs of the run's space within its budget, always the same; in a very narrow budget they are few.

    Nothing but plain samples: archs that are led into a budget are not a fair picture of it.
    """
    space, rng = _space(run), Random(0)
    if space is None:
        return []
    drawn = (space.root.sample(rng) for _ in range(TRIES))
    return list(islice((arch for arch in drawn if _fits(space, arch, run)), DRAWS))


def _fits(space: Space, arch: Arch, run: Run) -> bool:
    """Within the limits on what can be counted; latency, for one, would have to be measured."""
    costs = space.costs(arch) if run.limits else {}
    return all(Window(name, *ends).excess(costs) == 0 for name, ends in run.limits.items() if name in costs)


def _space(run: Run) -> Space | None:
    """None for a space of another version, or an evolved one: what the run folder says must do."""
    try:
        return get_space(str(run.config.get("space")), **run.options)
    except UserError:
        return None
