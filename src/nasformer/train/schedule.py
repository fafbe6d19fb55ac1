"""The learning rate as a function of the step."""

from __future__ import annotations

import math

from nasformer.recipe import Recipe


def learning_rate(step: int, steps_per_epoch: int, recipe: Recipe) -> float:
    """Linear warm-up, then a cosine from the peak to the minimum.

    >>> recipe = Recipe(epochs=10, warmup_epochs=2, lr=1.0, warmup_lr=0.0, min_lr=0.0)
    >>> [round(learning_rate(step, 1, recipe), 2) for step in range(10)]
    [0.0, 0.5, 1.0, 0.96, 0.85, 0.69, 0.5, 0.31, 0.15, 0.04]
    """
    peak, warmup = recipe.peak_lr(), recipe.warmup_epochs * steps_per_epoch
    if step < warmup:
        return recipe.warmup_lr + (peak - recipe.warmup_lr) * step / warmup
    progress = (step - warmup) / max(recipe.total_steps(steps_per_epoch) - warmup, 1)
    return recipe.min_lr + (peak - recipe.min_lr) * (1 + math.cos(math.pi * min(progress, 1.0))) / 2
