"""Fine-tuning: one architecture further, from the weights of a supernet or of a model, in a run folder of its own.

The data may be other than before. Images of another size resample the positions, other classes get a fresh classifier,
other channels a first convolution that is adapted to them; all other weights are inherited.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nasformer.agreement import fingerprint, holds_out_others
from nasformer.config import FinetuneCommand
from nasformer.data import BatchSource
from nasformer.errors import UserError
from nasformer.export import load_model
from nasformer.export.timm_config import first_convolution, input_shape
from nasformer.families import Space, get_space
from nasformer.families.backbone import Backbone
from nasformer.folders import cut, facts_of, find_supernet, model_folder, normalise_as, winner
from nasformer.layers.grid import both_sides
from nasformer.options import DataConfig
from nasformer.pipeline import Run
from nasformer.recipe import Recipe
from nasformer.retraining import check_out, completed, fresh_model, train_single
from nasformer.supernet.statistics import recalibrate
from nasformer.supernet.storage import CONFIG as SUPERNET_CONFIG

CLASSIFIER = "head.fc."


@dataclass
class Heritage:
    """Weights to start from.

    Args:
        folder: Where they are, and facts about them.
        model: The architecture with these weights.
        space: The name of its space, where that is known.
        shared: Whether they were a supernet's, whose statistics of batch norm fit no single architecture.
    """

    folder: Path
    model: Backbone
    space: str | None
    shared: bool

    def fact(self, name: str) -> Any:
        return facts_of(self.folder, name).get(name)


def find_heritage(command: FinetuneCommand) -> Heritage:
    """What the command is to start from: the weights of a supernet, or of a model."""
    path = Path(command.run)
    if path.is_file() or (path / "supernet").is_dir() or (path / SUPERNET_CONFIG).exists():
        supernet = find_supernet(path, get_space(command.space) if command.space else None)
        arch = supernet.space.arch(command.arch) if command.arch else winner(path)
        return Heritage(path, cut(supernet, arch), supernet.space.name, shared=True)
    folder = model_folder(path)
    if command.arch:
        raise UserError(f"{folder} is a model, which has its architecture; leave --arch out, or name a supernet")
    found = Heritage(folder, load_model(folder), None, shared=False)
    found.space = found.fact("space")
    return found


def settled(command: FinetuneCommand, heritage: Heritage) -> FinetuneCommand:
    """The command, in which what it leaves open is as with the weights."""
    check_out(command)
    space, model = heritage.space or command.space, heritage.model
    if not space:
        raise UserError(f"{heritage.folder} names no space; name it with --space")
    if command.space and command.space != space:
        raise UserError(f"{heritage.folder} is of the space {space}, not {command.space}; leave --space out")
    return completed(command, space, model.options, model.arch.to_json())


def finetune(run: Run, heritage: Heritage, recipe: Recipe) -> dict[str, Any]:
    """Trains the model further in a run folder and writes down what became of it; a finished one is left as it is."""
    check_held_out(run.config, heritage)
    normalise_as(run.batches, heritage.folder)
    weights = fingerprint(heritage.model)
    model = heir(heritage.model, run.space, run.config.seed, same_classes(heritage, run.batches)).to(run.device)
    if heritage.shared:
        recalibrate(model, run.batches, run.config.calibration_images)
    return train_single(run, model, recipe, "finetuned", weights)


def check_held_out(config: DataConfig, heritage: Heritage) -> None:
    before = heritage.fact("trained_on") or {}
    if config.holdout and holds_out_others(config, before):
        raise UserError(
            f"{heritage.folder} was trained with --holdout {before['holdout']:g} --seed {before['seed']}; "
            "give the same, or --holdout 0 to train on all images: others held out would be images that it knows"
        )


def same_classes(heritage: Heritage, batches: BatchSource) -> bool:
    """Whether the classifier can be kept; where the names of its classes are not known, their number decides."""
    names = heritage.fact("classes") or batches.classes
    return heritage.model.num_classes == batches.num_classes and list(names) == list(batches.classes)


def heir(source: Backbone, space: Space, seed: int, keep_classifier: bool) -> Backbone:
    """The model of the space that has the weights of another one of the same arch, which is resized on the way.

    What is fresh in it depends on the seed alone.
    """
    model = fresh_model(space, source.arch, seed)
    if input_shape(source)[1:] != input_shape(model)[1:]:
        resized: Any = source
        resized.set_input_size(both_sides(model.options["img_size"]))
    state, fresh = source.state_dict(), model.state_dict()
    if source.options["in_chans"] != model.options["in_chans"]:
        name = f"{first_convolution(model)}.weight"
        state[name] = rechannelled(state[name], model.options["in_chans"])
    if not keep_classifier:
        state |= {name: weight for name, weight in fresh.items() if name.startswith(CLASSIFIER)}
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise UserError(f"the weights do not fit ({reason}); leave --patch-size and --model as they were") from None
    return model


def rechannelled(weight: Tensor, channels: int) -> Tensor:
    """A convolution of images for another number of channels, as timm adapts it.

    For grey images the sum over the old channels, else these in turn, scaled to about the same answers.

    >>> weight = torch.tensor([1.0, 2.0, 3.0]).view(1, 3, 1, 1)
    >>> rechannelled(weight, 1).flatten().tolist(), rechannelled(weight, 4).flatten().tolist()
    ([6.0], [0.75, 1.5, 2.25, 0.75])
    """
    if channels == 1:
        return weight.sum(1, keepdim=True)
    old = weight.shape[1]
    return weight[:, torch.arange(channels, device=weight.device) % old] * (old / channels)
