"""A model as a folder: weights as safetensors, and a config that rebuilds it, for us and for timm.

Below: our families as timm makes them, by name, with an arch, as feature extractors, or from such a folder. At the end:
weights of one model in another, for other images and classes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import nasformer
from nasformer.data.decode import Preprocessing, for_channels
from nasformer.errors import UserError, is_out_of_memory
from nasformer.layers.stem import to_2tuple
from nasformer.models.base import Backbone, options_from_json
from nasformer.models.dense import saved_family
from nasformer.models.registry import get_space, list_spaces, timm_name
from nasformer.models.space import Space, read_arch
from nasformer.space.arch import Arch
from nasformer.utils.files import read_json, read_tensors, save_tensors, write_json
from nasformer.utils.schema import from_json

WEIGHTS, CONFIG = "model.safetensors", "config.json"
SUPERNET_CONFIG = "supernet.json"
EXTRACT_AGAIN = "restore it or extract the model again"
TIMM_KEYS = ("architecture", "num_classes", "num_features", "model_args", "label_names", "pretrained_cfg")
OUR_KEYS = ("family", "arch", "options", "nasformer")


@dataclass(frozen=True)
class ModelConfig:
    """The family, arch and options that a model is built from."""

    family: str
    arch: Arch
    options: dict[str, Any]

    @classmethod
    def load(cls, path: Path) -> ModelConfig:
        return from_json(cls, read_json(path), path, EXTRACT_AGAIN)


@dataclass(frozen=True)
class WeightFacts:
    """The facts saved with a supernet or a model, as far as they are read again; None where one is unknown.

    Args:
        mean, std: Of each channel of the images.
        words: The vocabulary of a model that answers questions.
        text_encoder: The encoder of the library transformers that reads the questions for such a model.
        ignore: Ids of the pixels that a model of segmentation was not trained on.
        sigma: By how many pixels centres were blurred in the heat map that a panoptic model learned.
        stuff_area: Share of the image below which a panoptic model drops areas of stuff.
        trained_on: Which images were trained on and which held out.
        provenance: How the model of an export was made.
    """

    space: str | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    classes: list[str] | None = None
    words: list[str] | None = None
    text_encoder: str | None = None
    ignore: str | None = None
    sigma: float | None = None
    stuff_area: float | None = None
    preprocessing: dict[str, Any] | None = None
    trained_on: dict[str, str | float | None] | None = None
    test_accuracy: float | None = None
    holdout_accuracy: float | None = None
    provenance: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        for name, values in {"mean": self.mean, "std": self.std}.items():
            if values is not None and not (values and all(map(math.isfinite, values))):
                raise ValueError(f"{name} has no values, or values that are not finite")
        if self.std is not None and min(self.std) <= 0:
            raise ValueError("std has a value that is not above 0")

    @classmethod
    def load(cls, path: Path, advice: str = EXTRACT_AGAIN) -> WeightFacts:
        return from_json(cls, read_json(path), path, advice)


def save_model(model: Backbone, folder: str | Path, **facts: Any) -> Path:
    """Writes a model's weights and config, with any facts about it (accuracy, recipe ...)."""
    folder = Path(folder)
    save_tensors(folder / WEIGHTS, model.state_dict())
    of_timm = timm_config(model, facts) if model.task == "classify" else {}
    config = {"family": model.family, "arch": model.arch.to_dict(), "options": model.options, **facts}
    write_json(folder / CONFIG, {**config, "nasformer": nasformer.__version__, **of_timm})
    return folder


def facts_in(folder: str | Path) -> dict[str, Any]:
    """The facts that a model was saved with."""
    config = read_json(Path(folder) / CONFIG)
    unknown = [name for name, value in vars(WeightFacts.load(Path(folder) / CONFIG)).items() if value is None]
    return {name: value for name, value in config.items() if name not in (*OUR_KEYS, *TIMM_KEYS, *unknown)}


def load_model(
    folder: str | Path, *, img_size: int | tuple[int, int] | None = None, num_classes: int | None = None
) -> Backbone:
    """The model that `save_model` or `nasformer extract` wrote, ready for evaluation.

    Args:
        img_size: Another image size: absolute positions are resampled.
        num_classes: Another number of classes: the classifier is fresh then, and to be trained.
    """
    model = load_as_saved(Path(folder))
    if img_size is not None and input_shape(model)[1:] != to_2tuple(img_size):
        model.set_input_size(img_size)
    if num_classes is not None and num_classes != model.num_classes:
        model.reset_classifier(num_classes)
    return model


def load_as_saved(folder: Path) -> Backbone:
    """The model as it was saved."""
    if not folder.is_dir():
        raise UserError(f"no model folder at {folder}; `nasformer extract` makes one")
    path = folder / CONFIG
    config = ModelConfig.load(path)
    family = saved_family(config.family, path)
    state = read_tensors(folder / WEIGHTS)
    model = build_saved(family, config, state, path)
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise UserError(f"{folder / WEIGHTS} does not fit its config ({str(error).splitlines()[-1].strip()})") from None
    return model.eval()


def build_saved(family: type[Backbone], config: ModelConfig, state: Mapping[str, Tensor], path: Path) -> Backbone:
    """Builds the model of a config; refuses one that needs more weights than there are before it takes the memory."""
    try:
        options = family.check_options(options_from_json(config.options))
        needed = sum(segment.cost().params for segment in family.plan(config.arch, **options))
        if needed > (stored := sum(weight.numel() for weight in state.values())):
            raise UserError(f"it needs {needed:,} weights, there are {stored:,}")
        return family(config.arch, **options)
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError, RuntimeError, UserError) as error:
        if is_out_of_memory(error):
            raise
        raise UserError(f"{path} is damaged ({error}); {EXTRACT_AGAIN}") from None


def class_names(names: Sequence[str] | None, model: Backbone, folder: Path) -> list[str]:
    """The names of a model's classes, or their numbers where they have no names."""
    if names is not None and len(names) != model.num_classes:
        raise UserError(f"{folder} names {len(names)} classes for a model of {model.num_classes}; {EXTRACT_AGAIN}")
    return list(names) if names is not None else [str(number) for number in range(model.num_classes)]


def input_shape(model: Backbone) -> tuple[int, int, int]:
    """Channels, rows and columns of the images that a model takes."""
    return (model.options["in_chans"], *to_2tuple(model.options["img_size"]))


# What timm reads in a config.json, so that it can rebuild the model from the folder.


def timm_config(model: Backbone, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Name, arguments and image preprocessing of a model under timm's keys.

    >>> import nasformer
    >>> space = nasformer.get_space("autoformer-micro")
    >>> config = timm_config(space.build(space.sample()), {})
    >>> config["architecture"], config["pretrained_cfg"]["input_size"]
    ('nasformer_autoformer', [3, 32, 32])
    """
    labels = {"label_names": list(facts["classes"])} if "classes" in facts else {}
    return {
        "architecture": timm_name(model.family),
        "num_classes": model.num_classes,
        "num_features": model.num_features,
        "model_args": {"arch": model.arch.to_dict(), **model.options},
        **labels,
        "pretrained_cfg": pretrained_config(model.options, facts, first_convolution(model)),
    }


def pretrained_config(
    options: Mapping[str, Any], facts: Mapping[str, Any] | None = None, first_conv: str | None = None
) -> dict[str, Any]:
    """Timm's config of a model's weights, from the model's options and the facts about it."""
    return {
        **preprocessing_of(options, facts or {}).timm_config(),
        "fixed_input_size": True,
        "num_classes": options["num_classes"],
        # timm adapts the first filters to other numbers of channels, and assumes that all weights are for 3
        "first_conv": first_conv if options["in_chans"] == 3 else None,
        "classifier": "head.fc",
    }


def preprocessing_of(options: Mapping[str, Any], facts: Mapping[str, Any]) -> Preprocessing:
    """How images are prepared for a model, from its options and the facts it was saved with.

    Models of earlier versions say at most how images are normalised; they are taken to be resized without a crop.
    """
    stored = from_json(dict[str, Any], facts.get("preprocessing", {}), CONFIG, EXTRACT_AGAIN)
    settings = {"mean": facts.get("mean"), "std": facts.get("std"), **stored}
    shape = {"img_size": to_2tuple(options["img_size"]), "in_chans": options["in_chans"]}
    return from_json(Preprocessing, {**settings, **shape}, CONFIG, EXTRACT_AGAIN)


def normalisation(model: Backbone, folder: Path) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation by which images are normalised for a model of a folder, one value for each channel."""
    preprocessing, channels = preprocessing_of(model.options, facts_in(folder)), model.options["in_chans"]
    if preprocessing.mean is None or preprocessing.std is None:
        raise UserError(f"{folder} does not say how images are normalised; train or extract the model again")
    return for_channels(preprocessing.mean, channels), for_channels(preprocessing.std, channels)


def first_convolution(model: nn.Module) -> str | None:
    """The name of the first convolution; None where a model has none."""
    return next((name for name, layer in model.named_modules() if isinstance(layer, nn.Conv2d)), None)


def fingerprint(model: nn.Module) -> str:
    """A digest of all weights, which identifies a model or a supernet."""
    digest = hashlib.blake2b(digest_size=8)
    for weight in model.parameters():
        digest.update(weight.detach().cpu().numpy().tobytes())
    return digest.hexdigest()


# Our families in timm: `timm.create_model("nasformer_autoformer", arch=...)` (see `models/registry.py`).

TIMM_OPTIONS = ("pretrained_cfg_overlay", "cache_dir", "pretrained_model_args")
"""Arguments that timm's factory passes on to `build_model_with_cfg`; the last one since timm 1.0.31."""


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
    from timm.models import build_model_with_cfg  # late: timm takes longer to import than torch

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
    """timm's config of the weights to load, as a dict; empty without one."""
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


# Weights of one model in another.

NOT_OF_BACKBONE = ("norm.", "head.")


def fresh_model(space: Space, arch: Arch, seed: int) -> Backbone:
    """The model with initial weights that depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return space.build(arch)


def build_from(source: Backbone, space: Space, seed: int, keep_classifier: bool) -> Backbone:
    """The model of a space with the weights of another one of the same arch, which is resized where needed.

    Fresh weights depend on the seed alone.
    """
    model = fresh_model(space, source.arch, seed)
    if input_shape(source)[1:] != input_shape(model)[1:]:
        source.set_input_size(to_2tuple(model.options["img_size"]))
    state, fresh = source.state_dict(), model.state_dict()
    if source.options["in_chans"] != model.options["in_chans"]:
        name = f"{first_convolution(model)}.weight"
        state[name] = adapt_channels(state[name], model.options["in_chans"])
    if source.family != model.family:  # the head is for another task
        state = fresh | {name: weight for name, weight in state.items() if not name.startswith(NOT_OF_BACKBONE)}
    elif not keep_classifier:
        state |= {name: weight for name, weight in fresh.items() if name.startswith(model.classifiers)}
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise UserError(f"the weights do not fit ({reason}); leave --patch-size and --model as they were") from None
    return model


def adapt_channels(weight: Tensor, channels: int) -> Tensor:
    """A convolution of images for another number of channels, as timm adapts it.

    For grey images the sum over the old channels, else these in turn, scaled to about the same answers.

    >>> weight = torch.tensor([1.0, 2.0, 3.0]).view(1, 3, 1, 1)
    >>> adapt_channels(weight, 1).flatten().tolist(), adapt_channels(weight, 4).flatten().tolist()
    ([6.0], [0.75, 1.5, 2.25, 0.75])
    """
    if channels == 1:
        return weight.sum(1, keepdim=True)
    old = weight.shape[1]
    return weight[:, torch.arange(channels, device=weight.device) % old] * (old / channels)
