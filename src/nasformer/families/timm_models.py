"""Our models as timm makes them: by name, with an arch, as feature extractors, from a folder with weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from timm.models import build_model_with_cfg

from nasformer.errors import UserError
from nasformer.families.base import Backbone, model_options
from nasformer.families.registry import get_space, list_spaces
from nasformer.families.space import Space, read_arch
from nasformer.families.storage import pretrained_config
from nasformer.families.timm_registry import timm_name
from nasformer.layers.stem import both_sides
from nasformer.space.arch import Arch
from nasformer.supernet.storage import retupled


def create_model(
    family: str,
    pretrained: bool = False,
    *,
    arch: Arch | Mapping[str, Any] | str | Path | None = None,
    space: str | None = None,
    pretrained_cfg: Any = None,
    features_only: bool = False,
    out_indices: Any = 4,
    **options: Any,
) -> Any:
    """What `timm.create_model` calls.

    Args:
        arch: A dict, an Arch, JSON, a JSON file or a preset's name. It need not be a member of any space.
        space: The space whose model options and presets are meant; by default the family's.
        features_only: Maps of the chosen places in the net instead of logits.
        out_indices: Which ones: the last n (fewer where a net has fewer stages), or a list.
        options: timm's own, and options of the model, such as img_size and num_classes.
    """
    declared = space_of(family, space)
    timms = {name: options.pop(name) for name in ("pretrained_cfg_overlay", "cache_dir") if name in options}
    chosen = model_options(declared.model) | dict(declared.options if space else {})
    chosen |= known_options(declared.model, options)
    found = trained_config(pretrained_cfg)
    if pretrained and not found:
        raise UserError(f"{timm_name(family)} has no published weights; load a folder: 'local-dir:DIR'")
    asked = chosen["img_size"]
    if pretrained:  # positions fit their own image size; they are resampled when they are there
        chosen["img_size"] = tuple(found["input_size"][1:])
    model = build_model_with_cfg(
        declared.model,
        timm_name(family),
        pretrained,
        pretrained_cfg=retupled(found or pretrained_config(chosen)),
        feature_cfg={"feature_cls": "getter", "out_indices": out_indices},
        features_only=features_only,
        arch=family_arch(declared, arch),
        **timms,
        **chosen,
    )
    if both_sides(asked) != both_sides(chosen["img_size"]):
        (model.model if features_only else model).set_input_size(asked)
    return model


def trained_config(given: Any) -> dict[str, Any]:
    """timm's config of the weights to load, if there is one."""
    if given is None or isinstance(given, str):
        return {}
    return dict(given) if isinstance(given, Mapping) else given.to_dict()


def space_of(family: str, name: str | None) -> Space:
    """The space that was named, or the first one of the family."""
    if name is None:
        return next(space for space in list_spaces().values() if space.model.family == family)
    space = get_space(name)
    if space.model.family != family:
        raise UserError(f"{name} is a space of {space.model.family}, not of {family}; see timm's nasformer_* models")
    return space


def known_options(model: type[Backbone], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that the model has. timm's scripts also pass some that are switched off; these are nothing to us."""
    known = model_options(model)
    for name, value in options.items():
        if name not in known and value:
            raise UserError(
                f"{timm_name(model.family)} has no option {name!r}; it has: arch, space, {', '.join(known)}"
            )
    return retupled({name: value for name, value in options.items() if name in known})


def family_arch(space: Space, source: Arch | Mapping[str, Any] | str | Path | None) -> Arch:
    """An arch in any form; it may lie outside of the space."""
    if source is None:
        names = ", ".join(space.presets) or "none"
        raise UserError(f"say which arch: a dict, JSON, or a preset's name ({names}), as in arch='...'")
    if isinstance(source, Arch):
        return source
    if isinstance(source, str) and source in space.presets:
        return space.presets[source]
    values = read_arch(source, space) if isinstance(source, str | Path) else source
    arch = Arch.from_dict(space.model.columns(values))
    try:
        space.with_options(num_classes=0).plan(arch)
    except (AttributeError, KeyError, TypeError) as error:
        raise UserError(f"this is no arch of {space.model.family} ({error}); see nasformer sample --space") from None
    return arch
