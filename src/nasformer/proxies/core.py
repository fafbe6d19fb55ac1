"""What a proxy may show to a model: ones, noise or a labelled batch, each a pure function of the seed."""

from __future__ import annotations

import difflib
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from nasformer.errors import UserError
from nasformer.space.arch import Arch
from nasformer.utils.rng import generator

if TYPE_CHECKING:
    from nasformer.proxies.lockstep import Lockstep


@dataclass(frozen=True)
class Probe:
    """A labelled batch and a seed. All other inputs take shape and place from the batch.

    >>> probe = noise_probe((3, 8, 8), num_classes=10, batch_size=4, seed=1)
    >>> probe.images.shape, probe.ones().shape, torch.equal(probe.noise("a"), probe.noise("a"))
    (torch.Size([4, 3, 8, 8]), torch.Size([1, 3, 8, 8]), True)

    Args:
        images: Real images where there is data, else noise.
        labels: Their classes; random ones where there is no data.
        seed: What all further chance of a proxy derives from.
    """

    images: Tensor
    labels: Tensor
    seed: int = 0

    @property
    def device(self) -> torch.device:
        return self.images.device

    def ones(self, batch: int = 1) -> Tensor:
        return torch.ones(batch, *self.images.shape[1:], device=self.device)

    def noise(self, label: str, batch: int | None = None) -> Tensor:
        """N(0, 1) images, as many as in the batch unless told. Each label has its own."""
        size = (batch or len(self.images), *self.images.shape[1:])
        return torch.randn(size, generator=self.generator(label)).to(self.device)

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


# ----------------------------------------------------------------------------------------------------------------------
# What a training-free proxy is: a number read off a network that was never trained, hoped to rank accuracy.
# ----------------------------------------------------------------------------------------------------------------------

ScoreFunction = Callable[[nn.Module, Probe], float]
ManyFunction = Callable[["Lockstep", Sequence[Arch], Probe], list[float]]

# One file a proxy (or a few of a kind). A new file is named here, and the conformance tests then cover it.
MODULES = (
    "dss",
    "stream",
    "activations",
    "te",
    "zen",
    "counts",
    "az",
    "entropic",
    "gradient",
    "synflow",
    "zico",
    "autoprox",
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


# ----------------------------------------------------------------------------------------------------------------------
# Watching layers at work: what went into them and what came out.
# ----------------------------------------------------------------------------------------------------------------------


class Seen(NamedTuple):
    """One call of a layer; input and output are part of the autograd graph."""

    name: str
    module: nn.Module
    input: Tensor
    output: Tensor


@contextmanager
def watch(model: nn.Module, wanted: Callable[[str, nn.Module], bool]) -> Iterator[list[Seen]]:
    """Yields a list that fills up with the calls of the wanted layers, in the order of execution.

    >>> import torch
    >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    >>> with watch(net, lambda name, module: isinstance(module, nn.ReLU)) as seen:
    ...     _ = net(torch.ones(1, 2))
    >>> [call.name for call in seen], seen[0].output.shape
    (['1'], torch.Size([1, 3]))
    """
    seen: list[Seen] = []

    def hook_for(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        return lambda module, inputs, output: seen.append(Seen(name, module, inputs[0], output))

    handles = [
        module.register_forward_hook(hook_for(name)) for name, module in model.named_modules() if wanted(name, module)
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


# ----------------------------------------------------------------------------------------------------------------------
# The blocks of a network: the modules named ``blocks.3`` or ``stages.1.blocks.3``, as we and timm name them.
# ----------------------------------------------------------------------------------------------------------------------

_BLOCK = re.compile(r"(^|\.)blocks\.\d+$")


def is_block(name: str, module: nn.Module) -> bool:
    """Whether this is one of a numbered row of blocks.

    >>> [is_block(name, nn.Identity()) for name in ("blocks.3", "stages.1.blocks.3", "blocks.3.mlp", "blocks")]
    [True, True, False, False]
    """
    return _BLOCK.search(name) is not None


def require_blocks(model: nn.Module, least: int = 1) -> int:
    """The number of blocks; Inapplicable where there are fewer than the least."""
    count = sum(is_block(name, module) for name, module in model.named_modules())
    if count < least:
        raise Inapplicable(f"the model has {count} modules named blocks.<number>, and at least {least} are needed")
    return count


# ----------------------------------------------------------------------------------------------------------------------
# Which linear layers belong to attention and which to the feed-forward half of a block, in any transformer.
#
# By name, as timm and we write them: ``attn.qkv``, ``attn.proj``; ``mlp.fc1``, ``mlp.fc2``. The head, convolutions and
# what lies between stages belong to neither, as TF-TAS has it.
# ----------------------------------------------------------------------------------------------------------------------


def is_attention(name: str, module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) and _parent(name).endswith("attn")


def is_mlp(name: str, module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) and _parent(name).endswith("mlp")


def attention_linears(model: nn.Module) -> dict[str, nn.Linear]:
    """Queries, keys, values and output projections, by name."""
    return {name: module for name, module in model.named_modules() if is_attention(name, module)}  # type: ignore[misc]


def mlp_linears(model: nn.Module) -> dict[str, nn.Linear]:
    """The layers of the feed-forward halves, by name."""
    return {name: module for name, module in model.named_modules() if is_mlp(name, module)}  # type: ignore[misc]


def _parent(name: str) -> str:
    return name.rpartition(".")[0].rpartition(".")[2]
