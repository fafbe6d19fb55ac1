"""Training, evaluation and the search with inherited weights."""

from nasformer.recipe import Recipe
from nasformer.train.evaluate import evaluate, inherited_accuracy
from nasformer.train.loop import Trainer
from nasformer.train.models import train_model
from nasformer.train.supernets import search_supernet, train_supernet

__all__ = ["Recipe", "Trainer", "evaluate", "inherited_accuracy", "search_supernet", "train_model", "train_supernet"]
