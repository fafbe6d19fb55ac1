"""What a training-free proxy is: a number read off a network that was never trained, hoped to rank accuracy."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module

from torch import nn

from nasformer.errors import UserError
from nasformer.proxies.lockstep import Lockstep
from nasformer.proxies.probe import Probe
from nasformer.space import Arch

ScoreFunction = Callable[[nn.Module, Probe], float]
ManyFunction = Callable[[Lockstep, Sequence[Arch], Probe], list[float]]

# One file a proxy (or a few of a kind). A new file is named here, and the conformance tests then cover it.
MODULES = (
    *("dss", "stream", "naswot", "te", "jacov", "zen", "counts", "az", "entropy", "entropic"),
    *("snip", "grasp", "synflow", "logsynflow", "grad_norm", "fisher", "zico", "autoprox"),
)
_PROXIES: dict[str, Proxy] = {}


class Inapplicable(Exception):
    """The proxy has nothing to say about this model; the message says why."""


@dataclass(frozen=True)
class Proxy:
    """A score of an untrained model, and what one must know to compare it with others' numbers.

    Args:
        name: What users type.
        score: Gets a model in evaluation mode, freshly initialised, which it may change at will, and a probe. Gives
            a number (larger is meant to be better), or raises `Inapplicable`.
        formula: The score in one line.
        sees: The input: nothing, ones, noise, or a labelled batch.
        loss: What is differentiated; "none" for scores without gradients.
        init: The weights: "own" is the model's own initialisation, otherwise what the proxy re-draws.
        higher: What a higher score is taken to mean.
        paper: Where it comes from.
        many: The same score for many archs of a space at once, where there is a faster way than one by one.
    """

    name: str
    score: ScoreFunction
    formula: str
    sees: str
    loss: str
    init: str
    higher: str
    paper: str
    many: ManyFunction | None = None


def proxy(
    name: str,
    *,
    formula: str,
    sees: str,
    higher: str,
    paper: str,
    loss: str = "none",
    init: str = "own",
    many: ManyFunction | None = None,
) -> Callable[[ScoreFunction], ScoreFunction]:
    """Registers a score function under a name; the fields are those of `Proxy`."""

    def register(score: ScoreFunction) -> ScoreFunction:
        if name in _PROXIES:
            raise ValueError(f"a proxy named {name!r} exists already")
        _PROXIES[name] = Proxy(name, score, formula, sees, loss, init, higher, paper, many)
        return score

    return register


def list_proxies() -> dict[str, Proxy]:
    """Every proxy there is, by name."""
    for module in MODULES:
        import_module(f"nasformer.proxies.{module}")
    return dict(sorted(_PROXIES.items()))  # in whatever order the files were imported


def get_proxies(names: str | Iterable[str]) -> list[Proxy]:
    """Proxies by name, as a list or as `dss,snip`.

    >>> [proxy.name for proxy in get_proxies("dss, dss-code")]
    ['dss', 'dss-code']
    >>> get_proxies("dsss")
    Traceback (most recent call last):
    nasformer.errors.UserError: unknown proxy 'dsss'; did you mean dss?
    """
    wanted = names.split(",") if isinstance(names, str) else list(names)
    wanted = list(dict.fromkeys(name.strip() for name in wanted if name.strip()))
    known = list_proxies()
    if not wanted:
        raise UserError(f"name at least one proxy; there are: {', '.join(known)}")
    for name in wanted:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are: {', '.join(known)}"
            raise UserError(f"unknown proxy {name!r}; {hint}")
    return [known[name] for name in wanted]
