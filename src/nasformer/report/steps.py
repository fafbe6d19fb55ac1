"""The course of a search: its candidates by generation, or in batches where it has no generations."""

from __future__ import annotations

from nasformer.report.contents import Run
from nasformer.search import Candidate

BATCHES = 20


def steps(run: Run) -> tuple[list[tuple[int, list[Candidate]]], str]:
    """Candidates by step, and what steps count: generations, or the candidates judged so far."""
    numbers, unit = [candidate.generation for candidate in run.candidates], "generation"
    if len(set(numbers)) == 1 and len(numbers) > 1:
        size, unit = -(-len(numbers) // BATCHES), "candidates judged"
        numbers = [min(len(numbers), size * (index // size + 1)) for index in range(len(numbers))]
    found: dict[int, list[Candidate]] = {}
    for number, candidate in zip(numbers, run.candidates, strict=True):
        found.setdefault(number, []).append(candidate)
    return sorted(found.items()), unit
