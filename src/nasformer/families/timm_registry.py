"""Makes timm know our families, `timm.create_model("nasformer_autoformer", arch=...)`, whichever is imported first.

timm takes seconds to import, so `import nasformer` does not import it: families are registered once timm is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

TIMM_REGISTRY = "timm.models._registry"
_entry_points: dict[str, Callable[..., Any]] = {}


def timm_name(family: str) -> str:
    """The name of a family in timm."""
    return f"nasformer_{family}"


def register_with_timm(*families: str) -> None:
    """Registers families with timm, now or as soon as timm is imported."""
    for family in families:
        if family not in _entry_points:
            _entry_points[family] = make_entry_point(family)
            registry = sys.modules.get(TIMM_REGISTRY)
            if hasattr(registry, "register_model"):
                registry.register_model(_entry_points[family])  # type: ignore[union-attr]
            elif not any(isinstance(finder, TimmImportHook) for finder in sys.meta_path):
                sys.meta_path.insert(0, TimmImportHook())


def make_entry_point(family: str) -> Callable[..., Any]:
    """The function that timm calls to make a model of the family."""

    def create(pretrained: bool = False, **options: Any) -> Any:
        from nasformer.families.timm_models import create_model

        return create_model(family, pretrained, **options)

    create.__name__ = create.__qualname__ = timm_name(family)
    return create


class TimmImportHook:
    """Import hook that registers all families as soon as timm's registry has been imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != TIMM_REGISTRY:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            loader, execute = spec.loader, spec.loader.exec_module

            def execute_and_register(module: ModuleType) -> None:
                execute(module)
                for create in _entry_points.values():
                    module.register_model(create)

            loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec
