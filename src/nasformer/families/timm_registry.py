"""Makes timm know our families, `timm.create_model("nasformer_autoformer", arch=...)`, whoever is imported first.

timm takes seconds to import, so `import nasformer` does not do it: the names are registered once timm is there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from nasformer.families.names import FAMILIES

REGISTRY = "timm.models._registry"
_offered: dict[str, Callable[..., Any]] = {}


def timm_name(family: str) -> str:
    return f"nasformer_{family}"


def offer(family: str) -> None:
    """Registers a family with timm, now or as soon as timm is imported."""
    if family not in _offered:
        _offered[family] = entry_point(family)
        registry = sys.modules.get(REGISTRY)
        if hasattr(registry, "register_model"):
            registry.register_model(_offered[family])  # type: ignore[union-attr]


def entry_point(family: str) -> Callable[..., Any]:
    """The function that timm calls to make a model."""

    def create(pretrained: bool = False, **options: Any) -> Any:
        from nasformer.families.timm_models import create_model

        return create_model(family, pretrained, **options)

    create.__name__ = create.__qualname__ = timm_name(family)
    return create


class OnceTimmIsThere:
    """Sees the import of timm's registry, lets it happen and then registers what was offered so far."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != REGISTRY:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            loader, execute = spec.loader, spec.loader.exec_module

            def execute_and_register(module: ModuleType) -> None:
                execute(module)
                for create in _offered.values():
                    module.register_model(create)

            loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec


def install() -> None:
    """Offers the families that come with nasformer."""
    if not hasattr(sys.modules.get(REGISTRY), "register_model"):
        sys.meta_path.insert(0, OnceTimmIsThere())
    for family in FAMILIES:
        offer(family)
