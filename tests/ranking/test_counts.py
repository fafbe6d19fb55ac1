from __future__ import annotations

from families.small import each_space
from nasformer.models.space import Space
from nasformer.proxies.ranking import number_totals, trivial_counts
from nasformer.space.arch import Arch

from .tables import SPACE


def test_autoformer() -> None:
    arch = SPACE.sample(3)
    counts = trivial_counts(SPACE, [arch])
    assert counts == {
        "params": [SPACE.cost(arch).params],
        "macs": [SPACE.cost(arch).macs],
        "depth": [len(arch.blocks)],
        "embed_dim": [arch.embed_dim],
        "num_heads": [sum(block.num_heads for block in arch.blocks)],
        "mlp_ratio": [sum(block.mlp_ratio for block in arch.blocks)],
    }


@each_space
def test_every_space_has_its_counts(space: Space) -> None:
    archs = [space.root.smallest(), space.root.largest()]
    counts = trivial_counts(space, archs)
    assert list(counts)[:3] == ["params", "macs", "depth"]
    assert all(len(values) == 2 for values in counts.values())
    for name in ("params", "macs"):
        assert 0 < counts[name][0] < counts[name][1]
    if space.model.family != "vit":  # whose blocks are left out, all of them in the smallest, or all kept
        assert 0 < counts["depth"][0] < counts["depth"][1]


def test_leaves_of_any_arch() -> None:
    stages = Arch(
        base_dim=16,
        mlp_ratio=4,
        pool="conv",
        fast=True,
        depth={"stage1": 2, "stage2": 6},
        num_heads={"stage1": 2, "stage2": 4},
    )
    assert number_totals(stages) == {"base_dim": 16, "mlp_ratio": 4, "depth": 8, "num_heads": 6}
    mixed = [{"conv": {"kernel": 3}}, {"local": {"heads": 4, "window": 7}}]
    operators = Arch(stage1=mixed, stage2=[{"conv": {"kernel": 5}}])
    assert number_totals(operators) == {"kernel": 8, "heads": 4, "window": 7}
    assert number_totals(Arch(sizes=[1, 2, 3], width1=8, width_2=9)) == {"sizes": 6, "width": 17}
