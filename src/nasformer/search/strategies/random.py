"""Random search: the baseline that every other strategy has to beat at the same number of evaluations."""

from __future__ import annotations

from nasformer.errors import UserError
from nasformer.search.problem import Problem, Proposal
from nasformer.search.strategies.base import Strategy

BATCH = 256  # asked for at a time: enough for evaluations that judge many together


class RandomSearch(Strategy):
    """Judges so many random architectures within the budget; by default as many as evolution does."""

    def __init__(self, problem: Problem, evaluations: int = 1000) -> None:
        super().__init__(problem)
        if evaluations < 1:
            raise UserError(f"evaluations is {evaluations}, expected at least 1")
        self.evaluations = evaluations

    @property
    def done(self) -> bool:
        return self.dry or len(self.candidates) >= self.evaluations

    def ask(self) -> list[Proposal]:
        return self.draw(min(BATCH, self.evaluations - len(self.candidates)))
