"""As for the families: nets this small gain nothing from threads."""

from families.conftest import one_thread

__all__ = ["one_thread"]
