"""Evolution, as AutoFormer searches its supernet (supplement, algorithm 2), with one objective or several.

Where the paper and the published code differ, or where the code has a defect, this is what we do:

- Mutation probabilities: the code redraws each gene of a layer with probability 0.2, depth and embedding with 0.4;
  the paper has depth 0.2 and each block 0.4. `mutation="code"` is the default, `"paper"` gives the other, and
  numbers or a `Mutation` any other.
- Crossover: the supplement takes one parent's whole block in each layer, the code mixes single genes. The
  code also looks for parents of equal depth and, when it finds none, builds a malformed child. We take whole
  blocks and the depth of one parent, which is valid for any two depths; the two parents always differ.
- Generations: the code evaluates one last generation that it never ranks (21 in all). Here, as in the algorithm,
  the random start is the first of `generations`, and whatever was evaluated can win.
- Both agree on the rest: parents are the best ever seen (not just of the last generation), children outside
  the budget or seen before are dropped. From the code: an operator gives up after ten times its quota of
  tries, and random architectures fill up the generation.
- Several objectives (NSGA-II's order of the parents) and `seeds` are our addition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nasformer.errors import UserError
from nasformer.search.pareto import make_archive
from nasformer.search.problem import Candidate, Problem, Proposal
from nasformer.search.strategy import Strategy, check_at_least
from nasformer.space.arch import Arch
from nasformer.space.mutation import Mutation, parse_mutation

TRIES_PER_CHILD = 10

Child = tuple[Arch, tuple[int, ...]]  # with the ids of its parents


class Evolution(Strategy):
    """Breeds each generation from the best candidates ever seen.

    Args:
        population: Candidates of a generation.
        generations: Generations, the random first one included.
        parents: How many of the best candidates ever seen breed.
        mutations: Children by mutation in a generation; None for half of the population.
        crossovers: Children by crossover in a generation; None for half of the population.
        mutation: AutoFormer's mutation probabilities: code as in its published code, paper as in its paper, or
            numbers for depth (P_d), embedding (P_e) and each gene of a block (P_m), such as
            depth=0.2,embed=0.4,gene=0.3; block=0.3 in place of gene redraws whole blocks.
        seeds: Architectures to start from, besides the random ones; they must fit the budget.
    """

    asynchronous = True

    def __init__(
        self,
        problem: Problem,
        population: int = 50,
        generations: int = 20,
        parents: int = 10,
        mutations: int | None = None,
        crossovers: int | None = None,
        mutation: str | Mutation = "code",
        seeds: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        super().__init__(problem)
        check_at_least(1, population=population, generations=generations, parents=parents)
        self.population, self.generations, self.parents = population, generations, parents
        self.mutations = population // 2 if mutations is None else mutations
        self.crossovers = population // 2 if crossovers is None else crossovers
        if min(self.mutations, self.crossovers) < 0 or self.mutations + self.crossovers > population:
            raise UserError(
                f"{self.mutations} mutations and {self.crossovers} crossovers do not fit a population "
                f"of {population}; lower them or raise the population"
            )
        self.mutation = parse_mutation(mutation)
        self.seeds = self.check_seeds(seeds)
        if len(self.seeds) > population:
            raise UserError(f"{len(self.seeds)} seeds do not fit a population of {population}; give fewer")
        self.evaluations = population * generations
        self.generation = 0
        self.archive = make_archive(problem, parents)
        self._stuck = False

    @property
    def done(self) -> bool:
        return self._stuck or self.generation >= self.generations

    def ask(self) -> list[Proposal]:
        batch = self._children() if self.generation else self._seed_proposals()
        batch += self.draw(self.population - len(batch), self.generation)
        self._stuck = not batch
        return batch

    def tell(self, results: Sequence[tuple[Proposal, Mapping[str, float]]]) -> None:
        super().tell(results)
        self.generation += 1

    def adopt(self, results: Sequence[tuple[Proposal, Mapping[str, float]]]) -> None:
        super().adopt(results)
        self.generation = -(-len(self.candidates) // self.population)

    def learn(self, candidate: Candidate) -> None:
        self.archive.add(candidate)

    def _seed_proposals(self) -> list[Proposal]:
        return [Proposal(arch, "seed") for arch in self.seeds if self.claim(arch)]

    def _children(self) -> list[Proposal]:
        parents = self.archive.best()
        children: list[Proposal] = []
        if parents:
            children += self._breed("mutation", self.mutations, lambda: self._mutate(parents))
        if len(parents) > 1:
            children += self._breed("crossover", self.crossovers, lambda: self._cross(parents))
        return children

    def _breed(self, origin: str, quota: int, make_child: Callable[[], Child]) -> list[Proposal]:
        children: list[Proposal] = []
        for _ in range(TRIES_PER_CHILD * quota):
            if len(children) == quota:
                break
            arch, parents = make_child()
            if self.claim(arch):
                children.append(Proposal(arch, origin, self.generation, parents))
        return children

    def _mutate(self, parents: Sequence[Candidate]) -> Child:
        parent = self.rng.choice(parents)
        return self.problem.node.mutate(parent.arch, self.rng, self.mutation), (parent.id,)

    def _cross(self, parents: Sequence[Candidate]) -> Child:
        a, b = self.rng.sample(parents, 2)
        return self.problem.node.cross(a.arch, b.arch, self.rng), (a.id, b.id)
