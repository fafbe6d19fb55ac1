"""Searching the search space (S3): which values of each dimension are worth searching among."""

from __future__ import annotations

from nasformer.evolving.evolve import evolve, next_space
from nasformer.evolving.quality import Quality, quality
from nasformer.evolving.steps import Dimension, Step

__all__ = ["Dimension", "Quality", "Step", "evolve", "next_space", "quality"]
