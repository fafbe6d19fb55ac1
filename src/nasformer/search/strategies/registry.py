"""The strategies by name. A new one is one file and one line here; the conformance tests then cover it."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from nasformer.errors import UserError
from nasformer.search.strategies.base import Strategy
from nasformer.search.strategies.cyclic import Cyclic
from nasformer.search.strategies.evolution import Evolution
from nasformer.search.strategies.random import RandomSearch

STRATEGIES: dict[str, type[Strategy]] = {"random": RandomSearch, "evolution": Evolution, "cyclic": Cyclic}


def find_strategy(name: str) -> type[Strategy]:
    """The strategy of that name.

    >>> find_strategy("evo")
    Traceback (most recent call last):
    nasformer.errors.UserError: unknown strategy 'evo', did you mean 'evolution'? Known: random, evolution, cyclic
    """
    if name not in STRATEGIES:
        raise UserError(f"unknown strategy {_unknown(name, STRATEGIES)}")
    return STRATEGIES[name]


def complete_options(strategy: type[Strategy], options: Mapping[str, Any]) -> dict[str, Any]:
    """All options of a strategy, the given ones and the defaults of the others.

    >>> complete_options(RandomSearch, {})
    {'evaluations': 1000}
    """
    _problem, *parameters = inspect.signature(strategy).parameters.values()
    known = {parameter.name: parameter.default for parameter in parameters}
    for name in options:
        if name not in known:
            raise UserError(f"{strategy.__name__} has no option {_unknown(name, known)}")
    return {**known, **options}


def _unknown(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f", did you mean {close[0]!r}? Known: " if close else "; known: "
    return f"{name!r}{hint}{', '.join(known)}"
