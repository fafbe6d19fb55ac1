"""Options of the commands that score by proxies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nasformer.utils.units import check_range, check_threads

MAX_PROBE_SIZE, MAX_IMG_SIZE = 4096, 2**14


@dataclass
class ProbeOptions:
    """What proxies are shown, and how often."""

    proxy: str = ""
    """training-free scores, such as dss or dss,naswot; see `nasformer proxies`"""
    repeats: int = 1
    """seeds to average over, each with other weights and another batch"""
    probe_size: int = 64
    """images of the batch that is shown"""
    probe_img_size: int | None = None
    """side of these images, where smaller ones will do; costs stay those of the model's own size"""
    threads: int | Literal["auto"] = "auto"
    """threads of the CPU for each operation; auto: one for proxies; for a supernet's archs those of its training"""

    def __post_init__(self) -> None:
        check_range(self, "repeats", 1)
        check_threads(self)
        check_range(self, "probe_size", 1, MAX_PROBE_SIZE)
        check_range(self, "probe_img_size", 1, MAX_IMG_SIZE, optional=True)
        getattr(super(), "__post_init__", lambda: None)()  # a command inherits from other groups of options as well

    def probing(self) -> dict[str, int | None]:
        """The arguments of a `Scorer`."""
        threads = None if self.threads == "auto" else self.threads
        sizes = {"batch_size": self.probe_size, "img_size": self.probe_img_size}
        return {"repeats": self.repeats, **sizes, "threads": threads}
