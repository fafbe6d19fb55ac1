"""Registry of proxies: what a training-free score is, and the catalogue of all. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from nasformer.errors import UserError, suggest
from nasformer.utils.files import read_json, write_json
from nasformer.utils.units import OptionGroup, check_range, check_threads

if TYPE_CHECKING:
    from torch import nn

    from nasformer.proxies.parts import Probe
    from nasformer.proxies.untrained import SideBySide
    from nasformer.space.arch import Arch


class Inapplicable(Exception):
    """Raised by a proxy that is not defined for a model; the message says why."""


ScoreFunction = Callable[["nn.Module", "Probe"], float]
BatchScoreFunction = Callable[["SideBySide", Sequence["Arch"], "Probe"], list[float]]


@dataclass(frozen=True)
class ProxyEntry:
    """The facts about a proxy that decide whether its score can be compared with others' numbers.

    Args:
        formula: The score in one line.
        sees: The input: nothing, ones, noise, or a labelled batch.
        loss: What is differentiated; "none" for scores without gradients.
        init: The weights: "own" is the model's own initialisation, otherwise what the proxy re-draws.
        higher: What a higher score is taken to mean.
        paper: Where it comes from.
    """

    formula: str
    sees: str
    loss: str
    init: str
    higher: str
    paper: str

    def to_dict(self) -> dict[str, str]:
        return {field.name: getattr(self, field.name) for field in fields(ProxyEntry)}


@dataclass(frozen=True)
class Proxy(ProxyEntry):
    """A score of an untrained model.

    Args:
        name: What users type.
        score: Gets a private copy of a model, in evaluation mode, which it may change at will, and a probe. Returns
            a number (larger is meant to be better), or raises `Inapplicable`.
        many: The same score for many archs of a space at once, where there is a faster way than one by one.
    """

    name: str
    score: ScoreFunction
    many: BatchScoreFunction | None = None

    def entry(self) -> ProxyEntry:
        return ProxyEntry(**self.to_dict())


# The modules of this package that register proxies.
MODULES = ("counts", "dss", "entropy", "responses", "saliency")

CATALOGUE = Path(__file__).with_name("catalogue.json")
"""A JSON file of the built-in proxies, readable without importing torch; `make catalogue` writes it."""

_PROXIES: dict[str, Proxy] = {}


def register_proxy(
    name: str,
    *,
    formula: str,
    sees: str,
    higher: str,
    paper: str,
    loss: str = "none",
    init: str = "own",
    many: BatchScoreFunction | None = None,
) -> Callable[[ScoreFunction], ScoreFunction]:
    """Decorator that registers a score function as a proxy; the arguments are the fields of `Proxy`.

    A module of yours may use it as well. A name that another function has is refused.
    """

    def register(score: ScoreFunction) -> ScoreFunction:
        # Built-in names are taken, whether their modules were imported or not.
        plugin = not _origin(score)[0].startswith("nasformer.proxies.")
        taken = name in _PROXIES and _origin(_PROXIES[name].score) != _origin(score)
        if taken or (plugin and name in read_json(CATALOGUE)):
            raise UserError(f"there is a proxy named {name!r} already; register yours under another name")
        _PROXIES[name] = Proxy(formula, sees, loss, init, higher, paper, name, score, many)
        return score

    return register


def _origin(score: Any) -> tuple[str, Any]:
    """Module and name of a function: the same for one that was imported again."""
    function = getattr(score, "func", score)  # of a partial function
    return function.__module__, getattr(function, "__qualname__", function)


def registered_proxies() -> dict[str, Proxy]:
    """The proxies of all modules that were imported so far, in alphabetical order."""
    return dict(sorted(_PROXIES.items()))


def list_proxies() -> dict[str, Proxy]:
    """All proxies, in alphabetical order."""
    for module in MODULES:
        import_module(f"nasformer.proxies.{module}")
    return registered_proxies()


def get_proxies(names: str | Iterable[str]) -> list[Proxy]:
    """Proxies by name, given as a list or as `dss,snip`.

    >>> [proxy.name for proxy in get_proxies("dss, dss-code")]
    ['dss', 'dss-code']
    """
    proxies = list_proxies()
    return [proxies[name] for name in parse_names(names, proxies)]


def parse_names(names: str | Iterable[str], available: Collection[str]) -> list[str]:
    """Names of proxies, given as a list or as text such as `dss,snip`, each once; UserError for an unknown one.

    >>> parse_names("dss, snip, dss", ["dss", "snip"])
    ['dss', 'snip']
    >>> parse_names("dsss", ["dss", "snip"])
    Traceback (most recent call last):
    nasformer.errors.UserError: unknown proxy 'dsss'; did you mean dss?
    """
    listed = names.split(",") if isinstance(names, str) else names
    unique = list(dict.fromkeys(name.strip() for name in listed if name.strip()))
    if not unique:
        raise UserError(f"name at least one proxy; there are: {', '.join(available)}")
    for name in unique:
        if name not in available:
            raise UserError(f"unknown proxy {name!r}; {suggest(name, available)}")
    return unique


def catalogue(names: str | None = None) -> dict[str, ProxyEntry]:
    """An entry for each built-in proxy, then for each proxy that a plugin has registered so far, or for some by name.

    >>> catalogue("dss")["dss"].loss
    'sum of the logits'
    """
    entries = {name: ProxyEntry(**entry) for name, entry in read_json(CATALOGUE).items()}
    for name, proxy in registered_proxies().items():
        entries.setdefault(name, proxy.entry())
    return {name: entries[name] for name in parse_names(names, entries)} if names else entries


def write_catalogue() -> None:
    """Writes the built-in proxies into the catalogue."""
    write_json(CATALOGUE, {name: proxy.to_dict() for name, proxy in list_proxies().items()})


# Options of the commands that score by proxies.


MAX_PROBE_SIZE, MAX_IMG_SIZE = 4096, 2**14


@dataclass
class ProbeOptions(OptionGroup):
    """What proxies are shown, and how often."""

    proxy: str = ""
    """training-free scores, such as dss or dss,naswot; see `nasformer proxies`"""
    repeats: int = 1
    """seeds to average over, each with other weights and another batch"""
    probe_size: int = 64
    """images of the batch that is shown"""
    probe_img_size: int | None = None
    """side of these images, where smaller ones will do; costs stay those of the model's own size"""
    threads: int | Literal["auto"] = "auto"
    """threads of the CPU for each operation; auto: one for proxies; for a supernet's archs those of its training"""

    def __post_init__(self) -> None:
        check_range(self, "repeats", 1)
        check_threads(self)
        check_range(self, "probe_size", 1, MAX_PROBE_SIZE)
        check_range(self, "probe_img_size", 1, MAX_IMG_SIZE, optional=True)
        super().__post_init__()

    def probing(self) -> dict[str, int | None]:
        """The arguments of a `Scorer`."""
        threads = None if self.threads == "auto" else self.threads
        sizes = {"batch_size": self.probe_size, "img_size": self.probe_img_size}
        return {"repeats": self.repeats, **sizes, "threads": threads}
