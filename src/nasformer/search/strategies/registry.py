"""Registry of the search strategies, and the options that each one declares."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

from nasformer.errors import UserError
from nasformer.search.strategies.base import RandomSearch, Strategy
from nasformer.search.strategies.cyclic import Cyclic
from nasformer.search.strategies.evolution import Evolution

_STRATEGIES: dict[str, type[Strategy]] = {}


def register_strategy(name: str, strategy: type[Strategy]) -> None:
    """Makes a strategy known by a name, to `search` and to the command line."""
    if _STRATEGIES.setdefault(name, strategy) is not strategy:
        raise ValueError(f"a strategy named {name!r} exists already: {_STRATEGIES[name].__qualname__}")


register_strategy("random", RandomSearch)
register_strategy("evolution", Evolution)
register_strategy("cyclic", Cyclic)


def list_strategies() -> dict[str, type[Strategy]]:
    """All strategies by name, in the order of registration."""
    return dict(_STRATEGIES)


def find_strategy(name: str) -> type[Strategy]:
    """The strategy of that name.

    >>> find_strategy("evo")
    Traceback (most recent call last):
    nasformer.errors.UserError: unknown strategy 'evo', did you mean 'evolution'? Known: random, evolution, cyclic
    """
    if name not in _STRATEGIES:
        raise UserError(f"unknown strategy {_suggest(name, _STRATEGIES)}")
    return _STRATEGIES[name]


@dataclass(frozen=True)
class StrategyOption:
    """One option of a strategy, as its constructor and its docstring declare it."""

    name: str
    annotation: Any
    default: Any
    help: str


def strategy_options(strategy: type[Strategy]) -> list[StrategyOption]:
    """The options of a strategy that can be given as text: all arguments but the problem and the seeds.

    >>> [option.name for option in strategy_options(Cyclic)]
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
        StrategyOption(name, annotations.get(name, Any), default, helps.get(name, ""))
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
    """All options of a strategy, the given ones and the defaults of the others.

    >>> complete_options(RandomSearch, {})
    {'evaluations': 1000}
    """
    defaults = _defaults(strategy)
    for name in options:
        if name not in defaults:
            raise UserError(f"{strategy.__name__} has no option {_suggest(name, defaults)}")
    return {**defaults, **options}


def _defaults(strategy: type[Strategy]) -> dict[str, Any]:
    _problem, *parameters = inspect.signature(strategy).parameters.values()
    return {parameter.name: parameter.default for parameter in parameters}


def _suggest(name: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f", did you mean {close[0]!r}? Known: " if close else "; known: "
    return f"{name!r}{hint}{', '.join(names)}"
