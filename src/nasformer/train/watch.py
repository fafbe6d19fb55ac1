"""Watching a supernet while it is trained: the accuracy of a few telling archs with the weights of the moment.

It changes nothing: what is random in a step depends on the step alone, and batch norm is estimated anew on copies.
"""

from __future__ import annotations

from nasformer.data.loaders import BatchSource
from nasformer.errors import UserError
from nasformer.space.arch import Arch
from nasformer.space.node import Node, corners
from nasformer.supernet.calibration import IMAGES
from nasformer.supernet.health import fixed_subnets
from nasformer.supernet.supernet import Supernet
from nasformer.train.evaluate import Heirs
from nasformer.train.recipe import Recipe


class Watch:
    """Looks at a supernet every `watch_epochs` of the recipe, and at the end. Only held-out images are looked at.

    It looks at landmarks, which say how operators do, and at the subnets by which `nasformer doctor` judges.
    """

    def __init__(
        self, supernet: Supernet, batches: BatchSource, recipe: Recipe, images: int = IMAGES, seed: int = 0
    ) -> None:
        self.supernet, self.batches, self.precision, self.images = supernet, batches, recipe.precision, images
        epochs, steps = recipe.watch_epochs, batches.steps_per_epoch
        self.interval = max(1, round(epochs * steps)) if epochs else 0
        if self.interval and not batches.held_out:
            raise UserError("watch_epochs needs images held out of training; set --holdout 0.1 or so, or leave it out")
        space = supernet.space
        self.landmarks = landmarks(space.root) if self.interval else {}
        self.subnets = fixed_subnets(space, seed) if self.interval else {}

    def due(self, done: int, total: int) -> bool:
        """Whether to look after so many steps out of all."""
        return self.interval > 0 and (done % self.interval == 0 or done == total)

    def look(self) -> dict[str, dict[str, float]]:
        """The accuracies of the landmarks ("watch") and of the subnets by name. The supernet's mode stays as it was."""
        training = self.supernet.training
        heirs = Heirs(self.supernet, self.batches, self.precision, self.images)  # anew: the weights have changed
        archs = {*self.landmarks.values(), *self.subnets.values()}
        found = {arch: heirs.accuracy(arch, "holdout") for arch in archs}
        self.supernet.train(training)
        groups = {"watch": self.landmarks, "subnets": self.subnets}
        return {group: {name: found[arch] for name, arch in own.items()} for group, own in groups.items()}


def landmarks(root: Node) -> dict[str, Arch]:
    """The largest arch of each pure operator by the operator's name.

    Where not every alternative has such an arch, or there are none, also the smallest and the largest of all.

    >>> from nasformer.space import Choice, OneOf, Struct
    >>> landmarks(Struct(operator=OneOf(conv=Choice(3, 5), attention=Choice(4, 8)), dim=Choice(16, 32)))
    {'conv': Arch(operator=Arch(conv=5), dim=32), 'attention': Arch(operator=Arch(attention=8), dim=32)}
    >>> landmarks(Struct(dim=Choice(16, 32)))
    {'smallest': Arch(dim=16), 'largest': Arch(dim=32)}
    """
    found: dict[str, Arch] = {}
    every = corners(root)
    for arch in every:
        operators = {name for _, name in root.picks(arch)}
        if len(operators) == 1:
            found |= {operators.pop(): arch}
    return found if len(found) == len(every) else found | {"smallest": root.smallest(), "largest": root.largest()}
