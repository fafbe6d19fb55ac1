"""Racing: archs are judged on growing parts of the held-out images, and dropped once they cannot reach the parents.

Every arch sees the images in the same random order. After 1/64 of them, 1/32 and so on, it is compared with the last of
the parents, image by image: archs that share weights mostly agree, so that few images tell them apart. Where a
confidence bound on the difference lies below zero the arch is dropped, and its scores are those of the parent plus the
difference. Who is not dropped is judged on all images. So the parents are those of full evaluation, as long as the
bound holds, and the search takes the same course. Racing the best arch alone drops more: most parents are estimates
then.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable

import torch
from torch import Tensor

from nasformer.search.problem import Candidate
from nasformer.space.arch import Arch
from nasformer.utils.rng import Purpose, generator

PARTS = 7  # the first is 1/64 of the images, each next one twice as large
SMALLEST = 16  # images; fewer tell nothing apart
CONFIDENCE = {"parents": 2.0, "best": 1.0}
"""Standard errors of the bound, by whom candidates race; see benchmarks/racing.py."""

Outcomes = Callable[[Arch, Tensor], Tensor]
"""Of an arch on images of these numbers: whether each is recognised, and its loss [2, images]."""


class Race:
    """Judges archs on as many held-out images as it takes to see that they do not become parents.

    Args:
        images: How many there are.
        parents: How many of the best candidates matter: what a candidate has to reach is the last of them.

    Attributes:
        seen: Images looked at so far, those for parents included.
    """

    def __init__(
        self, outcomes: Outcomes, images: int, parents: int, seed: int = 0, confidence: float = CONFIDENCE["parents"]
    ) -> None:
        self.outcomes, self.images, self.parents, self.confidence = outcomes, images, parents, confidence
        self.order = torch.randperm(images, generator=generator(seed, Purpose.RACING))
        self.ends = sorted({max(min(SMALLEST, images), images >> part) for part in range(PARTS)})
        self.seen = 0
        self._best: list[tuple[float, int, Arch]] = []  # those judged on all images, by falling accuracy
        self._known: dict[Arch, Tensor] = {}

    def __call__(self, arch: Arch) -> dict[str, float]:
        """Accuracy and loss, and the number of images that they rest on."""
        goal, found = self._goal(), torch.empty(2, 0)
        for end in self.ends:
            found = torch.cat([found, self._look(arch, found.shape[1], end)], dim=1)
            if goal is not None and end < self.images and self._falls_short(found[0] - goal[0, :end]):
                accuracy, loss = (goal.mean(1) + (found - goal[:, :end]).mean(1)).tolist()
                return {"accuracy": accuracy, "loss": loss, "images": end}
        self._known[arch] = found
        accuracy, loss = found.double().mean(1).tolist()
        return {"accuracy": accuracy, "loss": loss, "images": self.images}

    def observe(self, candidate: Candidate) -> None:
        """Takes a candidate with its scores, also one that the journal of an interrupted search has."""
        if candidate.scores["images"] == self.images:
            insort(self._best, (-candidate.scores["accuracy"], candidate.id, candidate.arch))
            del self._best[self.parents :]
        parents = {arch for _, _, arch in self._best}
        self._known = {arch: outcomes for arch, outcomes in self._known.items() if arch in parents}

    def _goal(self) -> Tensor | None:
        """The outcomes of the last of the parents; None while there are fewer."""
        if len(self._best) < self.parents:
            return None
        arch = self._best[-1][2]
        if arch not in self._known:  # after a restart
            self._known[arch] = torch.cat([self._look(arch, start, end) for start, end in self._spans()], dim=1)
        return self._known[arch]

    def _spans(self) -> list[tuple[int, int]]:
        return list(zip([0, *self.ends], self.ends, strict=False))

    def _look(self, arch: Arch, start: int, end: int) -> Tensor:
        self.seen += end - start
        return self.outcomes(arch, self.order[start:end])

    def _falls_short(self, difference: Tensor) -> bool:
        """Whether the mean difference over all images is below zero, as far as those seen can tell.

        The variance counts one more image won and one more lost, without which a few images would seem to tell much;
        it vanishes as no images are left.
        """
        number = len(difference)
        mean = float(difference.mean())
        variance = (float(difference.square().sum()) + 2) / number - mean**2
        error = (variance / number * (1 - number / self.images)) ** 0.5
        return mean + self.confidence * error < 0
