"""Racing: archs judged on as many held-out images as it takes to know their place among the parents.

How well an arch does on all images can be told from a few of them, since others have been judged before:

- Archs with similar genes do similarly well: a Gaussian process over the archs so far predicts the score.
- They also do well on the same images: the same regression, image by image over archs that were judged on all
  images (the *references*), gives the chance that an arch recognises an image.
- Most of these chances are near 0 or 1. The images in doubt are looked at first, and tell how able the arch is beyond
  what its genes say: a Rasch model, in which the log-odds of an answer are those of the image plus the arch's ability.

A generation is judged in the order of the predicted scores, so that few archs are parents for a moment only. An arch
that cannot become a parent is dropped, and its scores are estimates. With `parents` all others are judged on all
images, so that the search takes nearly the same course as without a race. With `best` only those are that may be the
best of all; of other parents an estimate that tells their order is enough.

What is said here of accuracy holds for the score of any task that is a mean over images, such as that of answers to
questions, each of which may be worth something between nothing and all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nasformer.search.problem import Candidate
from nasformer.space.arch import Arch
from nasformer.utils.rng import Purpose, generator

FIRST = 8
"""Archs that are judged on all images before anything is predicted."""
REFERENCES = 64
"""Archs judged on all images that are kept; a search that goes on after a kill judges them again."""
REMEMBERED = 512
"""Archs whose scores are kept: those judged on the most images, the older ones first."""
SMALLEST = 16
"""Images that an arch is judged on at the least."""
GROWTH = 1.4
"""The factor by which the part of the images grows before an arch is compared with the parents again."""


@dataclass(frozen=True)
class Confidence:
    """How sure a race is, in standard errors; see benchmarks/racing.py.

    Args:
        no_parent: Below the last parent, to be dropped.
        not_best: Below the best of all, to go without being judged on all images.
        place: From every parent, to go with an estimate; infinity: parents are judged on all images.
    """

    no_parent: float = 2.0
    not_best: float = 3.0
    place: float = math.inf


CONFIDENCE = {"parents": Confidence(), "best": Confidence(place=0.3)}

Outcomes = Callable[[Arch, Tensor], Tensor]
"""From an arch and image numbers to the score of each image, from 0 to 1, and its loss: [2, images]."""


@dataclass(frozen=True)
class Judgement:
    """The score of an arch, its standard error and its loss, from a number of images."""

    score: float
    error: float
    loss: float
    images: int


class Race:
    """Judges archs on as many held-out images as it takes to know their place among the parents.

    Args:
        images: How many there are.
        encode: The genes of an arch as numbers, as many for every arch (`Node.encode`).
        parents: How many of the best candidates breed.
        score: What the mean over all images is called.

    Attributes:
        seen: Images looked at so far.
    """

    def __init__(
        self,
        outcomes: Outcomes,
        images: int,
        encode: Callable[[Arch], Sequence[float]],
        parents: int,
        seed: int = 0,
        confidence: Confidence = CONFIDENCE["parents"],
        score: str = "accuracy",
    ) -> None:
        self.outcomes, self.images, self.encode, self.parents = outcomes, images, encode, parents
        self.confidence, self.score = confidence, score
        self.shuffled = torch.randperm(images, generator=generator(seed, Purpose.RACING))
        self.seen = 0
        self._observed: list[Candidate] = []  # since the last generation was judged
        self._best: list[float] = []  # scores of the parents, the best first
        self._remembered: list[Candidate] = []  # those judged on the most images first
        self._references: list[Arch] = []
        self._outcomes: dict[Arch, Tensor] = {}  # of references; a resumed search has to look again

    def __call__(self, arch: Arch) -> dict[str, float]:
        return self.many([arch])[0]

    def many(self, archs: Sequence[Arch]) -> list[dict[str, float]]:
        """The scores of a generation, and the numbers of images that they rest on.

        They depend on the generations before, not on those archs of this one that a journal has already.
        """
        self._learn(excluded=set(archs))
        parents = [Judgement(score, 0.0, math.nan, self.images) for score in self._best]
        judged: dict[Arch, Judgement] = {}
        references = len(self._references)
        for arch in archs:
            if references >= FIRST:
                break
            judged[arch] = judgement = self._judge_whole(arch, self.shuffled, torch.empty(2, 0))
            parents = self._with(parents, judgement)
            references += not math.isnan(judgement.score)  # answers that are not finite predict nothing
        rest = [arch for arch in archs if arch not in judged]
        if rest:
            predictions = self._predict(rest, judged)
            for number in predictions.log_odds.argsort(descending=True, stable=True).tolist():
                judged[rest[number]] = judgement = self._judge(rest[number], predictions.expect(number), parents)
                parents = self._with(parents, judgement)
        return [self._scores(judged[arch]) for arch in archs]

    def observe(self, candidate: Candidate) -> None:
        """Takes a candidate with its scores, also one that the journal of an interrupted search has."""
        self._observed.append(candidate)

    def _learn(self, excluded: set[Arch]) -> None:
        """Learns from the observed candidates, except those of the generation that is judged now."""
        for candidate in self._observed:
            score = candidate.scores[self.score]
            if candidate.arch in excluded or not math.isfinite(score):
                continue
            self._best.append(score)
            self._remembered.append(candidate)
            if candidate.scores["images"] == self.images and len(self._references) < REFERENCES:
                self._references.append(candidate.arch)
        self._best = sorted(self._best, reverse=True)[: self.parents]
        self._remembered.sort(key=lambda candidate: (-candidate.scores["images"], candidate.id))
        del self._remembered[REMEMBERED:]
        self._observed = [candidate for candidate in self._observed if candidate.arch in excluded]
        self._outcomes = {arch: self._outcomes_of(arch) for arch in self._references}

    def _outcomes_of(self, arch: Arch) -> Tensor:
        if arch not in self._outcomes:
            self._outcomes[arch] = self._evaluate(arch, torch.arange(self.images)).double()
        return self._outcomes[arch]

    def _predict(self, archs: Sequence[Arch], judged: dict[Arch, Judgement]) -> Predictions:
        """Predictions for archs; `judged` are those of the same generation that were judged before."""
        whole = [arch for arch, judgement in judged.items() if math.isfinite(judgement.score)]
        scored = [*(candidate.arch for candidate in self._remembered), *whole]
        references = [*self._references, *whole]
        scores = [candidate.scores[self.score] for candidate in self._remembered]
        images = [int(candidate.scores["images"]) for candidate in self._remembered]
        return Predictions(
            self._codes(scored),
            self._codes(references),
            self._codes(archs),
            torch.tensor([*scores, *(judged[arch].score for arch in whole)], dtype=torch.double),
            torch.tensor([*images, *[self.images] * len(whole)]),
            torch.stack([self._outcomes_of(arch) for arch in references]),
        )

    def _codes(self, archs: Sequence[Arch]) -> Tensor:
        return torch.tensor([self.encode(arch) for arch in archs], dtype=torch.double)

    def _judge(self, arch: Arch, expectation: Expectation, parents: Sequence[Judgement]) -> Judgement:
        """Judges an arch until its place among the parents is certain enough, if need be on all images."""
        order = expectation.most_doubtful_first(self.shuffled)
        outcomes = torch.empty(2, 0)
        for end in self._ends():
            outcomes = torch.cat([outcomes, self._evaluate(arch, order[outcomes.shape[1] : end])], dim=1)
            judgement = expectation.judge(order, outcomes)
            if math.isnan(judgement.score) or self._is_decided(judgement, parents):
                return judgement
        return self._judge_whole(arch, order, outcomes)

    def _is_decided(self, judgement: Judgement, parents: Sequence[Judgement]) -> bool:
        """Whether it is certain enough that an arch is no parent; or that it is not the best, and between which two."""
        if not parents:
            return False
        lead = [standard_errors(parent, judgement) for parent in parents]
        if lead[0] <= self.confidence.not_best and self.parents == 1:
            return False
        if len(parents) == self.parents and lead[-1] > self.confidence.no_parent:
            return True
        return lead[0] > self.confidence.not_best and min(map(abs, lead)) > self.confidence.place

    def _judge_whole(self, arch: Arch, order: Tensor, outcomes: Tensor) -> Judgement:
        """The scores of an arch on all images, of which it has been judged on some."""
        rest = self._evaluate(arch, order[outcomes.shape[1] :])
        whole = torch.empty(2, self.images, dtype=torch.double)
        whole[:, order] = torch.cat([outcomes, rest], dim=1).double()
        if len(self._outcomes) < REFERENCES:
            self._outcomes[arch] = whole
        score, loss = whole.mean(1).tolist()
        return Judgement(score if math.isfinite(loss) else math.nan, 0.0, loss, self.images)

    def _with(self, parents: list[Judgement], judgement: Judgement) -> list[Judgement]:
        """The parents after an arch of this judgement has joined; one with NaN as its score is never a parent."""
        if math.isnan(judgement.score):
            return parents
        return sorted([*parents, judgement], key=lambda parent: -parent.score)[: self.parents]

    def _evaluate(self, arch: Arch, numbers: Tensor) -> Tensor:
        self.seen += len(numbers)
        return self.outcomes(arch, numbers)

    def _scores(self, judgement: Judgement) -> dict[str, float]:
        return {self.score: judgement.score, "loss": judgement.loss, "images": judgement.images}

    def _ends(self) -> Iterator[int]:
        """Numbers of images after which an arch is compared with the parents; after all of them it need not be."""
        end = float(SMALLEST)
        while end < self.images:
            yield int(end)
            end *= GROWTH


def standard_errors(better: Judgement, worse: Judgement) -> float:
    """By how many standard errors of the difference one score is above another."""
    difference, error = better.score - worse.score, math.hypot(better.error, worse.error)
    return difference / error if error else math.copysign(math.inf, difference)


# What is expected of archs that have not been judged

REACH = 2.0
"""Archs that differ in all genes are similar by exp(-REACH)."""
NOISE = 0.05
"""Share of the variance between archs, and of that between their answers to an image, that genes do not explain."""
LEAST_VARIANCE = 0.003
"""Variance between archs, in log-odds of the score, where those judged so far are all alike."""
PRIOR = 0.1
"""Archs that recognise an image, and archs that do not, beyond those that were judged: no image is quite certain."""
MOST_CERTAIN = 0.995
"""The highest chance to recognise an image; one less this is the lowest."""
STEPS = 8
"""Steps of Newton's method to an ability."""


class Predictions:
    """Predictions for archs, from the scores of others and the answers of references.

    Args:
        codes, reference_codes, arch_codes: Genes of archs with scores, of references and of those to expect things of.
        scores, images: The scores, and how many images they rest on.
        outcomes: Of the references on all images [references, 2, images].

    Attributes:
        log_odds: Of the scores of the archs, by their genes.
    """

    def __init__(
        self,
        codes: Tensor,
        reference_codes: Tensor,
        arch_codes: Tensor,
        scores: Tensor,
        images: Tensor,
        outcomes: Tensor,
    ) -> None:
        right, losses = outcomes.unbind(1)
        # The chance of an image is its share of the references that recognise it, corrected by those of similar genes.
        self.shares = (right.sum(0) + PRIOR) / (len(right) + 2 * PRIOR)
        self.losses = losses.mean(0)
        noise = NOISE * torch.ones(len(right), dtype=torch.double)
        self.weights, _ = regression(reference_codes, arch_codes, noise)
        self.deviations = right - self.shares
        self.log_odds, self.variances = self._predict(codes, arch_codes, scores.clamp(0.001, 0.999), images)

    def _predict(self, codes: Tensor, arch_codes: Tensor, scores: Tensor, images: Tensor) -> tuple[Tensor, Tensor]:
        """Means and variances of the log-odds of scores."""
        noise = self._noise(scores, images)
        trust, values = 1 / (noise + NOISE), scores.logit()
        mean = (trust * values).sum() / trust.sum()
        variance = ((trust * (values - mean) ** 2).sum() / trust.sum()).clamp(min=LEAST_VARIANCE)
        weights, explained = regression(codes, arch_codes, noise / variance + NOISE)
        return mean + weights @ (values - mean), variance * (1 + NOISE - explained)

    def _noise(self, scores: Tensor, images: Tensor) -> Tensor:
        """Variances of the log-odds of scores that rest on some images, those with the least certain answers.

        What these answers leave open of the ability (1 / Fisher information), as the log-odds of the score change with
        it: a slope times an ability's error. A score on all images leaves nothing open.
        """
        information = (self.shares * (1 - self.shares)).sort(descending=True).values.cumsum(0)
        slope = information[-1] / len(information) / (scores * (1 - scores))  # of the log-odds by ability
        return torch.where(images == len(information), 0.0, slope**2 / information[images - 1])

    def expect(self, number: int) -> Expectation:
        """The prediction for one of the archs: its ability is the one with which its predicted score is expected."""
        likely = self.shares + self.weights[number] @ self.deviations
        log_odds = likely.clamp(1 - MOST_CERTAIN, MOST_CERTAIN).logit()
        score = float(self.log_odds[number].sigmoid())
        ability = ability_for(log_odds, score)
        # From the variance of the score's log-odds to that of the ability, by the slope between them, as in `_noise`.
        slope = spread(log_odds, ability) / len(log_odds) / (score * (1 - score))
        return Expectation(log_odds, self.losses, ability, float(self.variances[number]) / slope**2)


def regression(codes: Tensor, others: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Weights [others, codes] with which values at some codes predict those at others; the share of variance explained.

    A Gaussian process whose kernel is `similarity`.

    >>> codes = torch.tensor([[0.0, 0.0], [0.0, 1.0]], dtype=torch.double)
    >>> weights, explained = regression(codes, codes[:1], torch.zeros(2, dtype=torch.double))
    >>> weights.round(decimals=6).abs().tolist(), explained.tolist()
    ([[1.0, 0.0]], [1.0])
    """
    between = similarity(codes, others)
    weights = torch.linalg.solve(similarity(codes, codes) + noise.diag(), between).T
    return weights, (weights * between.T).sum(1)


def similarity(codes: Tensor, others: Tensor) -> Tensor:
    """How similar archs are, from 1 for those with the same genes down to exp(-REACH)."""
    return torch.exp(-REACH * torch.cdist(codes, others, p=0) / codes.shape[1])


@dataclass(frozen=True)
class Expectation:
    """The prediction for an arch: its ability, and its chances on each image.

    Args:
        log_odds: That it recognises each image, if its ability were 0.
        losses: Of the references on each image.
        ability, variance: Of its ability, as far as its genes tell.

    >>> expectation = Expectation(torch.tensor([0.0, 3.0, -0.5, -4.0]), torch.ones(4), ability=0.0, variance=1.0)
    >>> order = expectation.most_doubtful_first(torch.arange(4))
    >>> order.tolist()
    [0, 2, 1, 3]
    >>> judgement = expectation.judge(order, torch.ones(2, 2))  # recognises both doubtful images
    >>> round(judgement.score, 2), round(judgement.error, 2)
    (0.75, 0.06)
    """

    log_odds: Tensor
    losses: Tensor
    ability: float
    variance: float

    def most_doubtful_first(self, numbers: Tensor) -> Tensor:
        """Image numbers, those that it may as well recognise as not first; equal ones in the order of `numbers`."""
        return numbers[self.log_odds.abs()[numbers].argsort(stable=True)]

    def judge(self, order: Tensor, outcomes: Tensor) -> Judgement:
        """The judgement on all images from the outcomes on the first ones."""
        count, (right, losses) = outcomes.shape[1], outcomes.double()
        seen, unseen = self.log_odds[order[:count]], self.log_odds[order[count:]]
        # The most likely ability by Newton's method: a normal distribution of what the genes tell, times the chances of
        # the answers seen. Its steps are bounded, as far from the maximum the curve is flat and they would overshoot.
        ability = self.ability
        for _ in range(STEPS):
            slope = float((right - (seen + ability).sigmoid()).sum()) - (ability - self.ability) / self.variance
            ability += max(-1.0, min(1.0, slope / (spread(seen, ability) + 1 / self.variance)))
        # Chance in the unseen answers, and the ability's own uncertainty, by which they all move together.
        chance = spread(unseen, ability)
        variance = chance + chance**2 / (spread(seen, ability) + 1 / self.variance)
        score = float(right.sum() + (unseen + ability).sigmoid().sum()) / len(order)
        # Rounded, as losses of references are judged in other batches after a kill.
        loss = round(float(losses.sum() + self.losses[order[count:]].sum()) / len(order), 5)
        return Judgement(score if math.isfinite(loss) else math.nan, math.sqrt(variance) / len(order), loss, count)


def spread(log_odds: Tensor, ability: float) -> float:
    """The variance of the number of right answers, which is also their Fisher information about the ability."""
    likely = (log_odds + ability).sigmoid()
    return float((likely * (1 - likely)).sum())


def ability_for(log_odds: Tensor, score: float) -> float:
    """The ability with which this share of the answers is expected to be right."""
    low, high = -8.0, 8.0
    for _ in range(25):
        middle = (low + high) / 2
        low, high = (middle, high) if (log_odds + middle).sigmoid().mean() < score else (low, middle)
    return (low + high) / 2
