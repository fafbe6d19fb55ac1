"""The finalists of a search that went by a profile, as a table and in words: predictions beside measurements."""

from __future__ import annotations

import math

from nasformer.report.contents import Model, Run


def costs_of(run: Run) -> list[str]:
    """What is shown of finalists: the latency, and where it has a limit the memory."""
    return ["latency_ms", *(name for name in run.limits if name == "memory_bytes")]


def finalists_of(run: Run) -> list[Model]:
    """The candidates that were measured, the best by score first. The winner goes by that name."""
    if run.latency is None:
        return []
    won = run.winner.arch if run.winner else None
    return [Model("winner" if one.arch == won else one.name, one.arch, scores_of(run, one)) for one in run.latency.rows]


def scores_of(run: Run, one: Model) -> dict[str, float]:
    """What is known of a finalist; its score is that of the search."""
    found = {run.score: run.score_of(one)}
    for name in costs_of(run):
        found[f"predicted_{name}"] = one.scores.get(name, math.nan)
        found[f"measured_{name}"] = one.scores.get(f"measured_{name}", math.nan)
    return {name: value for name, value in found.items() if not math.isnan(value)}


def finalists_in_words(run: Run) -> str:
    """What was measured, or that nothing could be; the reason is in the note."""
    if run.latency is None:
        return ""
    if not run.latency.rows:
        return f"No candidate could be measured: the latencies of this page are predictions for {run.latency.how}."
    return (
        "The best candidates by score were measured before one of them won, since a prediction is no promise. "
        f"Latency by {run.latency.how}."
    )
