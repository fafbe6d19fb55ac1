"""ESFormers as one would make them up to show a pattern, or its opposite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nasformer.models.registry import get_space
from nasformer.search.journal import Journal
from nasformer.space.arch import Arch
from nasformer.utils.files import write_json

SPACE = get_space("esformer-s0", img_size=64)
LIMIT = 2_500_000


def block(kind: str, kernel: int) -> dict[str, Any]:
    return {kind: {"kernel": kernel, "expansion": 2}}


def encoder(ffn: str, kernel: int, qkv_dim: int) -> dict[str, Any]:
    return {"encoder": {"qkv_dim": qkv_dim, "ffn": block(ffn, kernel)}}


def net(
    early: str = "ibn",
    late: str = "convnext",
    ffn: tuple[str, str] = ("ibn", "convnext"),
    kernels: tuple[int, int, int, int] = (3, 5, 7, 9),
    qkv_dim: tuple[int, int] = (32, 64),
    encoders: bool = True,
) -> Arch:
    """By default one that has all patterns of the supplement; `encoders` False leaves none."""
    k1, k2, k3, k4 = kernels
    third = [encoder(ffn[0], k3, qkv_dim[0]) if encoders else block(early, k3)] * 3
    fourth = [encoder(ffn[1], k4, qkv_dim[1]) if encoders else block(late, k4)]
    stages = {
        "stage1": {"embed_dim": 16, "blocks": [block(early, k1)] * 2},
        "stage2": {"embed_dim": 40, "blocks": [block(early, k2)] * 2},
        "stage3": {"embed_dim": 88, "blocks": [*[block(early, k3)] * 2, *third]},
        "stage4": {"embed_dim": 168, "blocks": [*[block(late, k4)] * 2, *fourth]},
    }
    return SPACE.root.validate(stages)


def write_search(folder: Path, arch: Arch, **changes: Any) -> Path:
    """What a search leaves behind, as far as patterns are concerned."""
    settings = {"budget": {"max_params": LIMIT}, "model_options": dict(SPACE.options), **changes}
    space = settings.pop("space", SPACE.name)
    winner = {"name": "winner", "arch": arch.to_dict()}
    write_json(folder / "result.json", {"space": space, "data": None, "winner": winner})
    with Journal(folder / "search" / "journal.jsonl", settings):
        pass
    return folder
