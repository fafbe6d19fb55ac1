"""Cyclic search, after Entropic Score (Cavagnero et al., 2023): topology and size are evolved by turns.

A topology phase redraws genes of the topology alone, to raise the first objective; a size phase those of the size, to
raise the second; the best of a phase is where the next one starts. The paper says that much (entropic score, then
LogSynflow). Its inner search is unpublished; ours is that of the authors' FreeREA: a tournament in a population, its
two best give a mutant each and a child together, what does not fit the budget is dropped, the oldest make room. Ours
are the numbers, the start of each population (mutants of the incumbent), and the end: a cycle that changes nothing.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from nasformer.errors import UserError
from nasformer.search.problem import Candidate, Problem, Proposal
from nasformer.search.strategies.base import Strategy
from nasformer.search.strategies.evolution import TRIES_PER_CHILD, Child, find_mutation
from nasformer.space.arch import Arch
from nasformer.space.genes import ROLES, Role, same_role
from nasformer.space.node import Mutation

CHILDREN = 3  # of a step: two mutants and their parents' child


class Cyclic(Strategy):
    """Alternates between the topology and the size of one architecture, the incumbent, which wins in the end.

    The problem has two objectives, the score of the topology and the score of the size. Candidates have the origin
    "start", "topology" or "size", and as generation the number of their phase: 0 for the start, then 1 for topology,
    2 for size, 3 for topology and so on. No architecture is judged twice: one that comes up again in a later phase
    takes part with the scores it has.

    Args:
        population: Architectures that a phase breeds from; the oldest leave it.
        tournament: How many of them, drawn at random, compete in a step.
        steps: Steps of a phase, after its first population.
        cycles: The most cycles, each of a topology and a size phase.
        mutation: Chances as in `Evolution`; the phase adds the role.
        seeds: Architectures to start from, of which the best by the first objective is taken; none: a random one.
    """

    takes_ranks = False

    def __init__(
        self,
        problem: Problem,
        population: int = 25,
        tournament: int = 5,
        steps: int = 10,
        cycles: int = 8,
        mutation: str | Mutation = "code",
        seeds: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        super().__init__(problem)
        _check(problem)
        least = {"population": 2, "tournament": 2, "steps": 1, "cycles": 1}
        given = {"population": population, "tournament": tournament, "steps": steps, "cycles": cycles}
        for name, value in given.items():
            if value < least[name]:
                raise UserError(f"{name} is {value}, expected at least {least[name]}")
        self.population, self.tournament, self.steps, self.cycles = population, tournament, steps, cycles
        self.mutation, self.seeds = find_mutation(mutation), self.check_seeds(seeds)
        self.evaluations = len(self.seeds) + population + cycles * 2 * (population - 1 + CHILDREN * steps)
        self.cycle = 0
        self.incumbent: Candidate | None = None
        self.known: dict[Arch, Candidate] = {}
        self._batches, self._over = self._play(), False

    @property
    def done(self) -> bool:
        return self._over

    def ask(self) -> list[Proposal]:
        batch = next(self._batches, [])
        self._over = not batch
        return batch

    def tell(self, results: Sequence[tuple[Proposal, Mapping[str, float]]]) -> None:
        super().tell(results)
        for candidate in self.candidates[len(self.candidates) - len(results) :]:
            self.known[candidate.arch] = candidate

    def winner(self) -> Candidate:
        """The last incumbent: good in both, though another may be better by one of the objectives alone."""
        return self.incumbent or super().winner()

    @property
    def note(self) -> str:
        if not self.done or not self.incumbent or self.cycle == self.cycles:
            return ""
        return f"stopped after cycle {self.cycle} of {self.cycles}, which changed nothing"

    def _play(self) -> Generator[list[Proposal], None, None]:
        """The whole search; it waits at every batch until that is told."""
        self.incumbent = yield from self._start()
        before = None
        while self.incumbent and self.incumbent is not before and self.cycle < self.cycles:
            before = self.incumbent
            self.cycle += 1
            for role in ROLES:
                phase = _Phase(self, role, self.incumbent)
                yield from phase.play()
                self.incumbent = phase.best

    def _start(self) -> Generator[list[Proposal], None, Candidate | None]:
        """A first architecture with sound scores; random ones are tried one by one."""
        batch = [Proposal(arch, "start") for arch in self.seeds if self.claim(arch)] or self.draw(1)
        for _ in range(self.population):
            yield [replace(proposal, origin="start") for proposal in batch]
            if sound := self.problem.sound(self.candidates):
                return self.problem.winner(sound)
            batch = self.draw(1)
        return None


class _Phase:
    """The evolution of one role's genes, from an incumbent whose other genes are frozen."""

    def __init__(self, search: Cyclic, role: Role, incumbent: Candidate) -> None:
        self.search, self.role, self.incumbent = search, role, incumbent
        self.frozen: Role = "size" if role == "topology" else "topology"
        self.generation = 2 * search.cycle - (role == "topology")
        self.mutation = replace(search.mutation, role=role)
        objective = search.problem.objectives[ROLES.index(role)]
        self.problem = replace(search.problem, objectives=(objective,))
        self.living = [incumbent]  # the oldest first
        self.best = incumbent
        self.met = {incumbent.arch}

    def play(self) -> Generator[list[Proposal], None, None]:
        yield from self._settle([self._mutant(self.incumbent) for _ in range(self.search.population - 1)])
        for _ in range(self.search.steps):
            yield from self._settle(self._step())

    def _step(self) -> list[Child | None]:
        drawn = self.search.rng.sample(self.living, min(self.search.tournament, len(self.living)))
        parents = self.problem.best_first(drawn)[:2]
        children = [self._mutant(parent) for parent in parents]
        return [*children, self._crossing(*parents)] if len(parents) == 2 else children

    def _mutant(self, parent: Candidate) -> Child | None:
        for _ in range(TRIES_PER_CHILD):
            arch = self.problem.node.mutate(parent.arch, self.search.rng, self.mutation)
            if self._takes(arch):
                return arch, (parent.id,)
        return None

    def _crossing(self, a: Candidate, b: Candidate) -> Child | None:
        for _ in range(TRIES_PER_CHILD):
            arch = self.problem.node.cross(a.arch, b.arch, self.search.rng)
            if self._takes(arch):
                return arch, (a.id, b.id)
        return None

    def _takes(self, arch: Arch) -> bool:
        """Takes what this phase has not met, what fits the budget and what keeps the frozen genes.

        A single mutation keeps them, yet a gene can vanish with an option or a layer and come back otherwise.
        """
        if arch in self.met or not self.problem.fits(arch):
            return False
        if not same_role(self.problem.node, arch, self.incumbent.arch, self.frozen):
            return False
        self.met.add(arch)
        return True

    def _settle(self, children: Sequence[Child | None]) -> Generator[list[Proposal], None, None]:
        """Has the new ones judged, then lets all that are sound into the population."""
        born = [child for child in children if child]
        known = self.search.known
        batch = [Proposal(arch, self.role, self.generation, parents) for arch, parents in born if arch not in known]
        if batch:
            yield batch
        sound = self.search.problem.sound([known[arch] for arch, _ in born])
        self.best = self.problem.best_first([self.best, *sound])[0]
        self.living = [*self.living, *sound][-self.search.population :]


def _check(problem: Problem) -> None:
    """Refuses problems that a cyclic search has no answer to."""
    if len(problem.objectives) != 2 or problem.order != "pareto":
        given = ", ".join(problem.objectives) + (" by ranks" if problem.order == "ranks" else "")
        raise UserError(
            "a cyclic search needs two objectives, the score of the topology and then that of the size, such as "
            f"entropic,logsynflow; got {given}"
        )
    if all(high is None for _, high in problem.budget.limits().values()):
        raise UserError(
            "a cyclic search needs an upper limit, for scores of the size grow with the net: give --max-params or "
            "--max-macs"
        )
    if missing := [role for role in ROLES if role not in problem.node.roles()]:
        raise UserError(
            f"a cyclic search alternates between topology and size, but the space has no {missing[0]} to choose; "
            "use another space or --search.strategy evolution"
        )
