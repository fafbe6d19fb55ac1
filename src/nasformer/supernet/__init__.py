"""Shared weights for a whole space."""

from nasformer.supernet.storage import load_supernet, save_supernet
from nasformer.supernet.supernet import Supernet

__all__ = ["Supernet", "load_supernet", "save_supernet"]
