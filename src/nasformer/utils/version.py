"""The version of the installed package."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("nasformer")
except PackageNotFoundError:  # the sources alone, on a machine where nothing can be installed
    __version__ = "0+unknown"
