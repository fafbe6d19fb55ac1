"""What the commands do, a function for each; heavy imports are fine here."""

from nasformer.cli.commands.attention import attention
from nasformer.cli.commands.compare import compare
from nasformer.cli.commands.doctor import doctor
from nasformer.cli.commands.evolve import evolve
from nasformer.cli.commands.exports import export
from nasformer.cli.commands.models import evaluate, extract, finetune, retrain
from nasformer.cli.commands.patterns import patterns
from nasformer.cli.commands.plan import plan
from nasformer.cli.commands.profile import profile
from nasformer.cli.commands.proxies import proxies, rank, score
from nasformer.cli.commands.spaces import cost, sample, spaces
from nasformer.cli.commands.supernets import run, search, train

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
