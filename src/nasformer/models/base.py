"""Base classes of all static models, which speak timm's language.

`Backbone` builds the plan of an arch and runs it. `FeatureBackbone` adds feature maps, pruning and other image sizes,
as timm's models have them. Families derive from `TokenBackbone`, whose layers pass on tokens, or from `MapBackbone`,
whose layers pass on feature maps. At the end: helpers of the families' plans.
"""

from __future__ import annotations

import inspect
import re
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, ClassVar, Self, get_type_hints

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nasformer.errors import UserError
from nasformer.layers.basic import Cost, set_drop_path
from nasformer.layers.stem import Grid, OnGrid, to_2tuple
from nasformer.models.registry import OPTION_RANGES
from nasformer.models.sharing import SharingRules
from nasformer.space.arch import Arch
from nasformer.space.nodes import Choice, Struct
from nasformer.utils.schema import from_json
from nasformer.utils.units import check_number

# A segment: one layer of a network, described but not built.
#
# A family turns an arch into a *plan*, a list of segments. Everything else reads the plan: the static model builds its
# layers, the supernet gives them slices of its weights, the cost is the sum of theirs, and a block that occurs in a
# thousand archs is built, counted and compiled once.


@dataclass(frozen=True)
class Segment:
    """One layer of a plan.

    Args:
        name: Its name in the model, such as ``blocks.3``.
        layer: Its class, which has a static method `cost` with the constructor's arguments.
        options: The constructor's arguments as items, so that a segment can be hashed.
        drop_path: Stochastic-depth rate; not an option, since it changes neither weights nor cost nor graph.
        inputs: The segments whose outputs it reads, as a list; none: it reads that of the one before.
    """

    name: str
    layer: type[nn.Module]
    options: tuple[tuple[str, Hashable], ...]
    drop_path: float = field(default=0.0, compare=False)
    inputs: tuple[str, ...] = ()

    @staticmethod
    @lru_cache(100_000, typed=True)  # a search plans a million layers, of which few differ
    def of(
        name: str, layer: type[nn.Module], drop_path: float = 0.0, inputs: tuple[str, ...] = (), **options: Hashable
    ) -> Segment:
        return Segment(name, layer, tuple(options.items()), drop_path, inputs)

    @property
    def kind(self) -> tuple[type[nn.Module], tuple[tuple[str, Hashable], ...]]:
        """Layer class and options: segments of one kind share skeleton, cost and compiled code."""
        return self.layer, self.options

    def build(self) -> nn.Module:
        module = self.layer(**dict(self.options))
        if self.drop_path:
            set_drop_path(module, self.drop_path)
        return module

    def cost(self) -> Cost:
        return self._cost

    @cached_property
    def _cost(self) -> Cost:
        return self.layer.cost(**dict(self.options))  # type: ignore[attr-defined,no-any-return]


class Backbone(nn.Module):
    """A static network: the layers of a plan, one after the other; the last one is the head.

    A family is a subclass with a `plan`, and where needed `sharing`, `from_columns`, `limits` and `derived_options`.

    Args:
        arch: Which network of the family.
        build_layer: Makes the layer of a segment, for callers that have the layers already.
        options: Keyword arguments of `plan`, such as img_size and num_classes.
    """

    family: ClassVar[str]
    no_decay_suffixes: ClassVar[frozenset[str]] = frozenset()
    """Suffixes of the names of weights without weight decay, besides biases and norms."""
    task: ClassVar[str] = "classify"
    """The task: classification of whole images, as by models of timm, or another one (`models/dense.py`)."""
    classifiers: ClassVar[tuple[str, ...]] = ("head.fc.",)
    """Prefixes of the names of weights that belong to single classes."""
    plan: ClassVar[Callable[..., list[Segment]]]
    """Class method ``plan(arch, *, option=default ...)``: the network of an arch as a list of segments."""
    head: Any

    def __init__(
        self, arch: Arch, *, build_layer: Callable[[Segment], nn.Module] = Segment.build, **options: Any
    ) -> None:
        super().__init__()
        self.arch, self.options = arch, self.default_options() | options
        segments = self.plan(arch, **options)
        self.segment_names = [segment.name for segment in segments]
        self.inputs = {segment.name: segment.inputs for segment in segments if segment.inputs}
        for segment in segments:
            add_submodule(self, segment.name, build_layer(segment))
        self.grad_checkpointing = False

    @classmethod
    def default_options(cls) -> dict[str, Any]:
        """Every option of the model with its default: the keyword-only arguments of `plan`."""
        return keyword_options(cls.plan)

    @classmethod
    def check_options(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options with their declared types; refuses unknown options, wrong types and values out of range."""
        defaults, types = cls.default_options(), option_types(cls)
        for name in options:
            if name not in defaults:
                raise UserError(f"{cls.family} has no model option {name!r}; it has: {', '.join(defaults)}")
        checked = {name: from_json(types[name], value, name, GIVE_ANOTHER) for name, value in options.items()}
        for name, value in checked.items():
            check_option_range(name, value)
        return checked

    @classmethod
    def sharing(cls, **options: Any) -> SharingRules:
        """How a supernet slices its weights: rules by the end of a weight's name; all others share their prefix."""
        return {}

    @classmethod
    def from_columns(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """The fields of an arch that is written as papers print it, in columns."""
        return values

    @classmethod
    def limits(cls, **options: Any) -> Mapping[str, tuple[float | None, float | None]]:
        """Least and largest sensible values of dimensions, both inclusive; None: no limit.

        Values beyond are legal, but name the same network.
        """
        return {}

    @classmethod
    def derived_options(cls, root: Struct) -> Mapping[str, Any]:
        """Options of the model that follow from the declaration of a space."""
        return {}

    @classmethod
    def optional_dimensions(cls, **options: Any) -> Mapping[str, Choice]:
        """Dimensions that a space has only where an expression names them, with the value they have otherwise."""
        return {}

    @classmethod
    def space_of(cls, model: nn.Module) -> tuple[Struct, dict[str, Any]] | None:
        """What can be cut out of a model of timm, and our options for it; None if it is of another family.

        The largest member of the space is the model itself: `from_timm` has its weights under our names.
        """
        return None

    def cuts(self) -> tuple[str, Struct] | None:
        """The cuts of this net: the name of a space of the same form, and the declaration; None: it cannot be cut."""
        return None

    @classmethod
    def from_timm(cls, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The weights of a model of timm under our names."""
        raise NotImplementedError(f"{cls.family} reads no weights of timm")

    def to_timm(self) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
        """Arguments with which timm's own model is this net, and its weights for it; None where timm has none."""
        return None

    @property
    def num_classes(self) -> int:
        return self.options["num_classes"]

    def run_segments(self, names: Sequence[str], x: Tensor, outputs: dict[str, Tensor] | None = None) -> Tensor:
        """Runs layers in turn and stores the output of each in the dict `outputs`, if given, by name."""
        for name in names:
            layer = self.get_submodule(name)
            if self.grad_checkpointing and torch.is_grad_enabled():
                x = checkpoint(layer, x, use_reentrant=False)
            else:
                x = layer(x)
            if outputs is not None:
                outputs[name] = x
        return x

    def forward_features(self, x: Tensor, outputs: dict[str, Tensor] | None = None) -> Tensor:
        return self.run_segments(self.segment_names[:-1], x, outputs)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        return self.head(x, pre_logits=pre_logits)

    def forward(self, x: Tensor, outputs: dict[str, Tensor] | None = None) -> Tensor:
        return self.forward_head(self.forward_features(x, outputs))

    def get_classifier(self) -> nn.Module:
        return self.head.fc

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Makes a fresh classifier for another number of classes; 0 leaves the features."""
        self.options["num_classes"] = num_classes
        if global_pool:
            self.options["global_pool"] = global_pool
        self.head.reset(num_classes, global_pool)

    def set_input_size(self, img_size: int | tuple[int, int]) -> None:
        """Takes another image size, which reaches the layers that depend on the grid."""
        for segment in self.plan(self.arch, **{**self.options, "img_size": img_size}):
            layer = self.get_submodule(segment.name) if segment.name in self.segment_names else None
            if isinstance(layer, OnGrid):
                layer.set_grid(dict(segment.options)["grid"])  # type: ignore[arg-type]
        self.options["img_size"] = img_size

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        self.grad_checkpointing = enable

    @torch.jit.ignore
    def no_weight_decay(self) -> set[str]:
        return {name for name, _ in self.named_parameters() if name.endswith(tuple(self.no_decay_suffixes))}

    def save_pretrained(self, folder: str | Path, **facts: Any) -> Path:
        """Writes weights and config into a folder, with any facts about the model, such as mean and std."""
        from nasformer.models.storage import save_model

        return save_model(self, folder, **facts)

    @classmethod
    def from_pretrained(cls, folder: str | Path, **changes: Any) -> Self:
        """Loads the model that `save_pretrained` wrote, perhaps for another `img_size` or `num_classes`.

        Nothing is downloaded.
        """
        from nasformer.models.storage import load_model

        if not Path(folder).is_dir():
            raise UserError(f"there is no folder {folder}; if it is on a hub, download it first and name the folder")
        model = load_model(folder, **changes)
        if not isinstance(model, cls):
            raise UserError(f"{folder} holds a model of the family {model.family}, not of {cls.family}")
        return model


class FeatureBackbone(Backbone):
    """A stem, blocks (perhaps in stages), a norm and a head, with timm's interface for feature maps."""

    norm: nn.Module
    stem_option: ClassVar[str] = "patch_size"
    """The option that says by how much the stem reduces the image."""

    @property
    def num_features(self) -> int:
        return self.head.embed_dim

    embed_dim = head_hidden_size = num_features

    @property
    def feature_info(self) -> list[dict[str, Any]]:
        """For each feature map its channels, its reduction and the block whose output it is; here all of one size."""
        blocks = [name for name in self.segment_names if "blocks." in name] or self.segment_names[:1]
        size = {"num_chs": self.num_features, "reduction": self.options[self.stem_option]}
        return [{**size, "module": name} for name in blocks]

    def last_blocks(self) -> list[str]:
        """The name of each stage's last block."""
        return list({name.split(".")[1]: name for name in self.segment_names if ".blocks." in name}.values())

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """The chosen feature maps of `feature_info` (all, the last n, or a list), and the final features.

        The final norm fits maps of the final resolution: `norm` leaves those of earlier stages as they are.
        """
        infos, maps, last = self.feature_info, [], self.feature_info[-1]
        chosen = {infos[index]["module"] for index in take_indices(indices, len(infos))}
        normed = {info["module"] for info in infos if info["reduction"] == last["reduction"]}
        for name in self.segment_names[: self.segment_names.index(last["module"]) + 1]:
            x = self.run_segments([name], x)
            if name in chosen:
                maps.append(self.as_map(name, self.norm(x) if norm and name in normed else x, output_fmt))
            if stop_early and len(maps) == len(chosen):
                break
        return maps if intermediates_only else (self.norm(x) if name in normed else x, maps)

    @abstractmethod
    def as_map(self, block: str, x: Tensor, output_fmt: str) -> Tensor:
        """The output of a block as a feature map ("NCHW") or as a list of its positions ("NLC")."""

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Drops the layers behind the last of the chosen maps, the head, and a norm that does not fit that map."""
        infos = self.feature_info
        kept = take_indices(indices, len(infos))
        last, width = infos[max(kept)], self.num_features
        if not prune_head and last["num_chs"] != width:
            raise UserError(f"the head reads {width} features, {last['module']} gives {last['num_chs']}; prune it too")
        end = self.segment_names.index(last["module"]) + 1
        *dropped, norm, head = self.segment_names[end:]
        for name in dropped:
            remove_submodule(self, name)
        self.segment_names = [*self.segment_names[:end], norm, head]
        if prune_norm or last["num_chs"] != width:
            self.norm = nn.Identity()
        self.head.embed_dim = last["num_chs"]
        if prune_head:
            self.reset_classifier(0)
        return kept


class TokenBackbone(FeatureBackbone):
    """Base of families whose layers pass on tokens: [batch, 1 + rows * columns, dim], the class token first."""

    no_decay_suffixes = frozenset({"patch_embed.pos_embed", "patch_embed.cls_token"})

    @torch.jit.ignore
    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        return {"stem": r"^patch_embed|^norm_pre", "blocks": [(r"^blocks\.(\d+)", None), (r"^norm", (99999,))]}

    def as_map(self, block: str, x: Tensor, output_fmt: str) -> Tensor:
        patches = x[:, 1:]
        if output_fmt == "NLC":
            return patches
        grid: Any = self.get_submodule(f"{block}.attn").grid
        return patches.transpose(1, 2).unflatten(2, grid)


STAGES = ("stage1", "stage2", "stage3", "stage4")
DEEPEST = 4000  # blocks of all stages together


class MapBackbone(FeatureBackbone):
    """Base of families whose layers pass on feature maps, [batch, channels, rows, columns], mostly in four stages.

    Each stage but the first halves the map. In an arch it has an `embed_dim` and `blocks`, which the plan calls
    stages.N.blocks.M.
    """

    @property
    def feature_info(self) -> list[dict[str, Any]]:
        if STAGES[0] not in self.arch:
            return super().feature_info
        stem = self.options[self.stem_option]
        return [
            {"num_chs": self.arch[STAGES[stage]].embed_dim, "reduction": stem * 2**stage, "module": name}
            for stage, name in enumerate(self.last_blocks())
        ]

    @torch.jit.ignore
    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        stages = [(r"^stages\.(\d+)", None)]
        blocks = [(r"^stages\.(\d+)\.downsample", (0,)), (r"^stages\.(\d+)\.blocks\.(\d+)", None)]
        by_stage = coarse and STAGES[0] in self.arch
        return {"stem": r"^stem", "blocks": [*(stages if by_stage else blocks), (r"^norm", (99999,))]}

    def as_map(self, block: str, x: Tensor, output_fmt: str) -> Tensor:
        return x.flatten(2).transpose(1, 2) if output_fmt == "NLC" else x


# Helpers of the classes above.


def add_submodule(root: nn.Module, name: str, module: nn.Module) -> None:
    """Puts a module at a dotted name, with containers on the way: ``blocks.3`` is item 3 of ``root.blocks``."""
    path, _, last = name.rpartition(".")
    container(root, path).add_module(last, module)


def container(root: nn.Module, path: str) -> nn.Module:
    """The module at a dotted path; empty containers are added where there is none."""
    for part in filter(None, path.split(".")):
        if not hasattr(root, part):
            root.add_module(part, nn.Sequential())
        root = getattr(root, part)
    return root


def remove_submodule(root: nn.Module, name: str) -> None:
    """Removes the module at a dotted name, and containers that are empty then."""
    path, _, last = name.rpartition(".")
    parent = root.get_submodule(path)
    delattr(parent, last)
    if path and not any(parent.children()):
        remove_submodule(root, path)


def take_indices(indices: int | list[int] | None, count: int) -> list[int]:
    """Which of `count` feature maps are meant: all, the last n, or a list that may count from the end.

    >>> take_indices(None, 3), take_indices(2, 3), take_indices([0, -1], 3)
    ([0, 1, 2], [1, 2], [0, 2])
    """
    if isinstance(indices, int):
        return list(range(count))[-indices:]
    return [range(count)[index] for index in indices or range(count)]


# Helpers of the families.


def keyword_options(function: Callable[..., Any]) -> dict[str, Any]:
    """The keyword-only arguments of a function with their defaults."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def check_option(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """Refuses a value of an option that is not allowed."""
    if value not in allowed:
        raise UserError(f"{name} is {value!r}, allowed: {', '.join(allowed)}")


GIVE_ANOTHER = "give another value"


def option_types(model: type[Backbone]) -> dict[str, Any]:
    """The types of a model's options as its plan declares them; Any where a plugin declares none."""
    try:
        hints = get_type_hints(model.plan)
    except NameError:  # imported for type checkers alone
        hints = {}
    return {name: hints.get(name, Any) for name in model.default_options()}


def check_option_range(name: str, value: Any) -> None:
    """Refuses numbers outside of the range of an option (see `OPTION_RANGES`)."""
    for number in value if isinstance(value, tuple) else (value,):
        if isinstance(number, bool) or not isinstance(number, int | float):
            continue
        if name in OPTION_RANGES:
            check_number(name, number, *OPTION_RANGES[name])
        elif name.endswith("_rate"):
            check_number(name, number, 0, below=1)
        else:
            check_number(name, number)


MOST_TOKENS = 2**16  # of which each attends to each: 4 billion pairs


def patch_grid(
    img_size: int | tuple[int, int], patch_size: int, stride: int | None = None, most: int = MOST_TOKENS
) -> Grid:
    """Rows and columns of patches that cover the image exactly; they overlap where the stride is shorter.

    Args:
        most: The largest number of patches that is accepted; more would be computed for days.

    >>> patch_grid(224, 16), patch_grid(224, 16, stride=8), patch_grid((32, 64), 8)
    ((14, 14), (27, 27), (4, 8))
    """
    step = patch_size if stride is None else stride
    sides = to_2tuple(img_size)
    if min(patch_size, step) < 1 or any(side < patch_size or (side - patch_size) % step for side in sides):
        unit = f"patch_size {patch_size}"
        needed = f"a multiple of {unit}" if stride is None else f"{unit} plus a multiple of stride {stride}"
        raise UserError(f"img_size {img_size} is not {needed}; change one of them")
    rows, columns = ((side - patch_size) // step + 1 for side in sides)
    if rows * columns > most:
        raise UserError(
            f"img_size {img_size} has {rows * columns:,} patches of {patch_size} px, more than {most:,}; take smaller "
            "images (--img-size) or larger patches (--patch-size)"
        )
    return rows, columns


def total_depth(arch: Arch) -> int:
    """The number of blocks in the four stages of an arch."""
    return sum(len(arch[stage].blocks) for stage in STAGES)


def drop_path_rates(depth: int, last: float) -> Iterator[float]:
    """Stochastic-depth rates of the blocks, evenly from 0 to the last one's.

    >>> [round(rate, 2) for rate in drop_path_rates(4, 0.3)]
    [0.0, 0.1, 0.2, 0.3]
    """
    if depth > DEEPEST:
        raise UserError(f"the arch has {depth} blocks; {DEEPEST} are the most that can be built")
    return (last * index / max(depth - 1, 1) for index in range(depth))


def rename(name: str, patterns: Iterable[tuple[str, str]]) -> str:
    """The name of a weight after every pattern, in turn, has been replaced.

    >>> rename("head.weight", [(r"^head\\.", "head.fc.")])
    'head.fc.weight'
    """
    for pattern, replacement in patterns:
        name = re.sub(pattern, replacement, name)
    return name


def options_from_json(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a model as they were before JSON turned their tuples into lists, which are not hashable."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
