"""The doctor of a run: gathers what its log and its supernet say of its health, and raises alarms.

A training that was watched (`watch_epochs`) has the accuracies of the fixed subnets in its log. Otherwise they are
evaluated now, with the weights that there are: those of the trained supernet, or of the newest checkpoint.
RUN/health.json keeps the finding, for the report.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from nasformer.data import Split
from nasformer.device import choose_device
from nasformer.errors import UserError
from nasformer.families import Space, get_space
from nasformer.files import locked, read_json, read_tensors, write_json
from nasformer.folders import UNTRAINED, load_batches, normalise_as
from nasformer.options import DataConfig
from nasformer.rank_correlation import spearman
from nasformer.report.evolution.contents import is_evolution
from nasformer.space import Arch
from nasformer.supernet import Supernet, load_supernet
from nasformer.supernet import alarms as rules
from nasformer.supernet.alarms import Alarm
from nasformer.supernet.health import dimensions, subnets
from nasformer.supernet.storage import CONFIG, retupled
from nasformer.train.checkpoint import Checkpoints
from nasformer.train.distributed import World
from nasformer.train.evaluate import Heirs
from nasformer.train.log import TrainLog, is_rollback

HEALTH = "health.json"


@dataclass(frozen=True)
class Finding:
    """What the doctor found.

    Args:
        step: Of the last line of the log, at which all this was so.
        images: Which images the subnets were judged on.
        subnets: Those judged, each with its name, costs, depth, width and accuracy.
        correlations: Rank correlation of accuracy with depth and with width; None where one of them is constant.
        taus: Kendall's tau between the ranks of each look and the next; None where all were alike.
        looks: Accuracies by name, each time with its step and epoch.
    """

    step: int
    images: str
    subnets: list[dict[str, Any]]
    correlations: dict[str, float | None]
    taus: list[float | None]
    looks: list[dict[str, Any]]
    alarms: list[Alarm]


class Patient:
    """A run folder with the training of a supernet."""

    def __init__(self, folder: Path, data: str = "", device: str = "auto") -> None:
        if is_evolution(folder):
            raise UserError(f"{folder} is the evolution of a space; see one of its steps, such as {folder}/steps/0")
        self.folder, self.config = folder, read_json(folder / "config.json")
        self.lines = TrainLog.read(folder / "train" / "log.jsonl")
        self.checkpoint = newest_checkpoint(folder)
        self.trained = (folder / "supernet" / CONFIG).exists()
        if not self.lines or not (self.trained or self.checkpoint or self.config.get("space")):
            raise UserError(f"{folder} has no training of a supernet; the doctor looks at what nasformer train wrote")
        self.space = self.find_space()
        self.seed = int(self.config.get("seed") or 0)
        self.archs = subnets(self.space, self.seed)
        known = {item.name: self.config[item.name] for item in fields(DataConfig) if item.name in self.config}
        self.data = replace(DataConfig(**known), data=data or known.get("data", ""), device=device, download=False)

    def find_space(self) -> Space:
        """That of the supernet, or of the checkpoint, or as it was asked for."""
        if self.trained:
            found = read_json(self.folder / "supernet" / CONFIG)
            return get_space(found["space"], **retupled(found["options"]))
        settings = read_json(self.checkpoint / "settings.json") if self.checkpoint else {}
        if settings.get("arch"):
            raise UserError(f"{self.folder} is the training of a single model; the doctor looks at supernets")
        return get_space(
            self.config["space"], **retupled(settings.get("model_options") or self.config.get("model") or {})
        )

    def looks(self) -> list[dict[str, Any]]:
        """The looks during the training."""
        looks = [line for line in self.lines if self.archs.keys() == line.get("subnets", {}).keys()]
        return [{name: line[name] for name in ("step", "epoch", "subnets")} for line in looks]

    def look(self) -> tuple[dict[str, Any], str]:
        """A look at the subnets now, and at which images."""
        device = choose_device(self.data.device)
        supernet = self.load().to(device)
        sizes = {name: supernet.space.options.get(name) for name in ("img_size", "in_chans")}
        batches = load_batches(self.data, UNTRAINED, World(), device, sizes["img_size"], sizes["in_chans"])
        normalise_as(batches, self.folder)
        precision = (self.config.get("train") or {}).get("precision", "auto")
        heirs = Heirs(supernet, batches, precision, self.data.calibration_images)
        split: Split = "holdout" if batches.held_out else "test"
        found = {name: heirs.accuracy(arch, split) for name, arch in self.archs.items()}
        last = self.lines[-1]
        return {"step": last["step"], "epoch": last.get("epoch"), "subnets": found}, SPLITS[split]

    def load(self) -> Supernet:
        if self.trained:
            return load_supernet(self.folder / "supernet")
        if self.checkpoint is None:
            raise UserError(f"{self.folder} has no weights to look at yet; wait for its first checkpoint")
        supernet = Supernet(self.space)
        supernet.load_state_dict(read_tensors(self.checkpoint / "weights.safetensors"))
        return supernet

    def finished(self) -> bool:
        recipe, last = self.config.get("train") or {}, self.lines[-1]
        if recipe.get("iterations"):
            return bool(last["step"] >= recipe["iterations"])
        return self.trained or bool(last["epoch"] >= recipe.get("epochs", 0))

    def running(self) -> bool:
        try:
            with locked(self.folder / ".lock"):
                return False
        except UserError:
            return True


SPLITS = {"holdout": "held-out images", "test": "test images"}


def newest_checkpoint(folder: Path) -> Path | None:
    checkpoints = Checkpoints(folder / "train" / "checkpoints", {})
    steps = checkpoints.steps()
    return checkpoints.folder / f"step-{steps[-1]}" if steps else None


def examine(folder: Path, data: str = "", device: str = "auto") -> Finding:
    """Looks at a run, writes what was found into its folder, and draws it in its report."""
    from nasformer.report import write_report

    patient = Patient(folder, data, device)
    looks, images = patient.looks(), SPLITS["holdout"]
    if not looks:
        now, images = patient.look()
        looks = [now]
    found = judge(patient, looks, images)
    write_json(folder / HEALTH, asdict(found))
    write_report(folder)
    return found


def judge(patient: Patient, looks: list[dict[str, Any]], images: str) -> Finding:
    last: dict[str, float] = looks[-1]["subnets"]
    accuracies, sizes = list(last.values()), dimensions(patient.space, patient.archs)
    taus = rules.rank_agreement([look["subnets"] for look in looks])
    alarms = [*training_alarms(patient), *rules.flip_alarms(taus)]
    alarms += rules.extreme_alarms(last["smallest"], last["largest"], accuracies)
    alarms += rules.dimension_alarms(sizes, accuracies)
    if patient.finished():
        alarms += rules.chance_alarms(max(accuracies), patient.space.options.get("num_classes", 1000))
    return Finding(
        step=patient.lines[-1]["step"],
        images=images,
        subnets=[
            row(patient.space, name, arch, last[name]) | {key: values[place] for key, values in sizes.items()}
            for place, (name, arch) in enumerate(patient.archs.items())
        ],
        correlations={name: spearman(values, accuracies) for name, values in sizes.items()},
        taus=taus,
        looks=looks,
        alarms=alarms,
    )


def row(space: Space, name: str, arch: Arch, accuracy: float) -> dict[str, Any]:
    return {"name": name, "arch": arch.to_dict(), **space.costs(arch), "accuracy": accuracy}


def training_alarms(patient: Patient) -> list[Alarm]:
    """What the log alone tells."""
    found = rules.loss_alarms([line["loss"] for line in patient.lines if "loss" in line])
    for line in patient.lines:
        if is_rollback(line):
            back, failed, what = (line["rollback"][name] for name in ("back_to", "failed", "what"))
            told = f"the {what} was not finite at step {failed}; training went back to step {back}, at half the rate"
            found.append(Alarm("rollback", told, "lower --train.lr, raise --train.warmup_epochs or set clip_grad"))
    if not patient.finished() and not patient.running():
        last = patient.lines[-1]
        told = f"training stopped before its end, at epoch {last.get('epoch', 0):g} (step {last['step']})"
        found.append(Alarm("unfinished", told, "the same command goes on from there"))
    return found
