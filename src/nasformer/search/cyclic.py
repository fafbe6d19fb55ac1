"""Cyclic search, after Entropic Score (Cavagnero et al., 2023): topology and size are evolved in turns.

A topology phase redraws genes of the topology alone, to raise the first objective; a size phase those of the size, to
raise the second; the best of a phase is where the next one starts. The paper says that much (entropic score, then
LogSynflow). Its inner search is unpublished; ours is that of the authors' FreeREA: a tournament in a population, its
two best give a mutant each and a child together, what does not fit the budget is dropped, the oldest leave. The
numbers, the start of each population (mutants of the incumbent) and the end (a cycle that changes nothing) are our
choice.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from nasformer.errors import UserError
from nasformer.search.evolution import TRIES_PER_CHILD, Child
from nasformer.search.problem import Candidate, Problem, Proposal
from nasformer.search.strategy import Strategy, check_at_least
from nasformer.space.arch import Arch
from nasformer.space.mutation import ROLES, Mutation, Role, parse_mutation, same_role

CHILDREN = 3  # of a step: two mutants and their parents' child

Batches = Generator[list[Proposal], None, None]  # resumed when the scores of a batch are known


class Cyclic(Strategy):
    """Alternates between the topology and the size of one architecture, the incumbent, which wins in the end.

    The problem has two objectives, the score of the topology and the score of the size. Candidates have the origin
    "start", "topology" or "size", and as generation the number of their phase: 0 for the start, then 1 for topology,
    2 for size, 3 for topology and so on. No architecture is evaluated twice: one that comes up again in a later phase
    takes part with the scores it has.

    Args:
        population: Architectures that a phase breeds from; the oldest leave it.
        tournament: How many of them, drawn at random, compete in a step.
        steps: Steps of a phase, after its first population; each has up to three children.
        cycles: The most cycles, each of a topology and a size phase; one that changes nothing is the last.
        mutation: Mutation probabilities as those of evolution: code, paper, or numbers such as
            depth=0.2,embed=0.4,gene=0.3; a phase applies them to the genes of its role.
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
        _check_problem(problem)
        check_at_least(2, population=population, tournament=tournament)
        check_at_least(1, steps=steps, cycles=cycles)
        self.population, self.tournament, self.steps, self.cycles = population, tournament, steps, cycles
        self.mutation, self.seeds = parse_mutation(mutation), self.check_seeds(seeds)
        self.evaluations = len(self.seeds) + population + cycles * 2 * (population - 1 + CHILDREN * steps)
        self.cycle = 0
        self.incumbent: Candidate | None = None
        self.evaluated: dict[Arch, Candidate] = {}
        self._batches, self._done = self._run(), False

    @property
    def done(self) -> bool:
        return self._done

    def ask(self) -> list[Proposal]:
        batch = next(self._batches, [])
        self._done = not batch
        return batch

    def learn(self, candidate: Candidate) -> None:
        self.evaluated[candidate.arch] = candidate

    def winner(self) -> Candidate:
        """The last incumbent: good in both, though another may be better by one of the objectives alone."""
        return self.incumbent or super().winner()

    @property
    def note(self) -> str:
        if not self.done or not self.incumbent or self.cycle == self.cycles:
            return ""
        return f"stopped after cycle {self.cycle} of {self.cycles}, which changed nothing"

    def _run(self) -> Batches:
        """The whole search."""
        self.incumbent = yield from self._start()
        before = None
        while self.incumbent and self.incumbent is not before and self.cycle < self.cycles:
            before = self.incumbent
            self.cycle += 1
            for role in ROLES:
                phase = _Phase(self, role, self.incumbent)
                yield from phase.run()
                self.incumbent = phase.best

    def _start(self) -> Generator[list[Proposal], None, Candidate | None]:
        """A first architecture with finite scores; random ones are tried one by one."""
        batch = [Proposal(arch, "start") for arch in self.seeds if self.claim(arch)] or self.draw(1)
        for _ in range(self.population):
            yield [replace(proposal, origin="start") for proposal in batch]
            if finite := self.problem.finite(self.candidates):
                return self.problem.winner(finite)
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
        self.population = [incumbent]  # the oldest first
        self.best = incumbent
        self.seen = {incumbent.arch}

    def run(self) -> Batches:
        yield from self._evaluate([self._mutate(self.incumbent) for _ in range(self.search.population - 1)])
        for _ in range(self.search.steps):
            yield from self._evaluate(self._breed())

    def _breed(self) -> list[Child | None]:
        drawn = self.search.rng.sample(self.population, min(self.search.tournament, len(self.population)))
        parents = self.problem.best_first(drawn)[:2]
        children = [self._mutate(parent) for parent in parents]
        return [*children, self._cross(*parents)] if len(parents) == 2 else children

    def _mutate(self, parent: Candidate) -> Child | None:
        for _ in range(TRIES_PER_CHILD):
            arch = self.problem.node.mutate(parent.arch, self.search.rng, self.mutation)
            if self._claim(arch):
                return arch, (parent.id,)
        return None

    def _cross(self, a: Candidate, b: Candidate) -> Child | None:
        for _ in range(TRIES_PER_CHILD):
            arch = self.problem.node.cross(a.arch, b.arch, self.search.rng)
            if self._claim(arch):
                return arch, (a.id, b.id)
        return None

    def _claim(self, arch: Arch) -> bool:
        """Takes an architecture if it is new in this phase, fits the budget and keeps the frozen genes.

        A single mutation keeps them, yet a gene can vanish with an option or a layer and come back with another value.
        """
        if arch in self.seen or not self.problem.fits(arch):
            return False
        if not same_role(self.problem.node, arch, self.incumbent.arch, self.frozen):
            return False
        self.seen.add(arch)
        return True

    def _evaluate(self, children: Sequence[Child | None]) -> Batches:
        """Asks for the scores of the new ones, then lets all with finite scores into the population."""
        new = [child for child in children if child]
        evaluated = self.search.evaluated
        batch = [Proposal(arch, self.role, self.generation, parents) for arch, parents in new if arch not in evaluated]
        if batch:
            yield batch
        finite = self.search.problem.finite([evaluated[arch] for arch, _ in new])
        self.best = self.problem.best_first([self.best, *finite])[0]
        self.population = [*self.population, *finite][-self.search.population :]


def _check_problem(problem: Problem) -> None:
    """Refuses problems that a cyclic search cannot solve."""
    if len(problem.objectives) != 2 or problem.order != "pareto":
        objectives = ", ".join(problem.objectives) + (" by ranks" if problem.order == "ranks" else "")
        raise UserError(
            "a cyclic search needs two objectives, the score of the topology and then that of the size, such as "
            f"entropic,logsynflow; got {objectives}"
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
