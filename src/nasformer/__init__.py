"""nasformer finds, trains and ships the best vision backbone for your data and your budget.

Everything below is imported on first use, so that `import nasformer` does not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from nasformer.models.registry import BUILTIN_FAMILIES, register_with_timm

if TYPE_CHECKING:
    from nasformer.data.images import Data as Data
    from nasformer.data.options import AugmentOptions as AugmentOptions, DataOptions as DataOptions
    from nasformer.data.sources import from_dataset as from_dataset, load_data as load_data
    from nasformer.errors import UserError as UserError
    from nasformer.export.bundle import export_model as export_model
    from nasformer.latency.profile import Profile as Profile, make_profile as make_profile
    from nasformer.layers.basic import Cost as Cost
    from nasformer.models.base import (
        Backbone as Backbone,
        MapBackbone as MapBackbone,
        Segment as Segment,
        TokenBackbone as TokenBackbone,
    )
    from nasformer.models.registry import (
        get_family as get_family,
        get_space as get_space,
        list_families as list_families,
        list_spaces as list_spaces,
        register_family as register_family,
        register_space as register_space,
    )
    from nasformer.models.space import Space as Space
    from nasformer.models.storage import load_model as load_model, save_model as save_model
    from nasformer.proxies.parts import Probe as Probe, noise_probe as noise_probe
    from nasformer.proxies.registry import (
        Proxy as Proxy,
        list_proxies as list_proxies,
        register_proxy as register_proxy,
    )
    from nasformer.proxies.scoring import Score as Score, Scorer as Scorer, score_model as score_model
    from nasformer.report.attention import AttentionMaps as AttentionMaps, attention_maps as attention_maps
    from nasformer.report.plots import plot as plot
    from nasformer.results.contents import RunContents as RunContents, read_run as read_run
    from nasformer.results.folder import RunFolder as RunFolder
    from nasformer.results.result import RunResult as RunResult
    from nasformer.runs.options import RunCommand as RunCommand
    from nasformer.runs.run import run_supernet as run_supernet
    from nasformer.runs.search import search_supernet as search_supernet, search_training_free as search_training_free
    from nasformer.search.cyclic import Cyclic as Cyclic
    from nasformer.search.evolution import Evolution as Evolution
    from nasformer.search.options import SearchOptions as SearchOptions
    from nasformer.search.problem import (
        Candidate as Candidate,
        ModelResult as ModelResult,
        Problem as Problem,
        Proposal as Proposal,
    )
    from nasformer.search.run import SearchResult as SearchResult
    from nasformer.search.strategy import (
        RandomSearch as RandomSearch,
        Strategy as Strategy,
        list_strategies as list_strategies,
        register_strategy as register_strategy,
    )
    from nasformer.space.arch import Arch as Arch
    from nasformer.space.budget import Budget as Budget
    from nasformer.space.mutation import Mutation as Mutation
    from nasformer.space.nodes import Choice as Choice, Node as Node, OneOf as OneOf, Repeat as Repeat, Struct as Struct
    from nasformer.space.rules import Rule as Rule
    from nasformer.supernet.importance import (
        list_importances as list_importances,
        register_importance as register_importance,
        sort_by_importance as sort_by_importance,
    )
    from nasformer.supernet.storage import load_supernet as load_supernet, save_supernet as save_supernet
    from nasformer.supernet.supernet import Supernet as Supernet
    from nasformer.tasks.options import TaskFacts as TaskFacts
    from nasformer.tasks.registry import Task as Task, list_tasks as list_tasks, register_task as register_task
    from nasformer.train.evaluate import evaluate as evaluate
    from nasformer.train.loop import train_model as train_model, train_supernet as train_supernet
    from nasformer.train.recipe import Recipe as Recipe
    from nasformer.utils.plugins import load_plugins as load_plugins

    __version__: str

_MODULES = {
    "data.images": ("Data",),
    "data.options": ("AugmentOptions", "DataOptions"),
    "data.sources": ("load_data", "from_dataset"),
    "errors": ("UserError",),
    "export.bundle": ("export_model",),
    "latency.profile": ("Profile", "make_profile"),
    "layers.basic": ("Cost",),
    "models.base": ("Backbone", "MapBackbone", "Segment", "TokenBackbone"),
    "models.registry": (
        *("get_family", "get_space", "list_families", "list_spaces", "register_family", "register_space"),
    ),
    "models.space": ("Space",),
    "models.storage": ("load_model", "save_model"),
    "proxies.parts": ("Probe", "noise_probe"),
    "proxies.registry": ("Proxy", "list_proxies", "register_proxy"),
    "proxies.scoring": ("Score", "Scorer", "score_model"),
    "report.attention": ("AttentionMaps", "attention_maps"),
    "report.plots": ("plot",),
    "results.contents": ("RunContents", "read_run"),
    "results.folder": ("RunFolder",),
    "results.result": ("RunResult",),
    "runs.options": ("RunCommand",),
    "runs.run": ("run_supernet",),
    "runs.search": ("search_supernet", "search_training_free"),
    "search.cyclic": ("Cyclic",),
    "search.evolution": ("Evolution",),
    "search.options": ("SearchOptions",),
    "search.problem": ("Candidate", "Problem", "Proposal", "ModelResult"),
    "search.run": ("SearchResult",),
    "search.strategy": ("RandomSearch", "Strategy", "list_strategies", "register_strategy"),
    "space.arch": ("Arch",),
    "space.budget": ("Budget",),
    "space.mutation": ("Mutation",),
    "space.nodes": ("Choice", "Node", "OneOf", "Repeat", "Struct"),
    "space.rules": ("Rule",),
    "supernet.importance": ("list_importances", "register_importance", "sort_by_importance"),
    "supernet.storage": ("load_supernet", "save_supernet"),
    "supernet.supernet": ("Supernet",),
    "tasks.options": ("TaskFacts",),
    "tasks.registry": ("Task", "list_tasks", "register_task"),
    "train.evaluate": ("evaluate",),
    "train.loop": ("train_model", "train_supernet"),
    "train.recipe": ("Recipe",),
    "utils.plugins": ("__version__", "load_plugins"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [*_HOMES]

register_with_timm(*BUILTIN_FAMILIES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"nasformer has no attribute {name!r}")
    value = getattr(import_module(f"nasformer.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
