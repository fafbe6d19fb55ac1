"""What the commands do, a function for each; heavy imports are fine here."""

from nasformer.commands.attention import attention
from nasformer.commands.compare import compare
from nasformer.commands.doctor import doctor
from nasformer.commands.evolve import evolve
from nasformer.commands.exports import export
from nasformer.commands.models import evaluate, extract, finetune, retrain
from nasformer.commands.patterns import patterns
from nasformer.commands.plan import plan
from nasformer.commands.profile import profile
from nasformer.commands.proxies import proxies, rank, score
from nasformer.commands.spaces import cost, sample, spaces
from nasformer.commands.supernets import run, search, train

__all__ = [
    "attention",
    "compare",
    "cost",
    "doctor",
    "evaluate",
    "evolve",
    "export",
    "extract",
    "finetune",
    "patterns",
    "plan",
    "profile",
    "proxies",
    "rank",
    "retrain",
    "run",
    "sample",
    "score",
    "search",
    "spaces",
    "train",
]
