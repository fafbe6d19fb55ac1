"""Pretrained nets as supernets: the weights of what users name behind `--from` (see `families/pretrained.py`).

timm:NAME has the weights that timm has of it, timm:NAME:FILE those of a local .safetensors or .pth file.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from nasformer.errors import UserError
from nasformer.families.base import Backbone
from nasformer.families.pretrained import TRAIN_AGAIN, model_folder, space_of_model, supernet_folder
from nasformer.families.registry import get_space
from nasformer.families.space import Space
from nasformer.families.storage import CONFIG, SUPERNET_CONFIG, WeightFacts, build_from, load_model
from nasformer.supernet.storage import load_supernet
from nasformer.supernet.supernet import Supernet
from nasformer.utils.files import read_json, read_tensors
from nasformer.utils.schema import from_json


@dataclass(frozen=True)
class Pretrained:
    """Weights to start from, and the space of what can be cut out of them.

    Args:
        space: Its largest member is the model.
        model: The largest member with its weights.
        facts: What is known of its images.
        supernet: The supernet, where the weights are one's: then all members are trained, not the largest alone.
    """

    space: Space
    model: Backbone
    facts: WeightFacts
    supernet: Supernet | None = None


def find_pretrained(source: str) -> Pretrained:
    """The weights that a source names, with their space."""
    if source.startswith("timm:"):
        return from_timm(source)
    if (path := supernet_folder(Path(source))) is not None:
        supernet = load_supernet(path)
        model = supernet.extract(supernet.space.root.largest())
        return Pretrained(supernet.space, model, read_facts(path / SUPERNET_CONFIG), supernet)
    folder = model_folder(source)
    model = load_model(folder)
    return Pretrained(space_of_model(model), model, read_facts(folder / CONFIG))


def from_timm(source: str) -> Pretrained:
    """A model of timm with its weights under our names."""
    _, name, *file = source.split(":", 2)
    space = get_space(f"timm:{name}")
    state = read_timm_file(Path(file[0])) if file else download_timm(name)
    classes = next((weight.shape[0] for key, weight in state.items() if key in ("head.weight", "head.fc.weight")), 0)
    space = space.with_options(num_classes=classes)
    model = space.build(space.root.largest())
    renamed = space.model.from_timm(state)
    expected = model.state_dict()
    for key, weight in expected.items():
        if key not in renamed or renamed[key].shape != weight.shape:
            found = f"has the shape {list(renamed[key].shape)}" if key in renamed else "is missing"
            raise UserError(
                f"--from {source}: {key} {found}, expected {list(weight.shape)}; are these weights of {name}?"
            )
    model.load_state_dict({key: renamed[key] for key in expected})
    return Pretrained(space, model.eval(), timm_facts(name))


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
            f"--from timm:{name}:weights.safetensors"
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
    from nasformer.families.timm_models import space_of

    if isinstance(model, Backbone):
        space, state = space_of_model(model), dict(model.state_dict())
    else:
        space = space_of(model)
        state = space.model.from_timm(model.state_dict())
    largest = space.build(space.root.largest())
    largest.load_state_dict({name: state[name] for name in largest.state_dict()})
    asked = space.with_options(**options)
    same = asked.full_options["num_classes"] == largest.num_classes
    return supernet_from(build_from(largest, asked, 0, same), asked)


def supernet_from(model: Backbone, space: Space) -> Supernet:
    """The supernet of a space with the weights of its largest member."""
    supernet = Supernet(space)
    supernet.weights.load_state_dict(model.state_dict())
    return supernet.to(next(model.parameters()).device)
