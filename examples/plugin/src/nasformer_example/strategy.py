"""A strategy of your own: hill climbing. Its options are the arguments of its constructor."""

from __future__ import annotations

from itertools import islice

from nasformer import Problem, Proposal, Strategy, register_strategy


class HillClimbing(Strategy):
    """Judges the neighbours of the best architecture so far; where none is new, random ones.

    Args:
        start: Random architectures to start from.
        moves: How often neighbours are judged.
        neighbours: How many of them in a move.
    """

    def __init__(self, problem: Problem, start: int = 8, moves: int = 10, neighbours: int = 8) -> None:
        super().__init__(problem)
        self.start, self.neighbours = start, neighbours
        self.evaluations = start + moves * neighbours
        self.move = 0

    @property
    def done(self) -> bool:
        return self.exhausted or len(self.candidates) >= self.evaluations

    def ask(self) -> list[Proposal]:
        if not self.candidates:
            return self.draw(self.start)
        self.move += 1
        near = self.near_the_best()
        return near + self.draw(self.neighbours - len(near), self.move)

    def near_the_best(self) -> list[Proposal]:
        """New neighbours of the best candidate; none as long as no score is finite."""
        best = next(iter(self.problem.best_first(self.candidates)), None)
        if best is None:
            return []
        around = list(self.problem.node.neighbours(best.arch))
        self.rng.shuffle(around)
        new = islice(filter(self.claim, around), self.neighbours)  # what is claimed must be proposed
        return [Proposal(arch, "neighbour", self.move, (best.id,)) for arch in new]


register_strategy("hill-climbing", HillClimbing)
