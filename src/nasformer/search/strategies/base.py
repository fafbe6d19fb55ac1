"""What all strategies share: ask and tell, no architecture twice, none outside the budget."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from nasformer.errors import UserError
from nasformer.search.problem import Candidate, Problem, Proposal
from nasformer.space.arch import Arch

TRIES = 500  # draws in a row that may be old acquaintances before random sampling counts as dry


class Strategy(ABC):
    """Proposes architectures and learns from their scores.

    `ask` gives a batch, which may be judged in any order or farmed out; `tell` takes the whole batch back, in
    the order asked, before the next `ask`. Candidates are numbered in the order told. All chance comes from
    `self.rng`, so the same answers always lead to the same questions: that is how a search is resumed.

    A subclass takes the problem and options with defaults, and sets `evaluations`, the most it will ask for.
    """

    evaluations: int
    takes_ranks = True  # whether several objectives may count together, by their ranks (see `Problem.order`)

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.rng = problem.rng(type(self).__name__)
        self.candidates: list[Candidate] = []
        self.dry = False  # random sampling finds nothing new any more
        self._seen: set[Arch] = set()

    @property
    @abstractmethod
    def done(self) -> bool:
        """Whether there is nothing more to ask."""

    @abstractmethod
    def ask(self) -> list[Proposal]:
        """The next batch; empty only when the strategy is done."""

    def tell(self, results: Sequence[tuple[Proposal, Mapping[str, float]]]) -> None:
        """Takes the scores (costs included) of the batch asked for last."""
        for proposal, scores in results:
            self.candidates.append(Candidate.judged(len(self.candidates), proposal, scores))

    def winner(self) -> Candidate:
        """What the search ends with."""
        return self.problem.winner(self.candidates)

    @property
    def note(self) -> str:
        """Why the search ended early, or nothing."""
        if not self.done or len(self.candidates) >= self.evaluations:
            return ""
        return (
            f"stopped after {len(self.candidates)} of {self.evaluations} candidates, "
            f"found no other architecture within the budget ({self.problem.budget})"
        )

    def check_seeds(self, seeds: Sequence[Mapping[str, Any]]) -> list[Arch]:
        """The architectures to start from; UserError for one outside the space or the budget."""
        archs = [self.problem.node.validate(seed, f"seeds[{index}]") for index, seed in enumerate(seeds)]
        for index, arch in enumerate(archs):
            if not self.problem.fits(arch):
                raise UserError(f"seeds[{index}] is outside the budget ({self.problem.budget}); leave it out")
        return archs

    def claim(self, arch: Arch) -> bool:
        """Takes an architecture if it is new and fits the budget."""
        if arch in self._seen or not self.problem.fits(arch):
            return False
        self._seen.add(arch)
        return True

    def draw(self, count: int, generation: int = 0) -> list[Proposal]:
        """Up to `count` new random architectures; fewer when they run dry."""
        drawn: list[Proposal] = []
        while len(drawn) < count and not self.dry:
            arch = self._new_sample()
            if arch is None:
                self.dry = True
            else:
                drawn.append(Proposal(arch, "random", generation))
        return drawn

    def _new_sample(self) -> Arch | None:
        for _ in range(TRIES):
            try:
                arch = self.problem.sample(self.rng)
            except UserError:
                if not self._seen:  # nothing fits at all: the user has to widen the budget
                    raise
                return None
            if self.claim(arch):
                return arch
        return None
