"""Scoring: archs of a space, or any classifier, by proxies."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import nn

from nasformer.data.loaders import BatchSource
from nasformer.errors import UserError
from nasformer.models.dense import backbone_space
from nasformer.models.space import Space
from nasformer.proxies.parts import Probe, noise_probe
from nasformer.proxies.registry import Inapplicable, Proxy, get_proxies
from nasformer.proxies.untrained import SideBySide, UntrainedLayers
from nasformer.space.arch import Arch
from nasformer.utils.device import cpu_threads
from nasformer.utils.rng import mix


@dataclass(frozen=True)
class Score:
    """The score of a model by a proxy: one value a repeat; none, and the reason, where the proxy does not apply."""

    values: tuple[float, ...]
    seconds: float
    reason: str = ""

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values) if self.values else math.nan

    @property
    def std(self) -> float:
        """The spread over the repeats; 0 for a single one."""
        if not all(map(math.isfinite, self.values)):
            return math.nan
        return statistics.stdev(self.values) if len(self.values) > 1 else 0.0

    def to_dict(self) -> dict[str, Any]:
        """As JSON, with None for what is not finite."""
        mean, std, *values = (value if math.isfinite(value) else None for value in (self.mean, self.std, *self.values))
        reason = {"not_applicable": self.reason} if self.reason else {}
        return {"mean": mean, "std": std, "values": values, "seconds": self.seconds, **reason}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Score:
        """Reads a score; KeyError, TypeError or ValueError for anything else."""
        values, seconds = content["values"], content["seconds"]
        if not isinstance(values, list) or any(isinstance(value, bool | str) for value in (*values, seconds)):
            raise ValueError("values or seconds are no numbers")
        numbers = tuple(math.nan if value is None else float(value) for value in values)
        return cls(numbers, float(seconds), str(content.get("not_applicable", "")))


def score_model(model: nn.Module, proxies: str | Iterable[str], probe: Probe) -> dict[str, Score]:
    """Scores any classifier as it is, with the weights it has; it is left untouched.

    >>> import timm
    >>> model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2, num_classes=10)
    >>> sorted(score_model(model, "dss,snip", noise_probe((3, 32, 32), num_classes=10, batch_size=4)))
    ['dss', 'snip']
    """
    return {proxy.name: _timed(proxy, model, probe) for proxy in get_proxies(proxies)}


def _timed(proxy: Proxy, model: nn.Module, probe: Probe) -> Score:
    start = time.perf_counter()
    private = deepcopy(model).eval().requires_grad_()
    try:
        value = proxy.score(private, probe)
    except Inapplicable as why:
        return Score((), time.perf_counter() - start, str(why))
    return Score((value,), time.perf_counter() - start)


class Trial:
    """One repeat: untrained layers, of which the archs are made, and a probe."""

    def __init__(self, space: Space, probe: Probe) -> None:
        self.probe = probe
        self.layers = UntrainedLayers(space, probe.seed, probe.device)
        self.nets = SideBySide(self.layers)

    def to(self, device: torch.device | str) -> Trial:
        """The same repeat on another device."""
        images, labels = (tensor.to(device) for tensor in (self.probe.images, self.probe.labels))
        return Trial(self.layers.space, Probe(images, labels, self.probe.seed))

    def __reduce__(self) -> tuple[Any, ...]:
        # Layers follow from the seed, so other processes draw their own.
        return Trial, (self.layers.space, self.to("cpu").probe)

    def score(self, proxies: Sequence[Proxy], archs: Sequence[Arch]) -> list[dict[str, Score]]:
        """The scores of each arch by proxy."""
        together = {proxy.name: self._score_together(proxy, archs) for proxy in proxies if proxy.many}
        alone = [proxy for proxy in proxies if not proxy.many]
        rows = []
        for index, arch in enumerate(archs):
            row = {name: scores[index] for name, scores in together.items()}
            if alone:
                model = self.layers.model(arch)
                row |= {proxy.name: _timed(proxy, model, self.probe) for proxy in alone}
            rows.append(row)
        return rows

    def _score_together(self, proxy: Proxy, archs: Sequence[Arch]) -> list[Score]:
        start = time.perf_counter()
        try:
            values = proxy.many(self.nets, archs, self.probe) if proxy.many else []
        except Inapplicable as why:
            return [Score((), 0.0, str(why))] * len(archs)
        seconds = (time.perf_counter() - start) / max(len(archs), 1)
        # Where there is no number, the arch alone tells why.
        return [
            Score((value,), seconds) if math.isfinite(value) else _timed(proxy, self.layers.model(arch), self.probe)
            for arch, value in zip(archs, values, strict=True)
        ]


class Scorer:
    """Scores archs of a space by proxies; as the evaluation of a search it gives their means.

    Of models for another task than classification it scores the backbones, with a classifier; costs count their heads.

    >>> import nasformer
    >>> space = nasformer.get_space("autoformer-micro")
    >>> scorer = Scorer(space, "dss,params", repeats=2)
    >>> arch = space.sample(seed=0)
    >>> scorer.score(arch)["params"].mean == space.cost(arch).params
    True

    Args:
        proxies: Names, as a list or as ``dss,snip``.
        batches: Images to show where a proxy wants a labelled batch; None shows noise with random labels.
        batch_size: How many of them.
        img_size: Side of the images that proxies see, where a smaller one will do; None: the space's.
        repeats: Seeds to average over, each with other weights and another probe.
        threads: Threads of an operation on the CPU; None: one. More gain little for such nets, and cost much where
            other programs run, since threads wait for each other. DSS of an AutoFormer-T net on two cores: 0.37 s with
            one thread and 0.30 s with two; beside three busy programs 0.86 s and 3.2 s. Scores depend on it by
            rounding.
    """

    def __init__(
        self,
        space: Space,
        proxies: str | Iterable[str],
        *,
        batches: BatchSource | None = None,
        batch_size: int = 64,
        img_size: int | None = None,
        repeats: int = 1,
        seed: int = 0,
        device: torch.device | str = "cpu",
        threads: int | None = None,
    ) -> None:
        self.space, self.proxies, self.threads = space, get_proxies(proxies), threads or 1
        self.settings = {
            "space": space.name,
            "model_options": dict(space.options),
            "proxies": [proxy.name for proxy in self.proxies],
            "repeats": repeats,
            "probe_size": batch_size,
            "weights_seed": seed,
        }
        if img_size is not None:
            self.settings["probe_img_size"] = img_size
            space = self._for_images_of(img_size, batches)
        if space.model.task != "classify":
            space = self._backbones_of(space)
        if self.threads != 1:
            self.settings["threads"] = self.threads  # sums are rounded otherwise, by 1e-8 or so
        if batches is None:
            space.plan(space.root.smallest())  # refuses images that it cannot have, before they fill the memory
            seeds = [mix(seed, repeat) for repeat in range(repeats)]
            probes = [noise_probe(*image_shape(space), batch_size, each, device) for each in seeds]
        else:
            probes = data_probes(batches, batch_size, repeats, seed)
        self.trials = [Trial(space, probe) for probe in probes]

    def _for_images_of(self, img_size: int, batches: BatchSource | None) -> Space:
        """The space for the smaller images that proxies see; costs stay those of the full size."""
        if batches is not None:
            raise UserError("probe_img_size does not go with data, whose images have a size; leave one of them out")
        if any(proxy.name == "macs" for proxy in self.proxies):
            raise UserError("macs go by the size of the images, which probe_img_size changes; leave one of them out")
        return self.space.with_options(img_size=img_size)

    def _backbones_of(self, space: Space) -> Space:
        if costs := [proxy.name for proxy in self.proxies if proxy.name in ("params", "macs")]:
            raise UserError(
                f"proxies see backbones, whose {costs[0]} are not those of nets with a head; leave {costs[0]} out, and "
                f"give --max-{costs[0]} or --search.objectives"
            )
        return backbone_space(space)

    @property
    def device(self) -> torch.device:
        return self.trials[0].probe.device

    def to(self, device: torch.device | str) -> Scorer:
        """The same scores on another device."""
        other = copy(self)
        other.trials = [trial.to(device) for trial in self.trials]
        return other

    def score(self, arch: Arch) -> dict[str, Score]:
        return self.score_many([arch])[0]

    def score_many(self, archs: Sequence[Arch]) -> list[dict[str, Score]]:
        """The scores of each arch by proxy, in the order of the proxies."""
        with cpu_threads(self.threads):
            trials = [trial.score(self.proxies, archs) for trial in self.trials]
        names = [proxy.name for proxy in self.proxies]
        return [{name: merge([row[name] for row in rows]) for name in names} for rows in zip(*trials, strict=True)]

    def __call__(self, arch: Arch) -> dict[str, float]:
        return self.many([arch])[0]

    def many(self, archs: Sequence[Arch]) -> list[dict[str, float]]:
        """Means by name, and standard deviations where there are repeats."""
        rows = []
        for scores in self.score_many(archs):
            means = {name: score.mean for name, score in scores.items()}
            stds = {f"{name}_std": score.std for name, score in scores.items() if len(self.trials) > 1}
            rows.append(means | stds)
        return rows


def merge(repeats: Sequence[Score]) -> Score:
    """One score of several repeats; the reason stands only where none of them has a value."""
    values = tuple(value for score in repeats for value in score.values)
    return Score(values, statistics.fmean(score.seconds for score in repeats), "" if values else repeats[0].reason)


def image_shape(space: Space) -> tuple[tuple[int, int, int], int]:
    """Channels, height and width of the images of a space's models, and their number of classes."""
    return space.image_shape, space.full_options["num_classes"]


def data_probes(batches: BatchSource, batch_size: int, repeats: int, seed: int) -> list[Probe]:
    """A labelled batch a repeat, from the training images."""
    return [
        Probe(images[:batch_size], targets[:batch_size].argmax(1), mix(seed, repeat))
        for repeat, (images, targets) in enumerate(islice(batches.train_batches(0), repeats))
    ]
