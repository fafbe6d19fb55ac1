"""Any dataset to batches of tensors on a device; whatever is random is a pure function of (seed, step)."""

from __future__ import annotations

from nasformer.data.augment import Augment
from nasformer.data.batches import Batch, Batches, BatchSource, Split
from nasformer.data.dataset import from_dataset
from nasformer.data.image_files import ImageFiles
from nasformer.data.images import Data, ImageSet, normalise
from nasformer.data.order import batch_indices, rank_slice, steps_per_epoch
from nasformer.data.rng import generator
from nasformer.data.sources import SOURCES, load_data, open_data
from nasformer.data.split import stratified
from nasformer.data.stream import StreamingFolder, find_files
from nasformer.recipe import AugmentConfig

__all__ = [
    "SOURCES",
    "Augment",
    "AugmentConfig",
    "Batch",
    "BatchSource",
    "Batches",
    "Data",
    "ImageFiles",
    "ImageSet",
    "Split",
    "StreamingFolder",
    "batch_indices",
    "find_files",
    "from_dataset",
    "generator",
    "load_data",
    "normalise",
    "open_data",
    "rank_slice",
    "steps_per_epoch",
    "stratified",
]
