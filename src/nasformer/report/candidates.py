"""The candidates of a search as a table for spreadsheets and data frames."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from nasformer.files import write_text
from nasformer.report.tables import csv_text
from nasformer.search import Candidate


def write_candidates(path: Path, candidates: Sequence[Candidate]) -> None:
    """Writes the table; without candidates there is none, not even one from before."""
    if candidates:
        write_text(path, as_csv(candidates))
    else:
        path.unlink(missing_ok=True)


def as_csv(candidates: Sequence[Candidate]) -> str:
    """A line for each candidate: its descent, its costs and scores, its arch as JSON. Unknown scores are empty.

    >>> from nasformer.space import Arch
    >>> one = Candidate(7, 1, "mutation", (3, 5), Arch(depth=12), {"params": 500, "accuracy": math.nan})
    >>> print(as_csv([one]))
    id,generation,origin,parents,params,accuracy,arch
    7,1,mutation,3 5,500,,"{""depth"":12}"
    <BLANKLINE>
    """
    scores = list(dict.fromkeys(name for one in candidates for name in one.scores))
    rows = []
    for one in candidates:
        known = ["" if math.isnan(value := one.scores.get(name, math.nan)) else value for name in scores]
        parents = " ".join(map(str, one.parents))
        rows.append([one.id, one.generation, one.origin, parents, *known, one.arch.to_json()])
    return csv_text(["id", "generation", "origin", "parents", *scores, "arch"], rows)
