"""Other people's names of weights, turned into ours by a table of patterns."""

from __future__ import annotations

import inspect
import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nasformer.errors import UserError
from nasformer.families.segment import Segment
from nasformer.families.sharing import MultiHead, Rule
from nasformer.layers.stem import Grid, both_sides
from nasformer.space.arch import Arch
from nasformer.space.struct import Struct


def rename(name: str, patterns: Iterable[tuple[str, str]]) -> str:
    """The name after every pattern, in turn, has been replaced.

    >>> rename("head.weight", [(r"^head\\.", "head.fc.")])
    'head.fc.weight'
    """
    for pattern, replacement in patterns:
        name = re.sub(pattern, replacement, name)
    return name


# ----------------------------------------------------------------------------------------------------------------------
# What every family's static model has in common: it is built from its plan and speaks timm's language.
# ----------------------------------------------------------------------------------------------------------------------


class Backbone(nn.Module):
    """A plain, static network: the segments of a plan, one after the other; the last one is the head.

    A family subclasses it and says `plan` (the network of an arch), `sharing` (how a supernet's weights are sliced)
    and `columns` (how papers print its archs). Options of the model are the keyword arguments of `plan`; `layer_of` is
    for those who have the layers already.
    """

    family: ClassVar[str]
    undecayed: ClassVar[frozenset[str]] = frozenset()
    """Ends of the names of weights that no weight decay should touch, beside biases and norms."""
    head: Any

    def __init__(self, arch: Arch, *, layer_of: Callable[[Segment], nn.Module] = Segment.build, **options: Any) -> None:
        super().__init__()
        self.arch, self.options = arch, model_options(type(self)) | options
        segments = self.plan(arch, **options)
        self.segment_names = [segment.name for segment in segments]
        for segment in segments:
            attach(self, segment.name, layer_of(segment))
        self.grad_checkpointing = False

    plan: ClassVar[Callable[..., list[Segment]]]
    """A class method ``plan(arch, *, option=default ...)``."""

    @classmethod
    def sharing(cls, **options: Any) -> Mapping[str, Rule | MultiHead]:
        """Rules by the end of a parameter's name; what is not named shares its prefix."""
        return {}

    @classmethod
    def columns(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """An arch in the form that papers print, turned into our generic form."""
        return values

    @classmethod
    def limits(cls, **options: Any) -> Mapping[str, tuple[float | None, float | None]]:
        """The least and the largest sensible value, both inclusive, of dimensions that have such an end; None: no end.

        Beyond it a value is still legal, but only another name for the same net.
        """
        return {}

    @classmethod
    def options_of(cls, root: Struct) -> Mapping[str, Any]:
        """Options that follow from the declaration of a space."""
        return {}

    @property
    def num_classes(self) -> int:
        return self.options["num_classes"]

    def run(self, names: Sequence[str], x: Tensor) -> Tensor:
        for name in names:
            segment = self.get_submodule(name)
            if self.grad_checkpointing and torch.is_grad_enabled():
                x = checkpoint(segment, x, use_reentrant=False)
            else:
                x = segment(x)
        return x

    def forward_features(self, x: Tensor) -> Tensor:
        return self.run(self.segment_names[:-1], x)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        return self.head(x, pre_logits=pre_logits)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))

    def get_classifier(self) -> nn.Module:
        return self.head.fc

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """A fresh head for another number of classes; 0 leaves the features."""
        self.options["num_classes"] = num_classes
        if global_pool:
            self.options["global_pool"] = global_pool
        self.head.reset(num_classes, global_pool)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        self.grad_checkpointing = enable

    def save_pretrained(self, folder: str | Path, **facts: Any) -> Path:
        """Writes weights and config into a folder, with any facts about the model, such as mean and std."""
        from nasformer.families.storage import save_model

        return save_model(self, folder, **facts)

    @classmethod
    def from_pretrained(cls, folder: str | Path, **changes: Any) -> Self:
        """The model in a folder that `save_pretrained` wrote; for another `img_size` or `num_classes` if so asked.

        Nothing is downloaded.
        """
        from nasformer.families.storage import load_model

        if not Path(folder).is_dir():
            raise UserError(f"there is no folder {folder}; if it is on a hub, download it first and name the folder")
        model = load_model(folder, **changes)
        if not isinstance(model, cls):
            raise UserError(f"{folder} holds a model of the family {model.family}, not of {cls.family}")
        return model

    @torch.jit.ignore
    def no_weight_decay(self) -> set[str]:
        return {name for name, _ in self.named_parameters() if name.endswith(tuple(self.undecayed))}


def model_options(model: type[Backbone]) -> dict[str, Any]:
    """The options of a model with their defaults: the keyword-only arguments of its `plan`."""
    parameters = inspect.signature(model.plan).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def attach(root: nn.Module, name: str, module: nn.Module) -> None:
    """Puts a module at a dotted name, with containers on the way: ``blocks.3`` is item 3 of ``root.blocks``."""
    *path, last = name.split(".")
    for part in path:
        if not hasattr(root, part):
            root.add_module(part, nn.Sequential())
        root = getattr(root, part)
    root.add_module(last, module)


def detach(root: nn.Module, name: str) -> None:
    """Takes the module at a dotted name away, and containers that are empty then."""
    path, _, last = name.rpartition(".")
    container = root.get_submodule(path)
    delattr(container, last)
    if path and not any(container.children()):
        detach(root, path)


# ----------------------------------------------------------------------------------------------------------------------
# What families have in common that hand out feature maps as timm's models do.
#
# Maps, pruning and image size follow from the plan and from `feature_info`, whatever the stages of a family are.
# ----------------------------------------------------------------------------------------------------------------------


class FeatureBackbone(Backbone):
    """A stem, blocks (perhaps in stages), a norm and a head. A family adds `plan`, `feature_info` and `as_map`."""

    norm: nn.Module

    @property
    def num_features(self) -> int:
        return self.head.embed_dim

    embed_dim = head_hidden_size = num_features

    @property
    @abstractmethod
    def feature_info(self) -> list[dict[str, Any]]:
        """For each map that can be taken: channels, reduction, and the block behind which it is taken."""

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """What lies at the chosen places of `feature_info` (all, the last n, or a list), as maps or as tokens.

        The final norm fits what has the final resolution: `norm` leaves maps of earlier stages as they are.
        """
        infos, maps, last = self.feature_info, [], self.feature_info[-1]
        wanted = {infos[index]["module"] for index in chosen(indices, len(infos))}
        normed = {info["module"] for info in infos if info["reduction"] == last["reduction"]}
        for name in self.segment_names[: self.segment_names.index(last["module"]) + 1]:
            x = self.run([name], x)
            if name in wanted:
                maps.append(self.as_map(name, self.norm(x) if norm and name in normed else x, output_fmt))
            if stop_early and len(maps) == len(wanted):
                break
        return maps if intermediates_only else (self.norm(x) if name in normed else x, maps)

    @abstractmethod
    def as_map(self, block: str, x: Tensor, output_fmt: str) -> Tensor:
        """What a block gave as a map ("NCHW") or as its positions in a row ("NLC")."""

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Drops what lies behind the last map wanted, the head, and a norm that does not fit that map."""
        infos = self.feature_info
        kept = chosen(indices, len(infos))
        last, width = infos[max(kept)], self.num_features
        if not prune_head and last["num_chs"] != width:
            raise UserError(f"the head reads {width} features, {last['module']} gives {last['num_chs']}; prune it too")
        end = self.segment_names.index(last["module"]) + 1
        *dropped, norm, head = self.segment_names[end:]
        for name in dropped:
            detach(self, name)
        self.segment_names = [*self.segment_names[:end], norm, head]
        if prune_norm or last["num_chs"] != width:
            self.norm = nn.Identity()
        self.head.embed_dim = last["num_chs"]
        if prune_head:
            self.reset_classifier(0)
        return kept

    def set_input_size(self, img_size: int | tuple[int, int]) -> None:
        """Goes on at another image size: every layer takes its new grid, absolute positions are resampled."""
        for segment in self.plan(self.arch, **{**self.options, "img_size": img_size}):
            grid: Any = dict(segment.options).get("grid")
            if grid is not None and segment.name in self.segment_names:
                layer: Any = self.get_submodule(segment.name)
                layer.set_grid(grid)
        self.options["img_size"] = img_size


def chosen(indices: int | list[int] | None, count: int) -> list[int]:
    """Which of `count` maps are meant: all, the last n, or a list that may count from the end.

    >>> chosen(None, 3), chosen(2, 3), chosen([0, -1], 3)
    ([0, 1, 2], [1, 2], [0, 2])
    """
    if isinstance(indices, int):
        return list(range(count))[-indices:]
    return [range(count)[index] for index in indices or range(count)]


# ----------------------------------------------------------------------------------------------------------------------
# What families have in common whose segments hand on tokens: [batch, 1 + rows * columns, dim], class token first.
# ----------------------------------------------------------------------------------------------------------------------


class TokenBackbone(FeatureBackbone):
    """Patch embedding, blocks (perhaps in stages), a norm and a head. A family adds `plan` and `feature_info`."""

    undecayed = frozenset({"patch_embed.pos_embed", "patch_embed.cls_token"})

    def as_map(self, block: str, x: Tensor, output_fmt: str) -> Tensor:
        patches = x[:, 1:]
        if output_fmt == "NLC":
            return patches
        grid: Any = self.get_submodule(f"{block}.attn").grid
        return patches.transpose(1, 2).unflatten(2, grid)


def check_option(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UserError(f"{name} is {value!r}, allowed: {', '.join(allowed)}")


def patch_grid(img_size: int | tuple[int, int], patch_size: int, stride: int | None = None) -> Grid:
    """Rows and columns of patches that cover the image exactly; they overlap where the stride is shorter.

    >>> patch_grid(224, 16), patch_grid(224, 16, stride=8), patch_grid((32, 64), 8)
    ((14, 14), (27, 27), (4, 8))
    """
    step = patch_size if stride is None else stride
    sides = both_sides(img_size)
    if min(patch_size, step) < 1 or any(side < patch_size or (side - patch_size) % step for side in sides):
        unit = f"patch_size {patch_size}"
        needed = f"a multiple of {unit}" if stride is None else f"{unit} plus a multiple of stride {stride}"
        raise UserError(f"img_size {img_size} is not {needed}; change one of them")
    rows, columns = ((side - patch_size) // step + 1 for side in sides)
    return rows, columns


# ----------------------------------------------------------------------------------------------------------------------
# What families have in common whose segments hand on maps: [batch, channels, rows, columns], in four stages.
# ----------------------------------------------------------------------------------------------------------------------

STAGES = ("stage1", "stage2", "stage3", "stage4")


class MapBackbone(FeatureBackbone):
    """A stem, four stages of blocks of which each halves the map before it, a norm and a head. A family adds `plan`.

    Each stage of an arch has an `embed_dim` and `blocks`; in the plan they are called stages.N.blocks.M.
    """

    stem_option: ClassVar[str] = "patch_size"
    """The option that says by how much the stem shrinks the image."""

    @property
    def feature_info(self) -> list[dict[str, Any]]:
        ends = {name.split(".")[1]: name for name in self.segment_names if ".blocks." in name}  # the last of each stage
        return [
            {
                "num_chs": self.arch[STAGES[number]].embed_dim,
                "reduction": self.options[self.stem_option] * 2**number,
                "module": name,
            }
            for number, name in enumerate(ends.values())
        ]

    @torch.jit.ignore
    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        stages = [(r"^stages\.(\d+)", None)]
        blocks = [(r"^stages\.(\d+)\.downsample", (0,)), (r"^stages\.(\d+)\.blocks\.(\d+)", None)]
        return {"stem": r"^stem", "blocks": [*(stages if coarse else blocks), (r"^norm", (99999,))]}

    def as_map(self, block: str, x: Tensor, output_fmt: str) -> Tensor:
        return x.flatten(2).transpose(1, 2) if output_fmt == "NLC" else x


def drop_path_rates(arch: Arch, last: float) -> Iterator[float]:
    """The rate of each block in the order of the net: from 0 to that of the last, evenly.

    >>> from types import SimpleNamespace
    >>> arch = {stage: SimpleNamespace(blocks=[None]) for stage in STAGES}
    >>> [round(rate, 2) for rate in drop_path_rates(arch, 0.3)]
    [0.0, 0.1, 0.2, 0.3]
    """
    count = sum(len(arch[stage].blocks) for stage in STAGES)
    return (last * number / max(count - 1, 1) for number in range(count))
