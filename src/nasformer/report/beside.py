"""What a page says of the baselines: what was done to be fair to them, and what was not."""

from __future__ import annotations

from nasformer.report.contents import Run


def beside_in_words(run: Run) -> str:
    """How random search and models from elsewhere came into the results table."""
    said = [_random_search(run)]
    if run.references("timm:"):
        said.append("timm models were trained from scratch by the same recipe, on the same images, for as many steps.")
    return " ".join(part for part in said if part)


def _random_search(run: Run) -> str:
    rows = [model.name for model in run.references("best of")]
    if run.rival:
        return (
            f"Random search at equal budget: {len(run.rival):,} random architectures were judged as the search's "
            f"{len(run.candidates):,} candidates were."
        )
    if rows:
        return (
            f"No random search at equal budget was made (--search.baseline random makes one); “{rows[0]}” is that "
            "of the random candidates with which the search began."
        )
    if {candidate.origin for candidate in run.candidates} == {"random"}:
        return f"The search itself was random: the winner is the best of {len(run.candidates):,} random architectures."
    return ""


def timm_in_words(run: Run) -> str:
    if not run.timm:
        return "None of the well-known timm models that nasformer has counted fits this budget."
    return (
        "Well-known models that fit, those nearest to the winner in size first. Parameters are for the same number of "
        "classes; MACs were counted at 224 px and are scaled by the area for other images. Latency and memory are not "
        "known of them. To train one by the same recipe: --baseline timm:NAME."
    )
