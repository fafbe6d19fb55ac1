"""Jobs for workers in other processes: archs judged by the weights of a supernet, or by proxies.

A job is pickled, so it holds what it needs and nothing on a device. Images in memory travel with it; of images that are
streamed the paths do, which must be valid on every node.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from nasformer.data.loaders import BatchSource
from nasformer.families.space import Space
from nasformer.proxies.scoring import Scorer
from nasformer.runs.ray_pool import Work
from nasformer.supernet.supernet import Supernet
from nasformer.train.evaluate import SubnetEvaluator

CHUNK = 8
"""Archs of a task by proxies: scoring more of them together gains next to nothing on a CPU (AutoFormer micro by DSS and
NASWOT: 0.077 s an arch for 8, 0.072 s for 16), and a generation of 50 still keeps seven workers busy."""


@dataclass(frozen=True)
class SubnetJob:
    """Judges archs by the weights that they inherit from a supernet."""

    space: Space
    weights: dict[str, Tensor]
    batches: BatchSource
    precision: str
    calibration_images: int
    compiled: bool

    @classmethod
    def of(cls, subnets: SubnetEvaluator, calibration_images: int) -> SubnetJob:
        supernet = subnets.supernet
        weights = {name: tensor.detach().cpu() for name, tensor in supernet.weights.state_dict().items()}
        compiled = supernet.compile_options is not None
        # Costs are counted here, not by workers: so a profile stays at home.
        space = replace(supernet.space, predicted=None)
        return cls(space, weights, subnets.batches, subnets.precision, calibration_images, compiled)

    def open(self, device: str) -> Work:
        supernet = Supernet(self.space)
        supernet.weights.load_state_dict(self.weights)
        supernet.to(device)
        if self.compiled:
            supernet.compile()
        subnets = SubnetEvaluator(supernet, self.batches.to(device), self.precision, self.calibration_images)
        return lambda archs: [subnets(arch) for arch in archs]


@dataclass(frozen=True)
class ProxyJob:
    """Scores untrained archs: means by proxy as a search wants them ("many"), or all values ("score_many")."""

    scorer: Scorer
    method: Literal["many", "score_many"] = "many"

    def open(self, device: str) -> Work:
        work: Work = getattr(self.scorer.to(device), self.method)
        return work
