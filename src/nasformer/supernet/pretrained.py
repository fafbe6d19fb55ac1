"""Pretrained nets as supernets: the weights of what users name behind `--from` (see `models/pretrained.py`).

timm:NAME has the weights that timm has of it, timm:NAME:FILE those of a local .safetensors or .pth file. A model of
ours whose blocks differ is widened to the largest of its blocks, without a change of what it computes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nasformer.errors import UserError
from nasformer.models.base import Backbone
from nasformer.models.pretrained import (
    TRAIN_AGAIN,
    is_file_of_space,
    model_folder,
    space_of_model,
    split_source,
    supernet_folder,
    with_source_choices,
)
from nasformer.models.registry import get_space
from nasformer.models.sharing import rule_for
from nasformer.models.space import Space
from nasformer.models.storage import CONFIG, SUPERNET_CONFIG, WeightFacts, build_from, fresh_model, load_model
from nasformer.space.arch import Arch
from nasformer.supernet.importance import find_units
from nasformer.supernet.storage import copy_slice, load_supernet
from nasformer.supernet.supernet import Supernet
from nasformer.utils.files import read_json, read_tensors
from nasformer.utils.schema import from_json


@dataclass(frozen=True)
class Pretrained:
    """Weights to start from, and the space of what can be cut out of them.

    Args:
        space: Its largest member is the model.
        model: The largest member with its weights.
        arch: That of the net itself, where its blocks differ; `model` then has further units, which no layer reads yet.
        facts: How its images were normalised, and its classes.
        supernet: The supernet, where the weights are one's: then all members are trained, not the largest alone.
    """

    space: Space
    model: Backbone
    facts: WeightFacts
    supernet: Supernet | None = None
    arch: Arch | None = None

    @property
    def own_arch(self) -> Arch:
        """The arch of the net itself."""
        return self.arch or self.model.arch


def find_pretrained(source: str) -> Pretrained:
    """The weights that a source names, with their space."""
    net, choices = split_source(source)
    pretrained = load_net(net)
    if choices and pretrained.supernet is not None:
        raise UserError(f"--from {source}: a supernet has the choices that it was trained with; leave the brackets out")
    return replace(pretrained, space=with_source_choices(pretrained.space, choices))


def load_net(net: str) -> Pretrained:
    """The weights of a source without choices."""
    if is_file_of_space(net):
        name, _, file = net.partition(":")
        return from_supernet(load_supernet(Path(file), get_space(name)), WeightFacts(mean=IMAGENET[0], std=IMAGENET[1]))
    if net.startswith("timm:"):
        return from_timm(net)
    if (path := supernet_folder(Path(net))) is not None:
        return from_supernet(load_supernet(path), read_facts(path / SUPERNET_CONFIG))
    folder = model_folder(net)
    model, facts = load_model(folder), read_facts(folder / CONFIG)
    space = space_of_model(model)
    if model.arch == space.root.largest():
        return Pretrained(space, model, facts)
    return Pretrained(space, widen(model, space), facts, arch=model.arch)


def from_supernet(supernet: Supernet, facts: WeightFacts) -> Pretrained:
    return Pretrained(supernet.space, supernet.extract(supernet.space.root.largest()).eval(), facts, supernet)


@torch.no_grad()
def widen(model: Backbone, space: Space) -> Backbone:
    """The largest member of a space, which computes what a smaller model does: what it has more, no layer reads yet.

    The weights that write the additional heads and neurons are fresh, so that training can make use of them.
    """
    large = fresh_model(space, space.root.largest(), seed=0).eval()
    for unit in find_units(large):
        nn.init.zeros_(unit.reader.weight)
        nn.init.zeros_(unit.reader.bias)
    weights, rules = large.state_dict(), space.model.sharing(**space.options)
    for name, weight in model.state_dict().items():
        copy_slice(weight, weights[name], rule_for(name, rules), weight.shape)
    return large


IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and deviation of the images that published supernets were trained on."""


def from_timm(source: str) -> Pretrained:
    """A model of timm with its weights under our names."""
    _, name, *file = source.split(":", 2)
    space = get_space(f"timm:{name}")
    state = timm_weights(name, Path(file[0]) if file else None)
    classes = next((weight.shape[0] for key, weight in state.items() if key in ("head.weight", "head.fc.weight")), 0)
    space = space.with_options(num_classes=classes)
    model = space.build(space.root.largest())
    renamed = space.model.from_timm(state)
    expected = model.state_dict()
    for key, weight in expected.items():
        if key not in renamed or renamed[key].shape != weight.shape:
            problem = f"has the shape {list(renamed[key].shape)}" if key in renamed else "is missing"
            raise UserError(
                f"--from {source}: {key} {problem}, expected {list(weight.shape)}; are these weights of {name}?"
            )
    model.load_state_dict({key: renamed[key] for key in expected})
    return Pretrained(space, model.eval(), timm_facts(name))


def timm_weights(name: str, file: Path | None = None) -> dict[str, Tensor]:
    """The weights of a model of timm: those of a file, or those that timm has of it."""
    return read_timm_file(file) if file else download_timm(name)


def read_timm_file(path: Path) -> dict[str, Tensor]:
    """Weights of a file, which is never unpickled; those inside {"model": ...} or {"state_dict": ...} are taken."""
    if not path.is_file():
        raise UserError(f"there is no file of weights {path}; leave it out for the weights that timm downloads")
    return read_tensors(path)


def download_timm(name: str) -> dict[str, Tensor]:
    """The weights that timm has of a model, from its cache or its hub."""
    import timm

    try:
        return timm.create_model(name, pretrained=True).state_dict()
    except Exception as error:  # no network, no such weights: timm and its hub raise a dozen kinds
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"timm cannot load the weights of {name} ({reason}); download them and name the file: "
            f"timm:{name}:weights.safetensors"
        ) from error


def read_facts(path: Path) -> WeightFacts:
    """What the weights of a folder were saved with."""
    return from_json(WeightFacts, read_json(path), path, TRAIN_AGAIN)


def timm_facts(name: str) -> WeightFacts:
    """How images were normalised in the model's training."""
    import timm

    config = timm.get_pretrained_cfg(name)
    return WeightFacts(mean=tuple(config.mean), std=tuple(config.std)) if config is not None else WeightFacts()


def supernet_of(model: nn.Module, **options: Any) -> Supernet:
    """The supernet of what can be cut out of a model, of timm or of ours; the model's weights are copied.

    >>> import timm
    >>> vit = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2, num_classes=10)
    >>> supernet_of(vit)
    Supernet('timm:vit_tiny_patch16_224[blocks.depth=2]', 932,554 shared parameters, cpu)
    """
    from nasformer.models.pretrained import space_of

    if not isinstance(model, nn.Module):
        example = "timm.create_model('deit_tiny_patch16_224', pretrained=True)"
        raise UserError(f"from_pretrained takes a model, such as {example}, not a {type(model).__name__}")
    if isinstance(model, Backbone):
        space, state = space_of_model(model), dict(model.state_dict())
    else:
        space = space_of(model)
        state = space.model.from_timm(model.state_dict())
    largest = space.build(space.root.largest())
    largest.load_state_dict({name: state[name] for name in largest.state_dict()})
    space = space.with_options(**options)
    same = space.full_options["num_classes"] == largest.num_classes
    return supernet_from(build_from(largest, space, 0, same), space)


def supernet_from(model: Backbone, space: Space) -> Supernet:
    """The supernet of a space with the weights of its largest member."""
    supernet = Supernet(space)
    supernet.weights.load_state_dict(model.state_dict())
    return supernet.to(next(model.parameters()).device)
