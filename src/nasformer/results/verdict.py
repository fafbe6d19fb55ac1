"""The verdict on a run, in sentences with intervals: did the search pay, which model to take, and what to do next.

All intervals hold 95 %. The sampling errors of two models are added as if they had seen different images; since they
have seen the same ones, the interval of their difference is rather too wide than too narrow.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import resources
from statistics import fmean, stdev
from typing import Literal

from nasformer.results.contents import RunContents
from nasformer.results.result import ImageCounts, RunResult
from nasformer.search.problem import MeanScore, ModelResult
from nasformer.train.log import LogLine
from nasformer.utils.schema import from_json
from nasformer.utils.statistics import Z, standard_error, wilson
from nasformer.utils.units import format_quantity

# Evidence: what methods were measured to be worth, on which data, from the records of our benchmarks.
#
# `benchmarks/results/assemble.py` assembles evidence.json beside this file; no figure is written by hand.


Road = Literal["pretrained", "supernet", "training-free"]


@dataclass(frozen=True)
class Gain:
    """Points of accuracy above a rival: mean and standard deviation over seeds."""

    mean: float
    std: float
    seeds: int

    @property
    def error(self) -> float:
        """The standard error of the mean."""
        return self.std / self.seeds**0.5

    @property
    def is_shown(self) -> bool:
        """Whether it is above nothing by a two-sided t-test over at least three seeds (p < 0.05)."""
        if self.seeds < 3 or self.mean <= 0:
            return False
        from scipy.stats import t  # which takes a second to import

        return not self.error or bool(2 * t.sf(self.mean / self.error, self.seeds - 1) < 0.05)

    def __str__(self) -> str:
        spread = f" ± {self.std:.1f}" if self.seeds > 1 else ""
        return f"{self.mean:+.1f}{spread} ({self.seeds} seed{'s' if self.seeds > 1 else ''})"


@dataclass(frozen=True)
class Evidence:
    """One measurement of a method on a dataset.

    Args:
        images: Training images.
        budget: What the nets were allowed to cost.
        over_random: The gain over random nets of equal cost.
        over_handmade: The gain over a net that a person made, of equal cost; `handmade` names it.
        minutes: Minutes on the GPU from the data to the searched and trained net.
        record: The file in benchmarks/records with the raw figures.
    """

    road: Road
    method: str
    data: str
    images: int
    img_size: int
    budget: str
    record: str
    over_random: Gain | None = None
    over_handmade: Gain | None = None
    handmade: str = ""
    minutes: float | None = None


def load_evidence() -> list[Evidence]:
    """The measurements that come with the package."""
    file = resources.files("nasformer.results").joinpath("evidence.json")
    return from_json(list[Evidence], json.loads(file.read_text(encoding="utf-8")), "evidence.json")  # type: ignore[arg-type]


SMALLER = 0.9
"""Share of the winner's parameters below which a net counts as smaller."""
COARSE_PATCH, FEW_PATCHES = 4, 8
"""Patches with a side of 4 pixels or more are coarse where an image has 8 of them or fewer along a side."""
STILL_FALLING = 0.05
"""A training is too short where its last fifth lowers the loss by this share."""
LEAST_LINES = 10
"""Lines of a log from which on this is judged."""
COLOUR, LEARNED = 3, 0.8
"""The channels of photos, and the test accuracy below which they call for a pretrained net."""
FROM_PRETRAINED = "--from timm:deit_tiny_patch16_224"
LEAST_RANDOM = 5
"""Random architectures whose mean is a sound reference."""


@dataclass(frozen=True)
class Difference:
    """The difference of two accuracies, and half of its interval (NaN where unknown).

    >>> Difference(0.042, 0.021).interval
    '+2.1 to +6.3'
    """

    value: float
    margin: float

    @property
    def sign(self) -> int:
        """1 or -1 where it is beyond noise, else 0."""
        return 0 if not abs(self.value) > self.margin else 1 if self.value > 0 else -1

    @property
    def points(self) -> str:
        return f"{100 * abs(self.value):.1f} points"

    @property
    def interval(self) -> str:
        return f"{100 * (self.value - self.margin):+.1f} to {100 * (self.value + self.margin):+.1f}"


@dataclass(frozen=True)
class Verdict:
    """The verdict on a run.

    Args:
        search: Whether the search paid; empty where nothing was searched.
        take: Which model to take, and how good it is.
        others: Choices that are simpler or better.
        advice: What to do next.
    """

    search: str
    take: str
    others: list[str] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)

    @property
    def sentences(self) -> list[str]:
        return [sentence for sentence in (self.search, self.take, *self.others) if sentence]


def judge(run: RunContents) -> Verdict | None:
    """The verdict on a run; None where it has no accuracies, or where it is not known how many images they are from."""
    result = run.result
    if result is None or result.images is None or math.isnan(result.shipped.get("test_accuracy")):
        return None
    better, others = compare_trained(run, result, result.images)
    return Verdict(
        search=describe_search(result),
        take=describe_choice(better or result.shipped, result.images),
        others=[*others, *uniform_cut(result, result.images), *smaller_net(result, result.images)],
        advice=list(advise(run, result, result.images)),
    )


def search_gain(result: RunResult) -> Difference | None:
    """Test accuracy of the winner above the mean of the random references, all with the weights they inherit.

    Of other metrics, such as mIoU, the noise is not known.
    """
    score = f"test_{result.metric}"
    mean, winner = MeanScore.of(result.random, score), result.winner.get(score)
    if not mean.count or math.isnan(winner):
        return None
    if result.images is None or result.metric != "accuracy":
        return Difference(winner - mean.mean, math.nan)
    errors = [standard_error(share, result.images.test) for share in (winner, mean.mean)]
    spread = 0.0 if math.isnan(mean.error) else mean.error
    return Difference(winner - mean.mean, Z * math.hypot(spread, *errors))


def difference(model: ModelResult, other: ModelResult, images: ImageCounts) -> Difference:
    """Test accuracy of a model above another's."""
    shares = [net.get("test_accuracy") for net in (model, other)]
    return Difference(shares[0] - shares[1], Z * math.hypot(*(standard_error(share, images.test) for share in shares)))


def describe_search(result: RunResult) -> str:
    gain = search_gain(result)
    if gain is None:
        return ""
    count = len(result.random)
    other = "a random architecture" if count == 1 else f"the mean of {count} random architectures"
    weights = ", all with inherited weights" if result.finished else ""
    where = f"{other} within the budget (95 % interval {gain.interval} points{weights})"
    side = "above" if gain.value >= 0 else "below"
    if gain.sign > 0:
        return f"The search paid: the winner is {gain.points} above {where}."
    noise = "" if gain.sign else ", which is within noise"
    return f"The search did not pay: the winner is {gain.points} {side} {where}{noise}."


def describe_choice(model: ModelResult, images: ImageCounts) -> str:
    accuracy = model.get("test_accuracy")
    low, high = (100 * end for end in wilson(accuracy, images.test))
    size = f"{format_quantity(model['params'])} parameters"
    text = f"Take {in_words(model)} ({size}): {accuracy:.1%} of {images.test:,} test images are right"
    text += f" (95 % interval {low:.1f} to {high:.1f} %)"
    if is_guess(accuracy, images):
        text += f", no better than guessing among {images.classes} classes"
    return f"{text}."


def is_guess(accuracy: float, images: ImageCounts) -> bool:
    """Whether guessing among the classes may be as good."""
    return wilson(accuracy, images.test)[0] <= 1 / images.classes


def in_words(model: ModelResult) -> str:
    if model.name in ("retrained", "finetuned"):
        return f"the {model.name} model"
    return f"the {model.name}" if model.name.startswith(("winner", "full net")) else model.name


def compare_trained(run: RunContents, result: RunResult, images: ImageCounts) -> tuple[ModelResult | None, list[str]]:
    """The best trained baseline that beats the shipped model within the budget; and sentences on all of them."""
    shipped, better, sentences = result.shipped, list[ModelResult](), list[str]()
    for model in result.trained:
        if math.isnan(model.get("test_accuracy")):
            continue
        lead, size = difference(model, shipped, images), f"{format_quantity(model['params'])} parameters"
        outside = beyond_budget(run, model)
        if lead.sign > 0:
            sentence = f"{model.name} is {lead.points} better than {in_words(shipped)} ({lead.interval} points)"
            sentences.append(f"{sentence}, but beyond the budget ({size})." if outside else f"{sentence}.")
            better += [] if outside else [model]
        elif lead.sign == 0 and model["params"] <= shipped["params"]:
            sentences.append(f"{model.name} ({size}) is as good within noise ({lead.interval} points) and no larger.")
        elif lead.sign == 0:
            sentences.append(f"{model.name} is as good within noise ({lead.interval} points), but larger ({size}).")
    return max(better, key=lambda model: model["test_accuracy"], default=None), sentences


def beyond_budget(run: RunContents, model: ModelResult) -> bool:
    """Whether a model exceeds a limit of the budget, as far as its costs are known."""
    ends = {name: high for name, (_, high) in run.limits.items() if high is not None}
    return any(model.get(name) > high for name, high in ends.items())


def uniform_cut(result: RunResult, images: ImageCounts) -> Iterator[str]:
    """Cutting every block alike beside the winner, both with the weights they inherit."""
    for uniform in result.references:
        if uniform.name != "uniform" or math.isnan(uniform.get("test_accuracy")):
            continue
        lead = difference(result.winner, uniform, images)
        weights = ", both with inherited weights" if result.finished else ""
        interval = f"({lead.interval} points{weights})"
        if lead.sign > 0:
            yield f"It is {lead.points} above a uniform cut within the budget {interval}."
        elif lead.sign == 0:
            yield f"A uniform cut within the budget is as good within noise {interval}."
        else:
            yield f"A uniform cut within the budget is {lead.points} better {interval}: search longer."


def smaller_net(result: RunResult, images: ImageCounts) -> Iterator[str]:
    """The smallest reference as good as the winner, with the weights they inherit; none that may be guessing."""
    winner = result.winner
    if result.health is None:  # no search of a supernet
        return
    nets = [model for model in result.references if model not in result.trained and "test_accuracy" in model.scores]
    small = [model for model in nets if model["params"] < SMALLER * winner["params"]]
    useful = [model for model in small if not is_guess(model["test_accuracy"], images)]
    equal = [model for model in useful if difference(model, winner, images).sign >= 0]
    if equal:
        model = min(equal, key=lambda model: model["params"])
        share, lead = model["params"] / winner["params"], difference(model, winner, images)
        yield (
            f"A smaller net is as good within noise: {model.name}, {share:.0%} of the winner's parameters "
            f"({lead.interval} points)."
        )


MOST_HELD_OUT = 0.3
"""The share of the training images that is worth holding out at the most (docs/data.md has the calculation)."""


def advise(run: RunContents, result: RunResult, images: ImageCounts) -> Iterator[str]:
    """Advice that would make the model better, or the verdict clearer."""
    if fall := still_falling(run.log):
        epochs = (run.config.get("train") or {}).get("epochs")
        more = f" (--train.epochs {2 * epochs:g})" if isinstance(epochs, int | float) and epochs else ""
        yield f"train longer{more}: the loss still fell by {fall:.0%} in the last fifth of the training"
    options = run.model_options
    pretrained = run.config.get("from_") or result.winner.name == "finetuned"  # whose patches have their size
    size, patch = options.get("img_size"), options.get("patch_size")
    if isinstance(size, int) and isinstance(patch, int) and patch >= COARSE_PATCH and size // patch <= FEW_PATCHES:
        grid = f"{size // patch} x {size // patch}"
        smaller, larger = f"smaller patches (--patch-size {patch // 2})", f"larger images (--img-size {2 * size})"
        yield f"try {larger if pretrained else smaller}: images of {size} px have only {grid} patches"
    from_scratch = result.health is not None and not pretrained
    if from_scratch and options.get("in_chans") == COLOUR and result.shipped["test_accuracy"] < LEARNED:
        yield f"start from a pretrained net ({FROM_PRETRAINED}): from scratch, few photos teach little"
    held_out = result.winner.get("holdout_accuracy") if result.random else math.nan  # without a search, of no use
    if images.holdout and not math.isnan(held_out) and (warning := resolution_warning(held_out, images)):
        yield warning
    if result.random and len(result.random) < LEAST_RANDOM:
        yield "compare with more random architectures (--search.random_references 10): a few say little"
    if not result.trained and result.health is not None:
        yield "compare with a common net trained by the same recipe (--baseline timm:resnet18)"


def resolution_warning(accuracy: float, images: ImageCounts) -> str:
    """A warning that so few held-out images cannot tell nets apart, where the standard error is above a point.

    >>> resolution_warning(0.9, ImageCounts(16, 40, 2, train=144)).partition("; ")[2]
    'with --holdout 0.3 it would be 12 points'
    >>> resolution_warning(0.9, ImageCounts(500, 500, 2, train=1000))
    'with 500 held-out images, nets that differ by less than 4 points cannot be told apart; more images would help'
    >>> resolution_warning(0.9, ImageCounts(1000, 500, 2))
    ''
    """

    def points(count: int) -> str:
        return f"{100 * Z * math.sqrt(2) * standard_error(accuracy, count):.0f} points"

    if standard_error(accuracy, images.holdout) <= 0.01:
        return ""
    more = round(MOST_HELD_OUT * (images.train + images.holdout))
    larger = f"with --holdout {MOST_HELD_OUT} it would be {points(more)}"
    remedy = larger if more > images.holdout else "more images would help"
    differ = f"nets that differ by less than {points(images.holdout)} cannot be told apart"
    return f"with {images.holdout:,} held-out images, {differ}; {remedy}"


def still_falling(log: Sequence[LogLine]) -> float:
    """The share by which the last fifth of a training lowered the loss; 0 where it is small or noise."""
    losses = [line.loss for line in log if line.loss is not None and math.isfinite(line.loss)]
    fifth = len(losses) // 5
    if len(losses) < LEAST_LINES:
        return 0.0
    before, last = losses[-2 * fifth : -fifth], losses[-fifth:]
    fall = fmean(before) - fmean(last)
    noise = math.hypot(*(stdev(part) for part in (before, last))) / math.sqrt(fifth)
    share = fall / fmean(before) if fmean(before) > 0 else 0.0
    return share if share > STILL_FALLING and fall > noise else 0.0
