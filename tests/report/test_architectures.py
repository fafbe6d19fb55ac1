from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from nasformer.models.registry import get_space
from nasformer.report.architectures import (
    SHORTEST,
    ArchParts,
    Block,
    Card,
    Sheet,
    architectures,
    split_arch,
    value_ranges,
)
from nasformer.report.style import BLUE, FAINT, GREEN, ORANGE
from nasformer.results.contents import read_run
from nasformer.space.nodes import Choice, OneOf, Repeat, Struct
from nasformer.utils.files import write_json

from .fake import SPACE, model

OPERATOR = OneOf(conv=Struct(kernel=Choice(3, 5, 7)), local=Struct(window=Choice(7, 14)), none=Struct())
STAGE = Struct(dim=Choice(32, 64), blocks=Repeat(OPERATOR, depth=Choice(1, 2, 3)))
STAGES = Struct(size=Choice(192, 224), act=Choice("gelu", "relu"), first=STAGE, second=STAGE)


def words(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


def bars(figure: Figure) -> list[tuple[str, float]]:
    """Colour and width of every bar; the grey tracks behind them are left out."""
    found = [patch for patch in figure.axes[0].patches if type(patch) is Rectangle]
    coloured = [(to_hex(patch.get_facecolor()), float(patch.get_width())) for patch in found]
    return [(colour, width) for colour, width in coloured if colour != FAINT]


def draw(cards: list[Card], known: Sequence[ArchParts] = ()) -> Figure:
    return Sheet(cards, known).figure


def card(arch: dict[str, Any], title: str = "winner") -> Card:
    return Card(title, "", split_arch(arch))


def test_nested_structs_are_named_by_their_path() -> None:
    arch = {"stem": {"conv": {"kernel": 3}}, "pool": {"none": {}}, "stage1": {"dim": 32, "blocks": [{"heads": 2}]}}
    assert split_arch(arch) == ArchParts(
        {"stem.conv.kernel": 3, "pool.none": "", "stage1.dim": 32}, {"stage1.blocks": [Block("", {"heads": 2})]}
    )


def test_a_list_of_stages_becomes_a_stack_each() -> None:
    arch = {"stages": [{"dim": 8, "blocks": [{"heads": 1}]}, {"dim": 16, "blocks": [{"heads": 2}, {"heads": 4}]}]}
    parts = split_arch(arch)
    assert parts.scalars == {"stages 1.dim": 8, "stages 2.dim": 16}
    assert [len(stack) for stack in parts.stacks.values()] == [1, 2]


def test_numbered_fields_are_stages() -> None:
    arch = {"dim": 8, "depth": {"stage1": 2, "stage2": 4}, "heads": {"stage1": 1, "stage2": 3}}
    parts = split_arch(arch)
    assert parts.scalars == {"dim": 8}
    assert parts.stacks == {"stage": [Block("", {"depth": 2, "heads": 1}), Block("", {"depth": 4, "heads": 3})]}
    assert {"dim", "stage", "depth", "heads", "6 layers"} <= set(words(draw([card(arch)])))
    uneven = {"depth": {"s1": 2, "s2": 4, "s3": 6}, "heads": {"s1": 1, "s2": 3}, "conv1": {"kernel": 3, "dim": 4}}
    assert [block.fields for block in split_arch(uneven).stacks["s"]] == [
        {"depth": 2, "heads": 1},
        {"depth": 4, "heads": 3},
        {"depth": 6},
    ]
    assert split_arch(uneven).scalars == {"conv1.kernel": 3, "conv1.dim": 4}


def test_a_list_of_values_is_a_stack_of_one_field() -> None:
    assert split_arch({"num_heads": [3, 4]}).stacks == {
        "num_heads": [Block("", {"num_heads": 3}), Block("", {"num_heads": 4})]
    }


def test_a_pick_inside_a_block_gives_its_kind() -> None:
    (block,) = split_arch({"blocks": [{"op": {"conv": {"kernel": 3}}, "mlp": {"ratio": 4, "act": "relu"}}]}).stacks[
        "blocks"
    ]
    assert block == Block("conv", {"op.kernel": 3, "mlp.ratio": 4, "mlp.act": "relu"})


def test_ranges_are_of_numbers_alone() -> None:
    arch = {"blocks": [{"heads": 2, "act": "gelu", "bias": True}, {"heads": 6, "act": "relu", "bias": False}]}
    assert value_ranges([split_arch(arch)]) == {"heads": (2, 6)}


def test_the_width_of_a_bar_is_the_place_in_the_range() -> None:
    space = split_arch({"blocks": [{"heads": 2}, {"heads": 6}]})
    figure = draw([card({"blocks": [{"heads": 2}, {"heads": 4}, {"heads": 6}]})], [space])
    widths = [width for _, width in bars(figure)]
    full = widths[-1]
    assert [width / full for width in widths] == pytest.approx([SHORTEST, (1 + SHORTEST) / 2, 1])


def test_fields_have_colours_where_layers_have_no_kind() -> None:
    figure = draw([card({"embed_dim": 192, "blocks": [{"num_heads": 3, "mlp_ratio": 3.5}] * 2})])
    assert [colour for colour, _ in bars(figure)] == [BLUE, ORANGE] * 2
    assert {"embed_dim", "192", "num_heads", "3.5", "2 layers"} <= set(words(figure))


def test_blocks_that_choose_are_boxes_in_the_colour_of_their_operator() -> None:
    blocks = [{"conv": {"kernel": 3}}, {"local": {"window": 7}}, {"conv": {"kernel": 5}}, {"none": {}}]
    figure = draw([card({"blocks": blocks})])
    assert [colour for colour, _ in bars(figure)] == [BLUE, ORANGE, BLUE, GREEN, BLUE, ORANGE, GREEN]  # and the legend
    found = Counter(words(figure))
    assert {name: found[name] for name in ("conv", "local", "none")} == {"conv": 3, "local": 2, "none": 2}
    assert {"1", "4", "kernel 3", "kernel 5", "window 7"} <= set(found)


def test_an_operator_has_its_colour_whatever_else_is_drawn() -> None:
    space = split_arch({"blocks": [{"conv": {"kernel": 3}}, {"local": {"window": 7}}]})
    figure = draw([card({"blocks": [{"local": {"window": 7}}]})], [space])
    assert bars(figure)[0][0] == ORANGE


def test_a_kind_within_a_kind_has_the_colour_of_the_outer_one() -> None:
    halves = [{"encoder": {"qkv_dim": 64, "ffn": {kind: {"kernel": 5}}}} for kind in ("ibn", "convnext")]
    figure = draw([card({"blocks": [{"ibn": {"kernel": 3}}, *halves]})])
    assert [colour for colour, _ in bars(figure)] == [BLUE, ORANGE, ORANGE, BLUE, ORANGE]
    assert {"encoder + ibn", "encoder + convnext", "encoder", "q-k-v 64"} <= set(words(figure))


def test_the_width_of_a_stage_stands_with_its_blocks() -> None:
    blocks = [{"conv": {"expansion": 0.125}}] * 2
    figure = draw([card({"size": 224, "stage1": {"embed_dim": 64, "blocks": blocks}})])
    assert {"size", "224", "stage 1", "embed_dim 64 · 2 layers", "×1/8"} <= set(words(figure))
    assert "stage1.embed_dim" not in words(figure)


def test_tables_and_boxes_go_together() -> None:
    figure = draw([card({"stem": [{"dim": 8}, {"dim": 16}], "blocks": [{"conv": {"kernel": 3}}]})])
    assert {"dim", "8", "16", "conv", "kernel 3"} <= set(words(figure))
    assert "kernel" not in words(figure)


@pytest.mark.parametrize("name", ["trionet", "esformer-s0"])
def test_no_word_of_a_box_hides_another(name: str) -> None:
    root = get_space(name).root
    figure = draw([card(arch.to_dict(), str(k)) for k, arch in enumerate([root.largest(), root.sample(Random(1))])])
    figure.canvas.draw()
    boxes = [text.get_window_extent() for text in figure.axes[0].texts if text.get_text()]
    assert not [pair for pair in combinations(boxes, 2) if pair[0].overlaps(pair[1])]
    assert max(box.x1 for box in boxes) < figure.bbox.x1


def test_any_arch_of_stages_and_operators_can_be_drawn() -> None:
    for seed in range(5):
        archs = [STAGES.smallest(), STAGES.sample(Random(seed)), STAGES.largest()]
        figure = draw([card(arch.to_dict(), str(k)) for k, arch in enumerate(archs)])
        blocks = [block for arch in archs for block in (*arch.first.blocks, *arch.second.blocks)]
        kinds = {kind for block in blocks for kind in block}
        named = [word for word in words(figure) if word in kinds]
        assert len(named) == len(blocks) + len(kinds)  # and the legend


@pytest.mark.parametrize("arch", [{"dim": 3}, {"blocks": []}, {"blocks": [{}]}, {"a": None, "b": [True, "x", 1e-9]}])
def test_odd_archs_do_not_hurt(arch: dict[str, Any]) -> None:
    draw([card(arch)]).canvas.draw()


def write_result(folder: Path, space: str, *references: dict[str, Any]) -> None:
    write_json(folder / "config.json", {"space": space})
    winner = model("winner", SPACE.root.sample(Random(1)))
    write_json(folder / "result.json", {"space": space, "data": None, "winner": winner, "references": list(references)})


def test_the_winner_stands_between_the_ends_of_its_space(tmp_path: Path) -> None:
    write_result(tmp_path, SPACE.name, model("smallest", SPACE.root.sample(Random(2))))
    figure = architectures(read_run(tmp_path))
    assert figure is not None
    titles = [text for text in figure.axes[0].texts if text.get_fontsize() == 13]
    assert [t.get_text() for t in titles] == ["smallest of the space", "winner", "largest of the space"]
    assert sorted(t.get_position()[0] for t in titles) == [t.get_position()[0] for t in titles]
    assert {"32", "64", "3 layers", "6 layers"} <= set(words(figure))


def test_the_references_stand_in_for_an_unknown_space(tmp_path: Path) -> None:
    write_result(tmp_path, "evolved", model("largest", SPACE.root.largest()))
    figure = architectures(read_run(tmp_path))
    assert figure is not None
    assert [t.get_text() for t in figure.axes[0].texts if t.get_fontsize() == 13] == ["winner", "largest"]
