"""Tracking of a run by MLflow or Weights & Biases, through their own clients.

A thread reads what the run writes (the log of its training, the journal of its search, its result) and passes on what
is new; so training and search do not wait for a server, and what is tracked is what the run folder has.
RUN/tracking.json remembers the tracker's run and how much of each file was passed on: a command that goes on after a
kill goes on there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Protocol

from nasformer.errors import UserError
from nasformer.results.folder import RunFolder
from nasformer.train.log import scalars
from nasformer.utils.files import complete_lines, parse_json, read_json, write_json
from nasformer.utils.progress import repeating, say
from nasformer.utils.schema import from_json

SECONDS = 10.0  # between two looks at the run folder
PROJECT = "nasformer"


class Client(Protocol):
    """What both services have in common."""

    id: str

    def log(self, values: Mapping[str, float], step: int) -> None: ...

    def finish(self, settings: Mapping[str, Any], summary: Mapping[str, float]) -> None: ...


class MLflow:
    """A run of MLflow, at the address that MLFLOW_TRACKING_URI says."""

    def __init__(self, name: str, id: str | None) -> None:
        import mlflow

        self.client = mlflow.MlflowClient()
        if id is None:
            experiment = mlflow.set_experiment(PROJECT).experiment_id
            id = self.client.create_run(experiment, run_name=name).info.run_id
        self.id = id

    def log(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self.client.log_metric(self.id, name, value, step=step)

    def finish(self, settings: Mapping[str, Any], summary: Mapping[str, float]) -> None:
        for name, value in settings.items():
            self.client.log_param(self.id, name, value)
        for name, value in summary.items():
            self.client.log_metric(self.id, name, value)
        self.client.set_terminated(self.id)


class WandB:
    """A run of Weights & Biases; WANDB_MODE=offline keeps it on this machine."""

    def __init__(self, name: str, id: str | None) -> None:
        import wandb

        self.run = wandb.init(project=PROJECT, name=name, id=id, resume="allow", settings=wandb.Settings(silent=True))
        self.id = self.run.id

    def log(self, values: Mapping[str, float], step: int) -> None:
        # Steps of a training and numbers of candidates count from 0 each, which wandb's own steps may not.
        self.run.log({**values, "step": step})

    def finish(self, settings: Mapping[str, Any], summary: Mapping[str, float]) -> None:
        self.run.config.update(dict(settings), allow_val_change=True)
        self.run.summary.update(dict(summary))
        self.run.finish()


CLIENTS: dict[str, Callable[[str, str | None], Client]] = {"mlflow": MLflow, "wandb": WandB}


def check_service(service: str) -> None:
    if service != "none" and find_spec(service) is None:
        raise UserError(f"--track {service} needs its client: pip install {service}, or leave --track out")


@dataclass
class TrackingState:
    """The content of tracking.json: the run's id at the service, and how many lines of each file were passed on."""

    id: str | None = None
    passed: dict[str, int] = field(default_factory=dict)


@dataclass
class Tracker:
    """Passes on what is new in a run folder."""

    folder: RunFolder
    client: Client
    passed: dict[str, int] = field(default_factory=dict)
    """Lines of each file that were passed on."""

    def update(self) -> None:
        for path, values_of in ((self.folder.log, scalars), (self.folder.journal, candidate_values)):
            done = self.passed.get(path.name, 0)
            lines = complete_lines(path)[done:]
            for record in (parse_json(line, path) for line in lines):
                if values := values_of(record):
                    self.client.log(values, int(record.get("step", record.get("id", 0))))
            self.passed[path.name] = done + len(lines)
        write_json(self.folder.path / "tracking.json", {"id": self.client.id, "passed": self.passed})

    def finish(self) -> None:
        self.update()
        config = read_json(self.folder.config) if self.folder.config.exists() else {}
        plain = {name: value for name, value in config.items() if isinstance(value, str | int | float)}
        settings = {name: value for name, value in plain.items() if value != ""}
        result = self.folder.read_result().shipped.scores if self.folder.result.exists() else {}
        self.client.finish(settings, {f"winner/{name}": value for name, value in result.items()})


def candidate_values(record: Mapping[str, Any]) -> dict[str, float]:
    """Costs and scores of a candidate; the header of a journal has none."""
    numbers = {name: value for name, value in record.items() if isinstance(value, int | float) and name != "id"}
    return {f"search/{name}": float(value) for name, value in numbers.items()} if "arch" in record else {}


@contextmanager
def tracking(folder: RunFolder, service: str) -> Iterator[None]:
    """Tracks a run while it goes on, and its end."""
    if service == "none":
        yield
        return
    path = folder.path / "tracking.json"
    before = from_json(TrackingState, read_json(path), path) if path.exists() else TrackingState()
    name = folder.path.resolve().name
    tracker = Tracker(folder, CLIENTS[service](name, before.id), before.passed)
    try:
        with repeating(lambda: attempt(tracker.update, "trying again"), SECONDS):
            yield
    finally:
        attempt(tracker.finish, "the run itself is complete")


def attempt(action: Callable[[], None], then: str) -> None:
    """Runs an action that needs the server; a server out of reach must not stop the work."""
    try:
        action()
    except Exception as error:
        say(f"tracking: {type(error).__name__}: {error}; {then}")
