"""Racing: archs are judged on growing parts of the held-out images, and dropped once they cannot reach the parents.

Archs that share weights agree on most images, which therefore tell nothing about who is better. The first archs are
judged on all images; of every other arch those images are looked at first on which the first ones disagree most. How
many of the remaining images it would recognise follows from how many of the first archs do, and from how able it has
shown itself to be so far: a Rasch model, in which the log-odds of an answer are the image's easiness plus the arch's
ability. Where a confidence bound on its accuracy lies below that of the last parent, the arch is dropped, and its
scores are estimates. Who is not dropped is judged on all images. So the parents are those of full evaluation, as long
as the bound holds, and the search takes the same course. Racing the best arch alone drops more: most parents are
estimates then. What is said here of accuracy holds for the score of any task that is a mean over images, such as that
of answers to questions, each of which may be worth something between nothing and all.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable

import torch
from torch import Tensor

from nasformer.search.problem import Candidate
from nasformer.space.arch import Arch
from nasformer.utils.rng import Purpose, generator

FIRST = 10
"""Archs that are judged on all images before any is dropped."""
REFERENCES = 32
"""Archs judged on all images that tell how easy an image is; a search that goes on after a kill judges them again."""
SMALLEST = 16
"""Images that an arch is judged on at the least."""
GROWTH = 1.4
"""How much larger the part of the images is before an arch is compared with the parents again."""
CONFIDENCE = {"parents": 2.0, "best": 1.0}
"""Standard errors of the bound, by whom candidates race; see benchmarks/racing.py."""

Outcomes = Callable[[Arch, Tensor], Tensor]
"""Of an arch on images of these numbers: the score of each, 0 or 1 or between, and its loss [2, images]."""


class Race:
    """Judges archs on as many held-out images as it takes to see that they do not become parents.

    Args:
        images: How many there are.
        parents: How many of the best candidates matter: what a candidate has to reach is the last of them.
        score: What the mean over all images is called.

    Attributes:
        seen: Images looked at so far.
    """

    def __init__(
        self,
        outcomes: Outcomes,
        images: int,
        parents: int,
        seed: int = 0,
        confidence: float = CONFIDENCE["parents"],
        score: str = "accuracy",
    ) -> None:
        self.score = score
        self.outcomes, self.images, self.parents, self.confidence = outcomes, images, parents, confidence
        self.shuffled = torch.randperm(images, generator=generator(seed, Purpose.RACING))
        self.seen = 0
        self._best: list[float] = []  # accuracies of the parents, negative: in rising order
        self._references = Easiness(images)
        self._judged: tuple[Arch, Tensor] | None = None  # the last arch that was judged on all images
        self._unknown: list[Arch] = []  # references of a journal, whose outcomes were in another process

    def __call__(self, arch: Arch) -> dict[str, float]:
        """Accuracy and loss, and the number of images that they rest on."""
        self._judge_unknown()
        if self._references.archs < FIRST or len(self._best) < self.parents:
            return self._judge_whole(arch, self.shuffled, torch.empty(2, 0))
        order = self._references.most_contested_first(self.shuffled)
        found = torch.empty(2, 0)
        for end in self._ends():
            found = torch.cat([found, self._look(arch, order[found.shape[1] : end])], dim=1)
            accuracy, error = self._references.estimate_accuracy(order, found[0])
            if accuracy + self.confidence * error < -self._best[-1]:
                return {self.score: accuracy, "loss": self._references.estimate_loss(order, found[1]), "images": end}
        return self._judge_whole(arch, order, found)

    def observe(self, candidate: Candidate) -> None:
        """Takes a candidate with its scores, also one that the journal of an interrupted search has."""
        if candidate.scores["images"] < self.images:
            return
        insort(self._best, -candidate.scores[self.score])
        del self._best[self.parents :]
        if self._references.archs + len(self._unknown) == REFERENCES:
            return
        if self._judged and self._judged[0] == candidate.arch:
            self._references.add(self._judged[1])
        else:
            self._unknown.append(candidate.arch)

    def _judge_whole(self, arch: Arch, order: Tensor, found: Tensor) -> dict[str, float]:
        """The scores of an arch on all images, of which it has been judged on some."""
        rest = self._look(arch, order[found.shape[1] :])
        outcomes = torch.empty(2, self.images)
        outcomes[:, order] = torch.cat([found, rest], dim=1)
        self._judged = arch, outcomes
        accuracy, loss = outcomes.double().mean(1).tolist()
        return {self.score: accuracy, "loss": loss, "images": self.images}

    def _judge_unknown(self) -> None:
        for arch in self._unknown:
            self._references.add(self._look(arch, torch.arange(self.images)))
        self._unknown = []

    def _look(self, arch: Arch, numbers: Tensor) -> Tensor:
        self.seen += len(numbers)
        return self.outcomes(arch, numbers)

    def _ends(self) -> list[int]:
        """How many images an arch has been judged on whenever it is compared with the parents; all is none of them."""
        ends, end = list[int](), float(SMALLEST)
        while end < self.images:
            ends.append(int(end))
            end *= GROWTH
        return ends


PRIOR = 0.1
"""Archs that recognise an image, and archs that do not, beyond those that were judged: no image is quite certain."""
ABILITY_VARIANCE = 4.0
NEWTON_STEPS = 12


class Easiness:
    """How many of some archs recognise each image, and with what loss; what that tells of another arch.

    >>> easiness = Easiness(images=4)
    >>> for right in ([1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 0]):
    ...     easiness.add(torch.tensor([right, [0.0] * 4]))
    >>> order = easiness.most_contested_first(torch.arange(4))
    >>> order.tolist()
    [1, 2, 0, 3]
    >>> accuracy, error = easiness.estimate_accuracy(order, torch.ones(2))  # recognises both contested images
    >>> round(accuracy, 2), round(error, 2)
    (0.78, 0.1)
    """

    def __init__(self, images: int) -> None:
        self.archs, self.sums = 0, torch.zeros(2, images, dtype=torch.double)

    def add(self, outcomes: Tensor) -> None:
        self.archs, self.sums = self.archs + 1, self.sums + outcomes

    @property
    def shares(self) -> Tensor:
        """The share of archs that recognise each image."""
        return (self.sums[0] + PRIOR) / (self.archs + 2 * PRIOR)

    def most_contested_first(self, numbers: Tensor) -> Tensor:
        """Image numbers, those first on which archs disagree most; equal ones in the order given."""
        distance = (self.shares - 0.5).abs()[numbers]
        return numbers[distance.argsort(stable=True)]

    def estimate_accuracy(self, order: Tensor, right: Tensor) -> tuple[float, float]:
        """Accuracy on all images of an arch whose answers to the first ones are known, and its standard error."""
        easiness, images = self.shares[order].logit(), len(order)
        seen, unseen = easiness[: len(right)], easiness[len(right) :]
        ability = 0.0
        for _ in range(NEWTON_STEPS):
            likely = (seen + ability).sigmoid()
            slope, curvature = likely_slope(likely, right, ability), information(likely)
            ability += max(-1.0, min(1.0, slope / curvature))
        expected = (unseen + ability).sigmoid()
        variance = float((expected * (1 - expected)).sum())
        # Chance in the unseen answers, and the ability's own uncertainty, by which they all move together.
        variance += variance**2 / information((seen + ability).sigmoid())
        return float(right.sum() + expected.sum()) / images, math.sqrt(variance) / images

    def estimate_loss(self, order: Tensor, losses: Tensor) -> float:
        """The mean loss of an arch, where images that it was not judged on count as they do for the others."""
        unseen = self.sums[1][order[len(losses) :]] / self.archs
        return float(losses.double().sum() + unseen.sum()) / len(order)


def likely_slope(likely: Tensor, right: Tensor, ability: float) -> float:
    """The derivative of the log-likelihood of answers by ability, with a normal prior."""
    return float((right - likely).sum()) - ability / ABILITY_VARIANCE


def information(likely: Tensor) -> float:
    """What answers tell of an ability: the inverse of its variance."""
    return float((likely * (1 - likely)).sum()) + 1 / ABILITY_VARIANCE
