"""From a pretrained net to a smaller one without training: `nasformer run --from NET --data PHOTOS --no-training`.

1. sort      Heads and neurons are sorted by importance, without labels.
2. search    Any strategy finds the arch within the budget that answers most like the full net on held-out images. Each
             candidate is cut out and its linear maps are fitted to the full net's outputs (`Compensation`).
3. finish    With `--finish finetune`, the winner then learns the full net's answers for a short while.

It keeps the classes of the net. Photos need no labels, nor folders by class; where they have the net's classes, the
accuracies of all nets stand beside how far they agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from nasformer.data.loaders import BatchSource, Split
from nasformer.errors import UserError
from nasformer.models.base import Backbone
from nasformer.models.storage import build_from, fingerprint, save_model
from nasformer.results.result import RunResult
from nasformer.runs.baselines import count_images
from nasformer.runs.data import normalize_images
from nasformer.runs.finish import Finisher, Start, single_recipe, with_cost_objective
from nasformer.runs.options import RunCommand
from nasformer.runs.pretrained import pretrained_recipe, sort_net, steps_for, training_size
from nasformer.runs.ray_pool import Job
from nasformer.runs.run import Run, open_run
from nasformer.runs.search import check_search
from nasformer.search.options import SearchOptions
from nasformer.search.pareto import Order
from nasformer.search.problem import ModelResult
from nasformer.search.run import SearchResult
from nasformer.space.arch import Arch
from nasformer.supernet.importance import Compensation, find_importance
from nasformer.supernet.pretrained import Pretrained, find_pretrained, supernet_from
from nasformer.train.evaluate import autocast
from nasformer.train.recipe import Recipe

SORTING_IMAGES = 1024
"""Training images on which importance is measured and outputs are compared."""
NO_WORKERS = "--no-training cuts and fits every candidate in this process; leave --executor out"
SPLITS: tuple[Split, ...] = ("holdout", "test")


def run_cut(command: RunCommand) -> RunResult | None:
    """All stages; the result, in the main process."""
    if command.executor != "local":
        raise UserError(NO_WORKERS)
    source = find_pretrained(command.from_ or "")
    command = replace(command, importance=command.importance_for("surgeon"))
    find_importance(command.importance)
    full_costs = source.space.with_options(**command.model_options()).costs(source.own_arch)
    command = with_cost_objective(command.with_shares(full_costs), "agreement")
    with open_run(command, "supernet", source.facts.classes or source.model.num_classes) as run:
        if not run.world.main:
            return None
        normalize_images(run.batches, source.facts)
        run.measure_profile(command, command.search.objectives)
        check_search(run.space, command.search, command.budget(), run.options.seed, AgreementEvaluator.objectives)
        full = sorted_net(run, source, command.importance)
        compensation = Compensation(supernet_from(full, run.space).eval(), calibration_images(run.batches))
        evaluator = AgreementEvaluator(compensation, full, run.batches, command.train.precision)
        finisher = make_finisher(run, command, evaluator)
        trained = [full_result(run, source.own_arch, evaluator), *finisher.uniform_reference(command.budget())]
        result = run.search_by(run.job(evaluator, command.search, command.budget()), trained)
        return finisher.ship(finisher.finish(result))


def make_finisher(run: Run, command: RunCommand, evaluator: AgreementEvaluator) -> Finisher:
    """What ships the winner, which with `--finish finetune` learns the full net's answers first, without labels."""
    recipe = distillation_recipe(pretrained_recipe(command.train), run.batches)

    def starts(arch: Arch) -> dict[str, Start]:
        distilled = command.finish == "finetune"
        return {"distilled": Start(evaluator.model(arch), recipe, evaluator.full)} if distilled else {}

    return Finisher(run, command, evaluator.model, starts, evaluator.measure_model, "agreement")


def sorted_net(run: Run, source: Pretrained, importance: str) -> Backbone:
    """The source for the run's image size, sorted by importance; in OUT/full."""
    if source.supernet is not None:
        raise UserError("--no-training cuts a net that is trained as a whole; a supernet is searched: nasformer search")
    full = build_from(source.model, run.space, run.options.seed, keep_classifier=True).to(run.device).eval()
    sort_net(full, run.space, lambda: ((images, None) for images in calibration_images(run.batches)), importance)
    save_model(full, (run.folder / "full").model, space=run.space.name, **run.image_facts)
    return full


def calibration_images(batches: BatchSource) -> Iterable[Tensor]:
    return batches.calibration(SORTING_IMAGES, 64)


def full_result(run: Run, arch: Arch, evaluator: AgreementEvaluator) -> ModelResult:
    """The full net in the result, for comparison."""
    scores = evaluator.measure_model(evaluator.full)
    return ModelResult("full net", arch.to_dict(), {**run.space.costs(arch), **scores})


def distillation_recipe(recipe: Recipe, batches: BatchSource) -> Recipe:
    """How a winner learns the full net's answers; where its length is open, as long as a net would be fine-tuned."""
    steps = steps_for(training_size(batches, recipe))
    length = {"iterations": recipe.iterations or steps} if recipe.epochs == "auto" else {}
    return single_recipe(recipe, **length, teacher=None, teacher_weight=1.0, teacher_answers="soft")


class AgreementEvaluator:
    """Judges archs by how far they agree with the full net on held-out images; labels are not needed.

    Args:
        compensation: Cuts archs out.
        full: Whose answers count.
    """

    objectives: tuple[str, ...] = ("agreement",)
    evaluations = 1000
    chunk = 1

    def __init__(
        self, compensation: Compensation, full: Backbone, batches: BatchSource, precision: str = "auto"
    ) -> None:
        self.space, self.compensation = compensation.supernet.space, compensation
        self.full, self.batches, self.precision = full, batches, precision
        self.labelled = int((batches.class_counts > 0).sum()) > 1
        self.expected = {split: [probabilities for probabilities, _ in self.predict(full, split)] for split in SPLITS}

    def predict(self, model: nn.Module, split: Split) -> Iterable[tuple[Tensor, Tensor]]:
        """Probabilities of the classes, and labels, batch by batch."""
        for images, labels in self.batches.evaluation(split, 256):
            with torch.no_grad(), autocast(images.device, self.precision):
                yield model(images).float().softmax(-1), labels

    def compare(self, model: nn.Module, split: Split) -> dict[str, float]:
        """Agreement: the mean share of probability that both nets give to the same classes; and, where labels are
        those of the net, accuracy.
        """
        shared, right, count = 0.0, 0, 0
        for expected, (probabilities, labels) in zip(self.expected[split], self.predict(model, split), strict=True):
            shared += torch.minimum(expected, probabilities).sum().item()
            right += int((probabilities.argmax(-1) == labels).sum())
            count += len(labels)
        scores = {"agreement": shared / count}
        return scores | {"accuracy": right / count} if self.labelled else scores

    def __call__(self, arch: Arch) -> dict[str, float]:
        return {"agreement": self.compare(self.model(arch), "holdout")["agreement"]}

    def order(self, options: SearchOptions) -> Order:
        return "pareto"

    def settings(self) -> dict[str, Any]:
        return {"space": self.space.name, "full": fingerprint(self.full)}

    def measure_model(self, model: nn.Module, splits: Sequence[Split] = SPLITS) -> dict[str, float]:
        return {f"{split}_{name}": value for split in splits for name, value in self.compare(model, split).items()}

    def measure(self, arch: Arch) -> dict[str, float]:
        return self.measure_model(self.model(arch))

    def model(self, arch: Arch) -> Backbone:
        return self.compensation.extract(arch)

    def summary(self, search: SearchResult) -> dict[str, Any]:
        return {"images": count_images(self.batches)} if self.labelled else {}

    def job(self) -> Job:
        raise UserError(NO_WORKERS)

    @property
    def device(self) -> torch.device:
        return next(self.full.parameters()).device
