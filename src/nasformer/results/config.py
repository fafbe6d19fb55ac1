"""The config of a run (`config.json`): what was asked, typed as far as later commands read it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from nasformer.data.options import DataOptions
from nasformer.families.options import SpaceOptions
from nasformer.train.recipe import Recipe
from nasformer.utils.files import read_json
from nasformer.utils.schema import from_json


@dataclass
class RunConfig(DataOptions, SpaceOptions):
    """What a run was asked: its images, its space, and the options of its stages."""

    kind: str | None = None
    """what the folder holds; folders of older versions do not say it"""
    train: Recipe = field(default_factory=Recipe)
    search: dict[str, Any] = field(default_factory=dict)
    budget: dict[str, str | float | None] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    """all of the file as it is, for reports"""

    @classmethod
    def load(cls, path: Path) -> RunConfig:
        """Reads a `config.json`; one of another shape is refused with the field that is wrong."""
        content = read_json(path)
        return from_json(cls, {**content, "settings": content}, path)

    def data_options(self) -> DataOptions:
        return DataOptions(**{item.name: getattr(self, item.name) for item in fields(DataOptions)})
