"""One paper a file: model, spaces, sharing rules and published archs."""

from nasformer.families.registry import get_space, list_spaces, register
from nasformer.families.space import Space

__all__ = ["Space", "get_space", "list_spaces", "register"]
