"""Space expressions: a name for a space with choices of your own, and what else follows from such choices."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny
from nasformer import get_space
from nasformer.cli.main import main
from nasformer.errors import UserError
from nasformer.latency.search import default_path
from nasformer.models.registry import list_spaces
from nasformer.models.space import Space
from nasformer.models.storage import load_model
from nasformer.space.dimensions import dimensions
from nasformer.supernet.storage import load_supernet, save_supernet
from nasformer.supernet.supernet import Supernet
from nasformer.utils.files import read_json
from small_run import refused, words

from .small import each_space

MICRO = get_space("autoformer-micro")
MINE = "autoformer-micro[embed_dim=24,32;blocks.depth=2,3]"


def fewer(space: Space) -> dict[str, tuple[Any, ...]]:
    """Every dimension without its last value, where that leaves one; rules can then still be kept."""
    return {name: choice.values[:-1] or choice.values for name, choice in dimensions(space.root).items()}


@pytest.mark.parametrize("name", list_spaces())
def test_every_space_can_be_named_with_other_choices(name: str) -> None:
    space = get_space(name).with_choices(fewer(get_space(name)))
    again = get_space(space.name)
    assert again.name == space.name
    assert repr(again.root) == repr(space.root)
    assert again.options == space.options
    assert again.presets == get_space(name).presets
    assert again.about.startswith(get_space(name).about)


@each_space
def test_choices_of_the_base_change_nothing(space: Space) -> None:
    same = space.with_choices({name: choice.values for name, choice in dimensions(space.root).items()})
    assert (same.name, same.base, same.about, same.options) == (space.name, None, space.about, space.options)
    changed = space.with_choices(fewer(space))
    back = changed.with_choices({name: choice.values for name, choice in dimensions(space.root).items()})
    assert (back.name, back.base, back.about, back.options) == (space.name, None, space.about, space.options)
    assert repr(back.root) == repr(space.root)


def test_names_are_canonical() -> None:
    for text in (
        MINE,
        " autoformer-micro [ blocks.depth = 2, 3 ; embed_dim = 24.0, 32 ] ",
        "autoformer-micro[embed_dim=24,32;blocks.depth=2,3;blocks.num_heads=2,3,4]",
    ):
        assert get_space(text).name == MINE
    assert get_space("autoformer-micro[embed_dim=32,48,64]").name == "autoformer-micro"
    assert get_space("autoformer-micro[blocks.mlp_ratio=2,2.50]").name == "autoformer-micro[blocks.mlp_ratio=2,2.5]"


def test_changes_add_up() -> None:
    space = MICRO.with_choices({"blocks.depth": [2, 3]}).with_choices({"embed_dim": [24, 32]})
    assert space.name == MINE
    assert space.with_choices({"embed_dim": [32, 48, 64]}).name == "autoformer-micro[blocks.depth=2,3]"
    assert space.about == f"{MICRO.about}; with other choices of embed_dim, blocks.depth"


def test_options_of_the_model_stay_and_those_of_the_declaration_follow() -> None:
    space = get_space(MINE, img_size=8, num_classes=3)
    assert (space.full_options["img_size"], space.full_options["num_classes"]) == (8, 3)
    assert (MICRO.options["super_depth"], space.options["super_depth"]) == (6, 3)
    assert space.with_options(img_size=16).name == MINE
    assert get_space(MINE, super_depth=9).options["super_depth"] == 9


def test_values_have_the_type_of_the_base() -> None:
    found = dimensions(get_space("autoformer-micro[embed_dim=24,32.0;blocks.mlp_ratio=1,2]").root)
    assert [repr(found[name]) for name in ("embed_dim", "blocks.mlp_ratio")] == ["Choice(24, 32)", "Choice(1.0, 2.0)"]
    with pytest.raises(UserError, match=r"embed_dim has the value 24\.5, expected whole numbers like 32,48,64"):
        get_space("autoformer-micro[embed_dim=24.5]")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("autofromer-micro[embed_dim=24]", "unknown space 'autofromer-micro'; did you mean autoformer-micro?"),
        ("autoformer-micro[embde_dim=24]", "there is no dimension 'embde_dim'; did you mean embed_dim?"),
        ("s3-micro[stage9=24]", "there is no dimension 'stage9'; "),
        ("autoformer-micro[embed_dim=small]", "embed_dim has the value 'small', expected numbers like 32,48,64"),
        ("autoformer-micro[embed_dim=]", "has an empty value for embed_dim, expected a list such as embed_dim=24,32"),
        ("autoformer-micro[embed_dim=24,,32]", "has an empty value for embed_dim"),
        ("autoformer-micro[embed_dim]", "has 'embed_dim' in its brackets, expected dimension=value,value"),
        ("autoformer-micro[embed_dim=24;]", "has '' in its brackets"),
        ("autoformer-micro[embed_dim=24;embed_dim=32]", "names embed_dim twice"),
        ("autoformer-micro[]", "has empty brackets"),
        ("autoformer-micro[embed_dim=24", "does not have one [ and one ] at its end"),
        ("autoformer-micro[embed_dim=24]]", "does not have one [ and one ] at its end"),
        ("autoformer-micro[embed_dim=24]x", "does not have one [ and one ] at its end"),
        ("autoformer-micro]", "does not have one [ and one ] at its end"),
        ("autoformer-micro[embed_dim=32,24]", "embed_dim: Choice(32, 24) is not in order, numbers must ascend"),
        ("autoformer-micro[embed_dim=-8,24]", "embed_dim has the value -8, expected numbers above 0"),
        ("pit-tiny[num_heads.stage1=3]", "no combination of stage1, stage2, stage3 keeps the rules"),
        ("esformer-s0[stage3.blocks.encoder.qkv_dim=50]", "qkv_dim 50 is not a multiple of head_dim 16"),
    ],
)
def test_wrong_expressions_are_refused(text: str, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        get_space(text)
    assert "\n" not in str(caught.value)


def test_values_with_reserved_characters_are_refused() -> None:
    from nasformer.models.space import expression

    with pytest.raises(UserError, match="act has the value 'a;b'; names of spaces can have no values with"):
        expression("mine", {"act": ("a;b",)})


def test_windows_of_s3_end_at_the_map() -> None:
    assert get_space("s3-micro").limits() == {
        "stage1.blocks.window": (1, 16),
        "stage2.blocks.window": (1, 8),
        "stage3.blocks.window": (1, 4),
        "stage4.blocks.window": (1, 2),
    }
    assert get_space("s3", img_size=(224, 112)).limits()["stage4.blocks.window"] == (1, 7)
    assert [end for _, end in get_space("s3-micro", img_size=18).limits().values()] == [9, 5, 3, 2]


@pytest.mark.parametrize("name", list_spaces())
def test_limits_name_dimensions(name: str) -> None:
    space = get_space(name)
    assert set(space.limits()) <= set(dimensions(space.root))


def test_a_window_beyond_the_limit_is_the_same_net() -> None:
    space = get_space("s3-micro[stage4.blocks.window=2,4]")
    narrow, wide = space.root.smallest().to_dict(), space.root.smallest().to_dict()
    for block in wide["stage4"]["blocks"]:
        block["window"] = 4
    assert space.cost(space.arch(narrow)) == space.cost(space.arch(wide))


def test_supernet_is_loaded_by_its_expression(tmp_path: Path) -> None:
    supernet = Supernet(get_space(MINE, img_size=8), seed=3).eval()
    save_supernet(supernet, tmp_path)
    again = load_supernet(tmp_path, get_space(MINE)).eval()
    assert again.space.name == MINE
    tiny.assert_same(again, supernet)
    with pytest.raises(
        UserError, match=re.escape(f"holds a supernet of {MINE}, not of autoformer-micro; ask for --space '")
    ):
        load_supernet(tmp_path, MICRO)


def test_a_supernet_needs_a_largest_member() -> None:
    space = get_space("pit-tiny[num_heads.stage1=2,5;num_heads.stage2=5,8;num_heads.stage3=40]")
    with pytest.raises(UserError, match=r"has no largest member, .*: by its rules, num_heads\.stage2=8 goes only with"):
        Supernet(space)


def test_a_profile_has_a_short_file_name() -> None:
    stages = {f"stage{n}.blocks.mlp_ratio": list(range(1, 99)) for n in range(1, 5)}
    space = get_space("s3-micro").with_choices(stages)
    assert len(space.name) > 255
    name = default_path(space, "cpu", "eager", 1).name
    assert re.fullmatch(r"s3-micro-[0-9a-f]{8}-32px-cpu-eager-b1-t1\.json", name)


def test_commands_take_an_expression(capsys: Any) -> None:
    assert main(["spaces", MINE]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{MINE}: ")
    assert re.search(r"^    embed_dim +24,32$", said, re.MULTILINE)
    assert "--space 'autoformer-micro[embed_dim=24,32]'" in said
    assert main(["spaces", MINE, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["dimensions"]["blocks.depth"] == [2, 3]
    assert main(["sample", "--space", MINE, "-n", "2"]) == 0
    for line in capsys.readouterr().out.splitlines():
        assert json.loads(line)["embed_dim"] in (24, 32)
        assert main(["cost", "--space", MINE, "--arch", line, "--json"]) == 0
        space = get_space(MINE)
        assert json.loads(capsys.readouterr().out) == space.costs(space.arch(line))
    assert "did you mean embed_dim?" in refused(capsys, ["sample", "--space", "autoformer-micro[embed=24]"])


def test_a_run_with_an_expression(tmp_path: Path) -> None:
    run = tmp_path / "run"
    few = {"space": MINE, "train": {"epochs": 1, "batch_size": 512}, "search": {"population": 2, "generations": 1}}
    assert main([*words("train", run, **few), "--json"]) == 0
    assert main([*words("search", run, **{**few, "space": None}), "--json"]) == 0
    assert main(["extract", str(run), "--to", str(tmp_path / "model"), "--json"]) == 0
    for path in ("config.json", "result.json", "supernet/supernet.json", "model/config.json"):
        assert read_json(run / path)["space"] == MINE
    winner = get_space(MINE).arch(read_json(run / "result.json")["winner"]["arch"])
    model, supernet, x = load_model(tmp_path / "model"), load_supernet(run / "supernet").eval(), torch.randn(2, 1, 8, 8)
    assert model.arch == winner
    assert torch.equal(model.eval()(x), supernet(x, winner))
