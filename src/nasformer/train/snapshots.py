"""Snapshots of a supernet during its training: the accuracy of a few subnets with the weights of the moment.

They change nothing: what is random in a step depends on the step alone, and batch norm is estimated anew on copies.
"""

from __future__ import annotations

from nasformer.data.loaders import BatchSource
from nasformer.errors import UserError
from nasformer.space.arch import Arch
from nasformer.space.node import Node, corners
from nasformer.supernet.calibration import IMAGES
from nasformer.supernet.health import fixed_subnets
from nasformer.supernet.supernet import Supernet
from nasformer.train.evaluate import SubnetEvaluator
from nasformer.train.recipe import Recipe


class Snapshots:
    """Evaluates subnets every `watch_epochs` of the recipe, and at the end, on held-out images only.

    These are the largest arch of each operator, and the subnets by which `nasformer doctor` judges.
    """

    def __init__(
        self, supernet: Supernet, batches: BatchSource, recipe: Recipe, images: int = IMAGES, seed: int = 0
    ) -> None:
        self.supernet, self.batches, self.precision, self.images = supernet, batches, recipe.precision, images
        epochs = recipe.watch_epochs
        self.interval = max(1, round(epochs * batches.steps_per_epoch)) if epochs else 0
        if self.interval and not batches.held_out:
            raise UserError("watch_epochs needs images held out of training; set --holdout 0.1 or so, or leave it out")
        self.operators = operator_archs(supernet.space.root) if self.interval else {}
        self.subnets = fixed_subnets(supernet.space, seed) if self.interval else {}

    def due(self, done: int, total: int) -> bool:
        """Whether there is a snapshot after so many steps out of all."""
        return self.interval > 0 and (done % self.interval == 0 or done == total)

    def take(self) -> dict[str, dict[str, float]]:
        """The accuracies of operators ("watch") and of "subnets" by name. The supernet's mode stays as it was."""
        training = self.supernet.training
        # A new evaluator each time, since the weights have changed.
        evaluator = SubnetEvaluator(self.supernet, self.batches, self.precision, self.images)
        archs = {*self.operators.values(), *self.subnets.values()}
        accuracy = {arch: evaluator.accuracy(arch, "holdout") for arch in archs}
        self.supernet.train(training)
        groups = {"watch": self.operators, "subnets": self.subnets}
        return {group: {name: accuracy[arch] for name, arch in named.items()} for group, named in groups.items()}


def operator_archs(root: Node) -> dict[str, Arch]:
    """The largest arch of each pure operator by the operator's name.

    Where not every alternative has such an arch, or there are none, also the smallest and the largest of all.

    >>> from nasformer.space import Choice, OneOf, Struct
    >>> operator_archs(Struct(operator=OneOf(conv=Choice(3, 5), attention=Choice(4, 8)), dim=Choice(16, 32)))
    {'conv': Arch(operator=Arch(conv=5), dim=32), 'attention': Arch(operator=Arch(attention=8), dim=32)}
    >>> operator_archs(Struct(dim=Choice(16, 32)))
    {'smallest': Arch(dim=16), 'largest': Arch(dim=32)}
    """
    pure: dict[str, Arch] = {}
    largest = corners(root)
    for arch in largest:
        operators = {name for _, name in root.picks(arch)}
        if len(operators) == 1:
            pure |= {operators.pop(): arch}
    return pure if len(pure) == len(largest) else pure | {"smallest": root.smallest(), "largest": root.largest()}
