"""What the page says about each figure, in words for the score that this run's search raised."""

from __future__ import annotations

from nasformer.report.contents import Run
from nasformer.report.labels import in_a_row, label

PLACES = (
    "Each dot is a candidate with the score it had in the search; the stairs are the best score that each cost buys. "
    "The marks are the models of the results table{}; a hollow one lies beyond the edge."
)


def captions(run: Run) -> dict[str, tuple[str, str]]:
    """Title and caption of every figure by its name, in the order of the page."""
    accuracy = run.score == "accuracy"
    name, several = label(run.score), _one_of_several(run)
    return {
        "bars": (
            "Winner and references" if len(run.models) > 1 else "Accuracy and size",
            "Accuracy on the test set, and size.",
        ),
        "score_vs_cost": (
            "Accuracy against cost" if accuracy else f"Score ({name}) against cost",
            PLACES.format(f", at their {name}" if accuracy else "") + several,
        ),
        "search_progress": (
            "Progress of the search",
            f"Scores ({name}) of the candidates as the search went on.{several}",
        ),
        "architecture": (
            "The architecture",
            "Layer by layer, the input at the top. Numbers are exact; a bar runs from the smallest value in the space "
            "(short) to the largest (full).",
        ),
        "training_curve": ("Training", "Training loss and learning rate."),
    }


def _one_of_several(run: Run) -> str:
    if not run.ranked:
        return ""
    names = in_a_row([label(name) for name in run.ranked])
    return f" The search went by the ranks of {names} together; the figure shows {label(run.score)} alone."
