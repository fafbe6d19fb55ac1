"""Our models as timm makes them: by name, with an arch, as feature extractors, from a folder with weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from timm.models import build_model_with_cfg

from nasformer.errors import UserError
from nasformer.layers.stem import to_2tuple
from nasformer.models.base import Backbone, options_from_json
from nasformer.models.registry import get_space, list_spaces, timm_name
from nasformer.models.space import Space, read_arch
from nasformer.models.storage import pretrained_config
from nasformer.space.arch import Arch

TIMM_OPTIONS = ("pretrained_cfg_overlay", "cache_dir", "pretrained_model_args")
"""What timm's factory passes on to `build_model_with_cfg`; the last one since timm 1.0.31."""


def create_model(
    family: str,
    pretrained: bool = False,
    *,
    arch: Arch | Mapping[str, Any] | str | Path | None = None,
    space: str | None = None,
    pretrained_cfg: Any = None,
    features_only: bool = False,
    out_indices: int | list[int] = 4,
    **options: Any,
) -> Any:
    """Makes a model for `timm.create_model`.

    Args:
        arch: A dict, an Arch, JSON, a JSON file or a preset's name. It need not be a member of any space.
        space: The space whose model options and presets are meant; by default the first one of the family.
        features_only: Feature maps instead of logits.
        out_indices: Which ones: the last n (fewer where a net has fewer stages), or a list.
        options: timm's own, and options of the model, such as img_size and num_classes.
    """
    home = find_space(family, space)
    timm_options = {name: options.pop(name) for name in TIMM_OPTIONS if name in options}
    model_options = home.model.default_options() | dict(home.options if space else {})
    model_options |= accepted_options(home.model, options)
    weights_cfg = as_dict(pretrained_cfg)
    if pretrained and not weights_cfg:
        raise UserError(f"{timm_name(family)} has no published weights; load a folder: 'local-dir:DIR'")
    img_size = model_options["img_size"]
    if pretrained:  # positions fit the image size of the weights; they are resampled after loading
        model_options["img_size"] = tuple(weights_cfg["input_size"][1:])
    model = build_model_with_cfg(
        home.model,
        timm_name(family),
        pretrained,
        pretrained_cfg=options_from_json(weights_cfg or pretrained_config(model_options)),
        feature_cfg={"feature_cls": "getter", "out_indices": out_indices},
        features_only=features_only,
        arch=any_arch(home, arch),
        **timm_options,
        **model_options,
    )
    if to_2tuple(img_size) != to_2tuple(model_options["img_size"]):
        (model.model if features_only else model).set_input_size(img_size)
    return model


def as_dict(pretrained_cfg: Any) -> dict[str, Any]:
    """timm's config of the weights to load; empty if there is none."""
    if pretrained_cfg is None or isinstance(pretrained_cfg, str):
        return {}
    return dict(pretrained_cfg) if isinstance(pretrained_cfg, Mapping) else pretrained_cfg.to_dict()


def find_space(family: str, name: str | None) -> Space:
    """The space of this name, or the first one of the family."""
    if name is None:
        spaces = [space for space in list_spaces().values() if space.model.family == family]
        if not spaces:
            raise UserError(f"the family {family} has no space; register one with register_space")
        return spaces[0]
    space = get_space(name)
    if space.model.family != family:
        raise UserError(f"{name} is a space of {space.model.family}, not of {family}; see timm's nasformer_* models")
    return space


def accepted_options(model: type[Backbone], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that the model has. timm's scripts also pass others that are switched off, which are ignored."""
    defaults = model.default_options()
    for name, value in options.items():
        if name not in defaults and value:
            raise UserError(
                f"{timm_name(model.family)} has no option {name!r}; it has: arch, space, {', '.join(defaults)}"
            )
    return options_from_json({name: value for name, value in options.items() if name in defaults})


def any_arch(space: Space, source: Arch | Mapping[str, Any] | str | Path | None) -> Arch:
    """An arch in any form; it may lie outside of the space."""
    if source is None:
        names = ", ".join(space.presets) or "none"
        raise UserError(f"say which arch: a dict, JSON, or a preset's name ({names}), as in arch='...'")
    if isinstance(source, Arch):
        return source
    named = space.named_arch(source) if isinstance(source, str) else None
    if named is not None:
        return named
    values = read_arch(source, space) if isinstance(source, str | Path) else source
    arch = Arch.from_dict(space.model.from_columns(values))
    try:
        space.with_options(num_classes=0).plan(arch)
    except (AttributeError, KeyError, TypeError) as error:
        raise UserError(f"this is no arch of {space.model.family} ({error}); see nasformer sample --space") from None
    return arch
