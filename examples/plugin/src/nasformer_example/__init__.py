"""A plugin of nasformer: importing it registers a family with a space, a proxy, a strategy and a task."""

from nasformer_example import family, proxy, strategy, task  # noqa: F401 - registered on import
