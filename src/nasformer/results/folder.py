"""Run folders: the place of each file of a run, checks before writing, and the record of the command.

RUN/config.json            the options of the command, and versions
RUN/train/                 log.jsonl, checkpoints/
RUN/supernet/              the trained supernet
RUN/search/                journal.jsonl: every candidate; random.jsonl: those of a random search alongside;
                           workers.jsonl: events of workers, failures/: tracebacks of candidates that failed
RUN/result.json            the winner beside its references
RUN/model/                 the winner as an ordinary model
RUN/export/                the same for use elsewhere
RUN/baselines/NAME/        models of timm that were trained alongside
RUN/health.json            what `nasformer doctor` found
RUN/evolution.json, steps/ the search of a search space, each of its spaces a run folder
RUN/report.html, plots/, candidates.csv
RUN/pictures/              of other tasks than classification best, median and worst image, and each class
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from nasformer.data.options import DataOptions
from nasformer.errors import UserError
from nasformer.models.registry import SpaceOptions
from nasformer.models.space import Space
from nasformer.models.storage import CONFIG as MODEL_CONFIG, SUPERNET_CONFIG, WeightFacts
from nasformer.results.result import RunResult
from nasformer.search.options import BudgetOptions
from nasformer.space.arch import Arch
from nasformer.train.recipe import Recipe
from nasformer.utils.files import clear_drafts, locked, read_json, write_json
from nasformer.utils.plugins import __version__
from nasformer.utils.schema import from_json
from nasformer.utils.units import OptionGroup

# The config of a run (`config.json`), typed as far as later commands read it.


@dataclass
class RunConfig(DataOptions, SpaceOptions):
    """The config of a run: its images, its space, and the options of its stages."""

    kind: str | None = None
    """what the folder holds; folders of older versions do not say it"""
    train: Recipe = field(default_factory=Recipe)
    search: dict[str, Any] = field(default_factory=dict)
    budget: dict[str, str | float | None] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    """all of the file as it is, for reports"""

    @classmethod
    def load(cls, path: Path) -> RunConfig:
        """Reads a `config.json`; one of another shape is refused with the field that is wrong."""
        content = read_json(path)
        return from_json(cls, {**content, "settings": content}, path)

    def data_options(self) -> DataOptions:
        return DataOptions(**{item.name: getattr(self, item.name) for item in fields(DataOptions)})


Kind = Literal["supernet", "training-free", "model", "evolution"]
WORDS: dict[Kind, str] = {
    "supernet": "the run of a supernet",
    "training-free": "a search without training",
    "model": "the training of a single model",
    "evolution": "the search of a search space",
}


class RunFolder:
    """The folder of a run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config = self.path / "config.json"
        self.result = self.path / "result.json"
        self.train = self.path / "train"
        self.log = self.train / "log.jsonl"
        self.supernet = self.path / "supernet"
        self.journal = self.path / "search" / "journal.jsonl"
        self.workers = self.path / "search" / "workers.jsonl"
        self.random_journal = self.path / "search" / "random.jsonl"
        self.model = self.path / "model"
        self.export = self.path / "export"
        self.baselines = self.path / "baselines"
        self.health = self.path / "health.json"
        self.evolution = self.path / "evolution.json"
        self.report = self.path / "report.html"
        self.plots = self.path / "plots"
        self.pictures = self.path / "pictures"
        self.bad_images = self.path / "bad_images.txt"

    def __truediv__(self, name: str) -> RunFolder:
        return RunFolder(self.path / name)

    def __str__(self) -> str:
        return str(self.path)

    def lock(self, needed: bool = True) -> AbstractContextManager[None]:
        """Keeps other processes out of the folder."""
        return locked(self.path / ".lock", needed)

    def kind(self) -> Kind | None:
        """What kind of run the folder holds; None where it holds none. Folders of older versions do not say it."""
        if not self.config.exists():
            return None
        recorded: Any = self.read_config().kind
        if recorded in WORDS:
            return recorded
        if self.evolution.exists():
            return "evolution"
        if self.supernet.exists() or (self.train.exists() and self.journal.parent.exists()):
            return "supernet"
        if self.journal.exists():
            return "training-free"
        return "model" if self.result.exists() else "supernet" if self.train.exists() else None

    def check_own(self, kind: Kind) -> None:
        """Refuses a folder that holds anything but a run of this kind, before anything is written there."""
        if self.path.is_file():
            raise UserError(f"{self} is a file; name a folder with --out")
        held = self.kind()
        if held is not None and held != kind:
            raise UserError(f"{self} holds {WORDS[held]}; give another --out folder")
        if held is None and not is_empty(self.path):
            raise UserError(f"{self} holds other files and no run; give an empty or a new --out folder")

    def read_config(self) -> RunConfig:
        return RunConfig.load(self.config)

    def read_result(self) -> RunResult:
        if not self.result.exists():
            raise UserError(f"{self} has no search result yet; search it first, or name an architecture with --arch")
        return RunResult.load(self.result)

    def winner(self, space: Space) -> Arch:
        """The architecture that the run's search found in the space."""
        result = self.read_result()
        try:
            return space.arch(result.winner.arch)
        except UserError as error:
            raise UserError(f"{self.result}: the winner is no arch of {space.name} ({error})") from None

    def facts(self, *names: str) -> dict[str, Any]:
        """Facts on the weights of a run, supernet or model folder, such as the names of classes; all by default."""
        configs = (self.supernet / SUPERNET_CONFIG, self.path / SUPERNET_CONFIG, self.path / MODEL_CONFIG)
        path = next((path for path in configs if path.exists()), None)
        facts = vars(WeightFacts.load(path)) if path else {}
        return {name: value for name, value in facts.items() if value is not None and (name in names or not names)}

    def outputs(self) -> str:
        """The paths of model, export and report on one line."""
        paths = {"model": self.model, "export": self.export, "report": self.report}
        return "   ".join(f"{name}: {path}" for name, path in paths.items() if path.exists())

    def record(self, kind: Kind, command: OptionGroup, space: str) -> None:
        """Writes the options of a command into config.json; what they leave open stays as it was."""
        before = read_json(self.config) if self.config.exists() else {}
        write_json(self.config, {**merge(before, command), "kind": kind, "space": space, "versions": versions()})

    @contextmanager
    def recording(self, kind: Kind, command: OptionGroup, space: str) -> Iterator[None]:
        """Context that records a command, and takes the record back where the command is refused (UserError)."""
        before = read_json(self.config) if self.config.exists() else None
        clear_drafts(self.path)
        self.record(kind, command, space)
        try:
            yield
        except UserError:
            if before is not None:
                write_json(self.config, before)
            raise


def is_empty(folder: Path) -> bool:
    """Whether a folder has no files but hidden ones, such as a lock."""
    return not folder.exists() or not any(not item.name.startswith(".") for item in folder.iterdir())


def check_output(folder: str | Path, marker: str, option: str = "--out") -> Path:
    """Checks the output folder of a command that is no run: new, empty, or filled by the same command before.

    Args:
        marker: A file that the command writes, by which its own folder is known.
    """
    path = Path(folder)
    if path.is_file():
        raise UserError(f"{path} is a file; name a folder with {option}")
    if not is_empty(path) and ((path / "config.json").exists() or not (path / marker).exists()):
        raise UserError(f"{path} holds other files; give an empty or a new {option} folder")
    return path


def merge(config: dict[str, Any], command: OptionGroup) -> dict[str, Any]:
    """A config updated by the options of a command; what these leave open stays as it was."""
    options = {name: value for name, value in asdict(command).items() if name != "out"}
    if "search" in options:  # options of a strategy stand beside those of every search, as on the command line
        options["search"] |= options["search"].pop("options")
    merged = {
        **config,
        **{name: value for name, value in options.items() if value not in (None, {}) or name not in config},
    }
    if isinstance(command, BudgetOptions):  # a limit that is not given again no longer holds
        merged |= {limit.name: options[limit.name] for limit in fields(BudgetOptions)} | {"budget": command.limits()}
    return merged


def versions() -> dict[str, str]:
    packages = {name: version(name) for name in ("torch", "timm")}
    return {"nasformer": __version__, **packages, "python": platform.python_version()}
