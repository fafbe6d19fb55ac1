"""Where the weights of a supernet come from: a folder or file, a pretrained net, or another supernet.

A folder has weights as safetensors, and a config that says which space they belong to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any

import torch
from torch import Size, Tensor, nn

from nasformer.data.decode import IMAGENET_MEAN, IMAGENET_STD
from nasformer.errors import UserError, one_line
from nasformer.families.autoformer import from_official, is_official
from nasformer.models.base import Backbone
from nasformer.models.hub import published_model
from nasformer.models.pretrained import (
    TRAIN_AGAIN,
    find_supernet,
    is_file_of_space,
    read_space,
    source_model_folder,
    space_of,
    space_of_model,
    split_source,
    with_source_choices,
)
from nasformer.models.registry import get_space
from nasformer.models.sharing import MultiHeadSharing, SharingRule, declared_rule, rule_for
from nasformer.models.space import Space
from nasformer.models.storage import (
    CONFIG,
    NOT_OF_BACKBONE,
    SUPERNET_CONFIG,
    WeightFacts,
    build_from,
    fresh_model,
    load_model,
)
from nasformer.space.arch import Arch
from nasformer.space.dimensions import dimensions
from nasformer.space.nodes import Choice, Struct, corners
from nasformer.supernet.importance import find_units
from nasformer.supernet.supernet import Supernet
from nasformer.utils.files import read_tensors, save_tensors, write_json

WEIGHTS = "supernet.safetensors"
HARMLESS = 10_000_000
"""As many weights fit into any memory, so that an error can name the weight that does not fit."""


def save_supernet(supernet: Supernet, folder: Path, **facts: Any) -> None:
    """Writes the weights and their space, with any facts about them, such as what they were trained on."""
    save_tensors(folder / WEIGHTS, supernet.weights.state_dict())
    task = {} if supernet.space.model.task == "classify" else {"task": supernet.space.model.task}
    config = {"space": supernet.space.name, "options": dict(supernet.space.options), **task}
    write_json(folder / SUPERNET_CONFIG, {**config, **facts})


def load_supernet(path: str | Path, expected: Space | None = None) -> Supernet:
    """A supernet from a folder of ours, or from a file of weights (ours or AutoFormer's published layout).

    Args:
        path: The folder of a supernet or of a run that trained one, or a .safetensors or .pth file.
        expected: The space it should be of; needed for a file, which does not say.
    """
    path = supernet_folder(Path(path))
    if not path.is_dir():
        return load_file(path, expected)
    space, state = read_space(path / SUPERNET_CONFIG), read_tensors(path / WEIGHTS)
    if expected is not None and expected.name != space.name:
        raise UserError(
            f"{path} holds a supernet of {space.name}, not of {expected.name}; ask for --space {quote(space.name)}"
        )
    return with_weights(space, state, path)


def with_weights(space: Space, state: Mapping[str, Tensor], source: Path) -> Supernet:
    """A supernet with these weights; refuses one that needs more than there are before it takes the memory."""
    needed = max(space.cost(arch).params for arch in corners(space.root))
    if needed > max(HARMLESS, stored := sum(weight.numel() for weight in state.values())):
        raise UserError(
            f"{source} has {stored:,} weights, a supernet of {space.name} needs {needed:,} at least; it is of another "
            "space or of other model options (img_size, num_classes ...)"
        )
    supernet = Supernet(space)
    load_weights(supernet, state, source)
    return supernet


def supernet_folder(path: Path) -> Path:
    """The folder of a supernet, which may be in the folder of a run."""
    return path / "supernet" if (path / "supernet").is_dir() else path


def load_file(path: Path, space: Space | None) -> Supernet:
    """A supernet from a file of weights alone."""
    if not path.exists():
        raise UserError(f"no supernet at {path}; train one first, or name a folder or a file of weights")
    if space is None:
        raise UserError(f"{path} does not say which space it belongs to; name it with --space")
    state = read_tensors(path)
    if is_official(state):
        space, state = space.with_options(qkv_bias_sharing="contiguous"), from_official(state)
    return with_weights(space, state, path)


@torch.no_grad()
def load_weights(supernet: Supernet, state: Mapping[str, Tensor], source: Path) -> None:
    """Copies weights in. Where the space varies a dimension, wider weights are cut by the sharing rules."""
    smallest = {name: weight.shape for name, weight in supernet.slices(supernet.space.root.smallest()).items()}
    for name, weight in supernet.shared().items():
        if name not in state:
            raise UserError(f"{source} has no weight {name}: it is not a supernet of {supernet.space.name}")
        if not fits(state[name].shape, weight.shape, smallest.get(name)):
            raise UserError(
                f"{source}: {name} is {list(state[name].shape)}, {supernet.space.name} needs {list(weight.shape)}; "
                "it is of another space or of other model options (img_size, num_classes ...)"
            )
        copy_slice(state[name], weight, rule_for(name, supernet.rules), weight.shape)


def fits(given: Size, needed: Size, smallest: Size | None) -> bool:
    """Whether a weight can be cut to the needed shape: wider only where small members are narrower."""
    if len(given) != len(needed):
        return False
    elastic = [a < b for a, b in zip(smallest or [0] * len(needed), needed, strict=True)]
    return all(g == n or (g > n and varies) for g, n, varies in zip(given, needed, elastic, strict=True))


# Pretrained nets: the weights of what users name behind `--from` (see `models/pretrained.py`).
#
# timm:NAME has the weights that timm has of it, timm:NAME:FILE those of a local .safetensors or .pth file. A model of
# ours whose blocks differ is widened to the largest of its blocks, without a change of what it computes.


@dataclass(frozen=True)
class Pretrained:
    """Weights to start from, and the space of what can be cut out of them.

    Args:
        space: Its largest member is the model.
        model: The largest member with its weights.
        facts: How its images were normalised, and its classes.
        supernet: The supernet whose weights they are, if any: then all members are trained, not only the largest.
        arch: That of the net itself, where its blocks differ: `model` then has further units, which no layer reads yet.
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
    """The weights of a source that a user names, with their space."""
    net, choices = split_source(source)
    pretrained = load_net(net)
    if choices and pretrained.supernet is not None:
        raise UserError(f"--from {source}: a supernet has the choices that it was trained with; leave the brackets out")
    return replace(pretrained, space=with_source_choices(pretrained.space, choices))


def load_net(net: str) -> Pretrained:
    """The weights of a source without choices."""
    if is_file_of_space(net):
        name, _, file = net.partition(":")
        return from_supernet(
            load_supernet(Path(file), get_space(name)), WeightFacts(mean=IMAGENET_MEAN, std=IMAGENET_STD)
        )
    if net.startswith("timm:"):
        return from_timm(net)
    if (path := find_supernet(Path(net))) is not None:
        return from_supernet(load_supernet(path), WeightFacts.load(path / SUPERNET_CONFIG, TRAIN_AGAIN))
    folder = source_model_folder(net)
    model, facts = load_model(folder), WeightFacts.load(folder / CONFIG, TRAIN_AGAIN)
    space = space_of_model(model)
    if model.arch == space.root.largest():
        return Pretrained(space, model, facts)
    return Pretrained(space, widen(model, space), facts, arch=model.arch)


def from_supernet(supernet: Supernet, facts: WeightFacts) -> Pretrained:
    return Pretrained(supernet.space, supernet.extract(supernet.space.root.largest()).eval(), facts, supernet)


@torch.no_grad()
def widen(model: Backbone, space: Space) -> Backbone:
    """The largest member of a space, which computes what a smaller model does: no layer reads its further units yet.

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
    """The weights of a timm model: those of a file, which is never unpickled, or those in timm's cache or hub."""
    if file and not file.is_file():
        raise UserError(f"there is no file of weights {file}; leave it out for the weights that timm downloads")
    if file:
        return read_tensors(file)
    try:
        return published_model(name).state_dict()
    except UserError:
        raise
    except Exception as error:  # no such weights, a download that fails: timm and its hub raise a dozen kinds
        reason = one_line(error, 200)
        raise UserError(
            f"timm cannot load the weights of {name} ({reason}); download them and name the file: "
            f"timm:{name}:weights.safetensors"
        ) from error


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


# Weights of one supernet in another of the same family: what both have is copied, the rest stays as it was.
#
# Where does an entry of the old tensor belong in the new one? The sharing rule knows: applied to the old tensor and the
# shape that both have it gives the values, applied to the numbers 0, 1, 2 ... in the shape of the new one it gives
# their indices. A member of both spaces then computes in the new supernet what it computed in the old one.
#
# One rule has no single answer: Multi-Head Sharing slices by the number of heads of the member. So values are copied
# for every number of heads that both spaces have, the largest last. Where indices collide, as they do when the channels
# grow to less than twice as many, members with the most heads stay exact and others do not; `Carried` names the
# tensors.

ShapeByHeads = dict[int, Size]
"""The largest shape in which members use a tensor, by their number of heads; 1 where heads do not matter."""


@dataclass(frozen=True)
class Carried:
    """Counts of the new supernet's tensors that came from the old one.

    Args:
        whole: All of their entries came.
        part: Some came, as the old tensor was smaller.
        fresh: None came, as the old supernet had no such tensor.
        inexact: Names of tensors that members of both spaces may read in another order than before.
    """

    whole: int
    part: int
    fresh: int
    inexact: tuple[str, ...] = ()

    def __str__(self) -> str:
        note = f"; {len(self.inexact)} of them fit only the members with the most heads" if self.inexact else ""
        return f"{self.whole} tensors came whole, {self.part} in part, {self.fresh} are fresh{note}"


@torch.no_grad()
def carry_over(old: Supernet, new: Supernet) -> Carried:
    """Copies the weights that both supernets have from the old one into the new one.

    >>> import nasformer
    >>> space = nasformer.get_space("autoformer-micro", img_size=8)
    >>> wider = space.with_choices({"embed_dim": [48, 64, 80], "blocks.depth": [3, 4]})
    >>> old, new = Supernet(space), Supernet(wider, seed=1)
    >>> print(carry_over(old, new))
    21 tensors came whole, 51 in part, 0 are fresh
    >>> arch, x = wider.root.smallest(), torch.randn(1, 3, 8, 8)
    >>> torch.equal(old.eval()(x, arch), new.eval()(x, arch))
    True
    """
    check_same_model(old.space, new.space)
    old_weights, old_shapes, new_shapes = old.shared(), used_shapes(old), used_shapes(new)
    whole, part, fresh, inexact = 0, 0, 0, list[str]()
    for name, weight in new.shared().items():
        if name not in old_weights:
            fresh += 1
            continue
        common = common_shapes(old_shapes[name], new_shapes[name])
        slices = [(rule_of(name, new, heads), shape) for heads, shape in common]
        if copy_slices(old_weights[name], weight, slices):
            whole += 1
        else:
            part += 1
        # The first slice is for entries that no member of both spaces reads; others may have overwritten each other.
        if not all(same_slice(old_weights[name], weight, rule, shape) for rule, shape in slices[1:]):
            inexact.append(name)
    return Carried(whole, part, fresh, tuple(inexact))


def copy_slices(given: Tensor, weight: Tensor, slices: Sequence[tuple[SharingRule, Size]]) -> bool:
    """Copies slices from one tensor into another; returns whether every entry of it was copied."""
    copied = torch.zeros_like(weight, dtype=torch.bool)
    for rule, shape in slices:
        copy_slice(given, weight, rule, shape)
        copy_slice(torch.ones_like(given, dtype=torch.bool), copied, rule, shape)
    return bool(copied.all())


def same_slice(given: Tensor, weight: Tensor, rule: SharingRule, shape: Size) -> bool:
    return torch.equal(rule(weight, shape), rule(given, shape).to(weight))


@torch.no_grad()
def carry_backbone(old: Supernet, new: Supernet) -> None:
    """Copies weights of one shape from a supernet of the same space for another task, except norm and head."""
    old_weights = old.shared()
    for name, weight in new.shared().items():
        same = name in old_weights and old_weights[name].shape == weight.shape
        if same and not name.startswith(NOT_OF_BACKBONE):
            weight.copy_(old_weights[name])


def copy_slice(given: Tensor, weight: Tensor, rule: SharingRule, shape: Size) -> None:
    """Copies the slice of this shape from one tensor to the indices of the same slice of another."""
    values = rule(given, shape).to(weight)
    if shape == weight.shape:
        weight.copy_(values)
        return
    numbers = torch.arange(weight.numel(), device=weight.device).view(weight.shape)
    flat = weight.flatten().index_copy(0, rule(numbers, shape).flatten(), values.flatten())
    weight.copy_(flat.view(weight.shape))


def common_shapes(old: ShapeByHeads, new: ShapeByHeads) -> list[tuple[int, Size]]:
    """The slices to copy, in this order: for each number of heads that both have, the shape that both have.

    The whole tensor comes first, by the most heads of the new one, for entries that no member of both spaces uses.
    """
    everything = Size(map(min, largest(old), largest(new)))
    heads = sorted(old.keys() & new.keys())
    return [(max(new), everything), *((count, Size(map(min, old[count], new[count]))) for count in heads)]


def largest(shapes: ShapeByHeads) -> Size:
    return Size(map(max, zip(*shapes.values(), strict=True)))


def rule_of(name: str, supernet: Supernet, heads: int) -> SharingRule:
    """The rule of a tensor for members with this number of heads."""
    rule = declared_rule(name, supernet.rules)
    return rule.bind({rule.option: heads}) if isinstance(rule, MultiHeadSharing) else rule


def used_shapes(supernet: Supernet) -> Mapping[str, ShapeByHeads]:
    """The part of each shared tensor that members use: all of it, unless it is sliced by heads."""
    shapes: dict[str, ShapeByHeads] = {name: {1: weight.shape} for name, weight in supernet.shared().items()}
    sliced_by_heads = {name for name in shapes if isinstance(declared_rule(name, supernet.rules), MultiHeadSharing)}
    if not sliced_by_heads:
        return shapes
    shapes |= {name: {} for name in sliced_by_heads}
    for name, heads, shape in uses_by_heads(supernet):
        shapes[name][heads] = Size(map(max, shape, shapes[name].get(heads, shape)))
    return shapes


def uses_by_heads(supernet: Supernet) -> Iterator[tuple[str, int, Size]]:
    """Name, heads and shape of every tensor sliced by heads, in the largest members with each number of heads."""
    options = {rule.option for rule in supernet.rules.values() if isinstance(rule, MultiHeadSharing)}
    archs = [arch for root in spaces_by_heads(supernet.space.root, options) for arch in corners(root)]
    for segment in (segment for arch in archs for segment in supernet.space.plan(arch)):
        layer: dict[str, Any] = dict(segment.options)
        for part in supernet.skeleton(segment).parts:
            name = f"{segment.name}.{part.name}"
            rule = declared_rule(name, supernet.rules)
            if isinstance(rule, MultiHeadSharing):
                yield name, layer.get(rule.option, 1), part.shape


def spaces_by_heads(root: Struct, options: set[str]) -> Iterator[Struct]:
    """The space restricted to each number of heads; dimensions that end in one of the options are heads."""
    heads = {name: choice for name, choice in dimensions(root).items() if name.rpartition(".")[2] in options}
    for count in sorted({value for choice in heads.values() for value in choice.values}):
        yield root.replace_choices({name: Choice(count) for name, choice in heads.items() if count in choice.values})


def check_same_model(old: Space, new: Space) -> None:
    """Refuses supernets that differ in more than their choices."""
    if old.model is not new.model:
        raise UserError(f"weights of {old.name} do not fit {new.name}: they are of different families")
    derived = new.model.derived_options(new.root)
    for name, value in new.full_options.items():
        if name not in derived and old.full_options[name] != value:
            options = f"{name}={old.full_options[name]}", f"{name}={value}"
            raise UserError(f"weights of {old.name} with {options[0]} do not fit {new.name} with {options[1]}")
