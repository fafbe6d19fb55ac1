"""What the page says about each figure, in words for the score that this run's search raised."""

from __future__ import annotations

from nasformer.report.contents import Run
from nasformer.report.labels import in_a_row, label
from nasformer.report.operators import with_operators

PLACES = (
    "Each dot is a candidate with the score it had in the search; the stairs are the best score that each cost buys. "
    "The marks are the models of the results table{}; a hollow one lies beyond the edge. Point at a dot to see its "
    "architecture; candidates.csv holds all of them."
)

TABLES = "Numbers are exact; a bar runs from the smallest value in the space (short) to the largest (full)."
BOXES = (
    "A box is a block in the colour of its operator; × is a width in terms of another: the block's inner one (of the "
    "stage's), that of queries (q) or values (v)."
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
            f"Layer by layer, the input at the top. {BOXES if with_operators(run) else TABLES}",
        ),
        "operator_shares": (
            "Operators by stage",
            "The operators that the blocks of each stage have: in random archs of the same space and budget (pale), in "
            "the candidates as the search went on, and in the winner.",
        ),
        "training_curve": ("Training", "Training loss and learning rate."),
        "operator_curves": (
            "The supernet, operator by operator",
            "Held-out accuracy of the largest nets of a single operator, with the shared weights of the moment; of a "
            "space without such nets, of its smallest and its largest.",
        ),
        "health": (
            "Health of the supernet",
            "Accuracy of the same subnets as the training went on, with the shared weights of the moment, above its "
            f"loss.{''.join(f' Alarm: {alarm}.' for alarm in run.alarms)}",
        ),
        "finalists": (
            "Predicted and measured",
            "The best candidates of the search, the best by score at the top: what the profile predicted of them, and "
            "what they were measured to need before one of them won.",
        ),
    }


def _one_of_several(run: Run) -> str:
    if not run.ranked:
        return ""
    names = in_a_row([label(name) for name in run.ranked])
    return f" The search went by the ranks of {names} together; the figure shows {label(run.score)} alone."
