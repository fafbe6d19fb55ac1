"""Strategy: what all search strategies share, random search, and the registry of strategies with their options."""

from __future__ import annotations

import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, get_type_hints

from nasformer.errors import UserError, suggest
from nasformer.search.problem import Candidate, Problem, Proposal
from nasformer.space.arch import Arch
from nasformer.utils.units import DeclaredOption

TRIES = 500  # consecutive duplicates before sampling counts as exhausted


class Strategy(ABC):
    """Proposes architectures and learns from their scores.

    `ask` gives a batch, which may be evaluated in any order or in parallel; `tell` takes the whole batch back, in
    the order asked, before the next `ask`. Candidates are numbered in the order told. All randomness comes from
    `self.rng`, so the same scores always lead to the same proposals: that is how a search is resumed.

    A subclass takes the problem and options with defaults, describes the options in the `Args:` of its docstring, and
    sets `evaluations`, the most it will ask for. `register_strategy` then makes it known to the command line.
    """

    evaluations: int
    asynchronous = False  # whether it can be told a part of a batch, and asked again before it knows the rest
    takes_ranks = True  # whether several objectives may count together, by their ranks (see `Problem.order`)

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.rng = problem.rng(type(self).__name__)
        self.candidates: list[Candidate] = []
        self.exhausted = False  # random sampling finds nothing new any more
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
            candidate = Candidate.from_proposal(len(self.candidates), proposal, scores)
            self.candidates.append(candidate)
            self.learn(candidate)

    def adopt(self, results: Sequence[tuple[Proposal, Mapping[str, float]]]) -> None:
        """Takes what an asynchronous search had evaluated before it was interrupted."""
        for proposal, _ in results:
            self.claim(proposal.arch)
        self.tell(results)

    def learn(self, candidate: Candidate) -> None:
        """Called with every candidate; for strategies that keep more than the list of them."""
        return

    def winner(self) -> Candidate:
        """The winner of the search."""
        return self.problem.winner(self.candidates)

    @property
    def note(self) -> str:
        """Why the search ended early; empty where it did not."""
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
        """Up to `count` new random architectures; fewer when they are exhausted."""
        drawn: list[Proposal] = []
        while len(drawn) < count and not self.exhausted:
            arch = self._new_sample()
            if arch is None:
                self.exhausted = True
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


def check_at_least(least: int, **options: int) -> None:
    """Refuses options below a minimum."""
    for name, value in options.items():
        if value < least:
            raise UserError(f"{name} is {value}, expected at least {least}")


# Random search: the baseline that every other strategy has to beat at the same number of evaluations.

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


# The registry: strategies by name, and the options that each declares.

_STRATEGIES: dict[str, type[Strategy]] = {}


def register_strategy(name: str, strategy: type[Strategy]) -> None:
    """Registers a strategy under a name, for `search` and the command line."""
    if (other := list_strategies().get(name, strategy)) is not strategy:
        raise ValueError(f"a strategy named {name!r} exists already: {other.__qualname__}")
    _STRATEGIES[name] = strategy


def list_strategies() -> dict[str, type[Strategy]]:
    """All strategies by name: ours, then those that were registered."""
    from nasformer.search.cyclic import Cyclic  # which are made of what stands above
    from nasformer.search.evolution import Evolution

    return {"random": RandomSearch, "evolution": Evolution, "cyclic": Cyclic, **_STRATEGIES}


def find_strategy(name: str) -> type[Strategy]:
    """The strategy of that name.

    >>> find_strategy("evo")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    nasformer.errors.UserError: unknown strategy 'evo'; there are: random, ...; one of your own ... --import MODULE
    """
    strategies = list_strategies()
    if name not in strategies:
        hint = suggest(name, strategies)
        raise UserError(f"unknown strategy {name!r}; {hint}; one of your own is known with --import MODULE")
    return strategies[name]


def strategy_options(strategy: type[Strategy]) -> list[DeclaredOption]:
    """The options of a strategy that can be given as text: all arguments but the problem and the seeds.

    >>> [option.name for option in strategy_options(find_strategy("cyclic"))]
    ['population', 'tournament', 'steps', 'cycles', 'mutation']
    >>> strategy_options(RandomSearch)[0].help
    'Candidates in all; the default is as many as evolution has.'
    """
    try:
        annotations = get_type_hints(strategy.__init__)
    except NameError:  # imported for type checkers alone
        annotations = strategy.__init__.__annotations__
    helps = argument_docs(strategy)
    return [
        DeclaredOption(name, annotations.get(name, Any), default, helps.get(name, ""))
        for name, default in _defaults(strategy).items()
        if name != "seeds"
    ]


def argument_docs(cls: type) -> dict[str, str]:
    """The texts below `Args:` in the docstrings of a class and its bases, by the name of the argument."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        section = inspect.cleandoc(base.__doc__ or "").partition("\nArgs:\n")[2]
        for name, text in re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section, re.MULTILINE):
            docs[name] = " ".join(text.split())
    return docs


def complete_options(strategy: type[Strategy], options: Mapping[str, Any]) -> dict[str, Any]:
    """All options of a strategy: those that are set, and defaults.

    >>> complete_options(RandomSearch, {})
    {'evaluations': 1000}
    """
    defaults = _defaults(strategy)
    for name in options:
        if name not in defaults:
            raise UserError(f"{strategy.__name__} has no option {name!r}; {suggest(name, defaults)}")
    return {**defaults, **options}


def _defaults(strategy: type[Strategy]) -> dict[str, Any]:
    _problem, *parameters = inspect.signature(strategy).parameters.values()
    return {parameter.name: parameter.default for parameter in parameters}
