"""A plugin of nasformer: importing it registers a family with a space, a proxy and a strategy."""

from nasformer_example import family, proxy, strategy  # noqa: F401 - registered on import
