"""What every family's static model has in common: it is built from its plan and speaks timm's language."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nasformer.errors import UserError
from nasformer.families.segment import Segment
from nasformer.families.sharing import MultiHead, Rule
from nasformer.space import Arch, Struct


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
        from nasformer.export.model_folder import save_model

        return save_model(self, folder, **facts)

    @classmethod
    def from_pretrained(cls, folder: str | Path, **changes: Any) -> Self:
        """The model in a folder that `save_pretrained` wrote; for another `img_size` or `num_classes` if so asked.

        Nothing is downloaded.
        """
        from nasformer.export.model_folder import load_model

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
