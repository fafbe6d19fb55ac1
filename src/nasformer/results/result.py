"""The result of a run (`result.json`): the winner beside its references, as typed values.

A run that searched with a supernet, one that searched without training and the training of a single model all end
with a `RunResult`; what does not apply to a run is None and left out of the file.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from html import escape
from pathlib import Path
from typing import Any

from nasformer.errors import UserError
from nasformer.latency.search import LatencyResult
from nasformer.search.problem import Candidate, ModelResult, shown_scores
from nasformer.space.arch import Arch
from nasformer.supernet.health import Alarm, SupernetHealth
from nasformer.utils.files import read_json, write_json
from nasformer.utils.schema import from_json, to_json
from nasformer.utils.tables import html_row, html_table

VERSION = 1
TRAINED = ("timm:", "full net")
"""How names of models begin that were trained on their own, not searched."""
AGREEMENT = "agreement"
"""The score of nets that are cut without training: how closely their answers match the full net's."""


@dataclass(frozen=True)
class FinishResult:
    """How the winner was finished: the choice, and the held-out accuracy of all that was tried."""

    chosen: str
    holdout_accuracy: dict[str, float]


@dataclass(frozen=True)
class ImageCounts:
    """The numbers of images and classes behind the accuracies; earlier versions did not count those to train."""

    holdout: int
    test: int
    classes: int
    train: int = 0


@dataclass(frozen=True)
class RunResult:
    """The result of a run.

    Args:
        space: The name of the space.
        data: The images, as they were named; None for a search without data.
        winner: The model that the run is about.
        references: What it has to beat: random archs, the smallest and largest in the budget, baselines.
        budget: The limits in words.
        proxies: The scores of a search without training.
        candidates: How many architectures a search without training judged.
        timm: Models of timm that fit the budget, with their costs alone.
        front: The Pareto front of the search, cheapest first.
        health: How the supernet's subnets compare.
        latency: The finalists as predicted and as measured, where the search went by a profile.
        note: Why the search ended early, or nothing.
        finished: The winner after a training of its own, which is what the run ships; winner and references have
            inherited weights.
        finish: What was tried for that.
        images: What the accuracies are from; None without data, and in results of older versions.
        sizes: Further nets of the front that the run ships, cheapest first; each is named by its folder.
        timing: How latencies of this result were measured, in words.
    """

    space: str
    data: str | None
    winner: ModelResult
    references: list[ModelResult] = field(default_factory=list)
    budget: str | None = None
    proxies: list[str] | None = None
    candidates: int | None = None
    timm: list[ModelResult] | None = None
    front: list[Candidate] | None = None
    health: SupernetHealth | None = None
    latency: LatencyResult | None = None
    note: str | None = None
    finished: ModelResult | None = None
    finish: FinishResult | None = None
    images: ImageCounts | None = None
    sizes: list[ModelResult] | None = None
    timing: str | None = None
    version: int = VERSION

    @property
    def models(self) -> list[ModelResult]:
        return [self.winner, *([self.finished] if self.finished else []), *self.references]

    @property
    def table(self) -> list[ModelResult]:
        """The models as tables show them: first what the run ships."""
        return sorted(self.models, key=lambda model: model is not self.shipped)

    def label(self, model: ModelResult) -> str:
        """The name of a model in tables; where others were trained on their own, inherited weights are marked."""
        if self.finished is None or model is self.finished or model.name.startswith(TRAINED):
            return model.name
        return f"{model.name} (inherited)"

    @property
    def shipped(self) -> ModelResult:
        """The model that the run ships."""
        return self.finished or self.winner

    @property
    def metric(self) -> str:
        """The metric on held-out and test images: accuracy, or the task's own."""
        names = [name.removeprefix("test_") for name in self.shipped.scores if name.startswith("test_")]
        first = sorted(names, key=lambda name: (name == AGREEMENT, name != "accuracy"))
        return first[0] if first else "accuracy"

    @property
    def trained(self) -> list[ModelResult]:
        """The references that were trained on their own."""
        return [model for model in self.references if model.name.startswith(TRAINED)]

    @property
    def random(self) -> list[ModelResult]:
        """The random archs among the references: `random`, `random 2`, ..."""
        return [model for model in self.references if model.name.split(" ")[0] == "random"]

    @property
    def arch(self) -> Arch:
        """The architecture of the winner."""
        return Arch.from_dict(self.winner.arch)

    def __repr__(self) -> str:
        scores = ", ".join(f"{name} {value:.5g}" for name, value in shown_scores(self.shipped.scores).items())
        on = f" on {self.data}" if self.data else ""
        return f"RunResult({self.space}{on}, {self.shipped.name}: {scores}; {len(self.references)} references)"

    def _repr_html_(self) -> str:
        """The models and their scores, for notebooks."""
        names = list(dict.fromkeys(name for model in self.models for name in shown_scores(model.scores)))
        rows = [html_row([self.label(model), *(f"{model.get(name):.5g}" for name in names)]) for model in self.models]
        title = f"{self.space} on {self.data}" if self.data else self.space
        return f"<div><b>{escape(title)}</b>{html_table(['model', *names], rows)}</div>"

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON; what does not apply to the run is left out."""
        content = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: to_json(value) for name, value in content.items() if value is not None or name == "data"}

    def save(self, path: Path) -> None:
        write_json(path, self.to_dict())

    @classmethod
    def load(cls, path: Path) -> RunResult:
        """Reads a `result.json`; one of another shape or of a newer version is refused with the field that is wrong."""
        content = read_json(path)
        version = content.get("version", VERSION)
        if isinstance(version, int) and version > VERSION:
            raise UserError(f"{path} was written by a newer nasformer (version {version}); update nasformer")
        return from_json(cls, content, path)


# The diagnosis of a supernet (`health.json`), as `nasformer doctor` finds it and the report draws it.


@dataclass(frozen=True)
class Snapshot:
    """The accuracies of the fixed subnets at a step of the training, by name."""

    step: int
    epoch: float | None
    subnets: dict[str, float]


@dataclass(frozen=True)
class Diagnosis:
    """The findings of `nasformer doctor`.

    Args:
        step: Of the last line of the log, at which all this was so.
        images: Which images the subnets were judged on.
        subnets: Those judged, each with its costs, depth, width and accuracy.
        correlations: Rank correlation of accuracy with depth and with width; None where one of them is constant.
        taus: Kendall's tau between the ranks of each snapshot and the next; None where all were alike.
        looks: The snapshots.
        alarms: What is wrong, with advice.
        baselines: Accuracies of simpler choices on the same images, by name.
        score: What stands for accuracy where another task than classification is learned.
    """

    step: int
    images: str
    subnets: list[ModelResult]
    correlations: dict[str, float | None]
    taus: list[float | None]
    looks: list[Snapshot]
    alarms: list[Alarm]
    baselines: dict[str, float] = field(default_factory=dict)
    score: str = "accuracy"

    def to_dict(self) -> dict[str, Any]:
        return {name: to_json(value) for name, value in vars(self).items()}

    def save(self, path: Path) -> None:
        write_json(path, self.to_dict())

    @classmethod
    def load(cls, path: Path) -> Diagnosis:
        return from_json(cls, read_json(path), path, remedy="run nasformer doctor again")
