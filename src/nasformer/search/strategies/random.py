"""Random search: the baseline that every other strategy has to beat at the same number of evaluations."""

from __future__ import annotations

from nasformer.search.problem import Problem, Proposal
from nasformer.search.strategies.base import Strategy, check_at_least

BATCH = 256  # asked for at a time: enough for evaluations that score many together


class RandomSearch(Strategy):
    """Samples architectures within the budget.

    Args:
        evaluations: Candidates in all; the default is as many as evolution has.
    """

    def __init__(self, problem: Problem, evaluations: int = 1000) -> None:
        super().__init__(problem)
        check_at_least(1, evaluations=evaluations)
        self.evaluations = evaluations

    @property
    def done(self) -> bool:
        return self.exhausted or len(self.candidates) >= self.evaluations

    def ask(self) -> list[Proposal]:
        return self.draw(min(BATCH, self.evaluations - len(self.candidates)))
