"""Proxies: what a training-free score is, what it may show to a model, and the registry of all of them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from nasformer.errors import UserError
from nasformer.proxies.catalogue import parse_names
from nasformer.space.arch import Arch
from nasformer.utils.rng import generator

if TYPE_CHECKING:
    from nasformer.proxies.untrained import SideBySide


class Inapplicable(Exception):
    """Raised by a proxy that is not defined for a model; the message says why."""


@dataclass(frozen=True)
class Probe:
    """A labelled batch and a seed: all inputs of proxies, each a pure function of the seed.

    >>> probe = noise_probe((3, 8, 8), num_classes=10, batch_size=4, seed=1)
    >>> probe.images.shape, probe.ones().shape, torch.equal(probe.noise("a"), probe.noise("a"))
    (torch.Size([4, 3, 8, 8]), torch.Size([1, 3, 8, 8]), True)

    Args:
        images: Real images where there is data, else noise. All other inputs have their shape and device.
        labels: Their classes; random ones where there is no data.
        seed: What all further randomness of a proxy derives from.
    """

    images: Tensor
    labels: Tensor
    seed: int = 0

    @property
    def device(self) -> torch.device:
        return self.images.device

    def ones(self, batch: int = 1) -> Tensor:
        return torch.ones(batch, *self.images.shape[1:], device=self.device)

    def noise(self, label: str, at_most: int | None = None) -> Tensor:
        """N(0, 1) images, as many as in the batch but no more than `at_most`; others for each label."""
        batch = len(self.images) if at_most is None else min(at_most, len(self.images))
        return torch.randn((batch, *self.images.shape[1:]), generator=self.generator(label)).to(self.device)

    def generator(self, label: str) -> torch.Generator:
        """A generator on the CPU, so that every device sees the same numbers."""
        return generator(self.seed, zlib.crc32(label.encode()))


def noise_probe(
    shape: tuple[int, int, int],
    num_classes: int,
    batch_size: int = 64,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Probe:
    """The probe of a search without data: N(0, 1) images with uniformly random labels."""
    source = generator(seed, zlib.crc32(b"probe"))
    images = torch.randn(batch_size, *shape, generator=source)
    labels = torch.randint(num_classes, (batch_size,), generator=source)
    return Probe(images.to(device), labels.to(device), seed)


ScoreFunction = Callable[[nn.Module, Probe], float]
BatchScoreFunction = Callable[["SideBySide", Sequence[Arch], Probe], list[float]]


@dataclass(frozen=True)
class Proxy:
    """A score of an untrained model, and what one must know to compare it with others' numbers.

    Args:
        name: What users type.
        score: Gets a private copy of a model, in evaluation mode, which it may change at will, and a probe. Returns
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
    many: BatchScoreFunction | None = None


# The modules of this package that register proxies.
MODULES = ("az", "counts", "dss", "entropic", "naswot", "saliency", "synflow", "te", "zen")

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
        if name in _PROXIES and not _same_function(_PROXIES[name].score, score):
            raise UserError(f"there is a proxy named {name!r} already; register yours under another name")
        _PROXIES[name] = Proxy(name, score, formula, sees, loss, init, higher, paper, many)
        return score

    return register


def _same_function(a: ScoreFunction, b: ScoreFunction) -> bool:
    """Whether two functions are one, or come from the same place of a module that was imported again."""
    origins = [(getattr(each, "__module__", None), getattr(each, "__qualname__", each)) for each in (a, b)]
    return origins[0] == origins[1]


def list_proxies() -> dict[str, Proxy]:
    """All registered proxies, in alphabetical order."""
    for module in MODULES:
        import_module(f"nasformer.proxies.{module}")
    return dict(sorted(_PROXIES.items()))


def get_proxies(names: str | Iterable[str]) -> list[Proxy]:
    """Proxies by name, given as a list or as `dss,snip`.

    >>> [proxy.name for proxy in get_proxies("dss, dss-code")]
    ['dss', 'dss-code']
    """
    proxies = list_proxies()
    return [proxies[name] for name in parse_names(names, proxies)]
