"""A strategy of your own: hill climbing. Its options are the arguments of its constructor."""

from __future__ import annotations

from nasformer import Problem, Proposal, Strategy, register_strategy


class HillClimbing(Strategy):
    """Moves to the best neighbour of the best architecture so far.

    Args:
        start: Random architectures to start from.
        steps: Moves.
        neighbours: Neighbours that are judged in a move.
    """

    def __init__(self, problem: Problem, start: int = 8, steps: int = 10, neighbours: int = 8) -> None:
        super().__init__(problem)
        self.start, self.steps, self.neighbours = start, steps, neighbours
        self.evaluations = start + steps * neighbours
        self.moves = -1
        self.stuck = False

    @property
    def done(self) -> bool:
        return self.stuck or self.moves >= self.steps

    def ask(self) -> list[Proposal]:
        self.moves += 1
        if self.moves == 0:
            return self.draw(self.start)
        best = self.winner()
        around = list(self.problem.node.neighbours(best.arch))
        self.rng.shuffle(around)
        new = [arch for arch in around if self.claim(arch)][: self.neighbours]
        self.stuck = not new
        return [Proposal(arch, "neighbour", self.moves, (best.id,)) for arch in new]


register_strategy("hill-climbing", HillClimbing)
