from __future__ import annotations

import ast
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import nasformer
from export.small import FAMILIES, small_model, small_of
from families.small import images
from nasformer.errors import UserError
from nasformer.export.standalone import Closure, import_lines, nested, standalone_source
from nasformer.layers.attention import RelativeAttention
from nasformer.layers.basic import LayerNorm
from nasformer.layers.blocks import TransformerBlock
from nasformer.models.base import Segment
from nasformer.utils.files import save_tensors

FACTS: dict[str, Any] = {
    "mean": [0.5, 0.4, 0.3],
    "std": [0.1, 0.2, 0.3],
    "classes": ["a", 'b"c', "d\\e", "ü\n", "😀\x00", "\udcff"],
}


def imported(folder: Path, text: str) -> ModuleType:
    path = folder / "model.py"
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("exported_model", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("family", FAMILIES)
def test_the_file_gives_the_same_logits_to_the_last_bit(family: str, tmp_path: Path) -> None:
    model, x = small_model(family), images(small_of(family), batch=3)
    module = imported(tmp_path, standalone_source(model, FACTS))
    save_tensors(tmp_path / "model.safetensors", model.state_dict())
    network = module.load()
    assert not network.training
    assert torch.equal(network(x), model(x))
    assert torch.equal(network.forward_features(x), model.forward_features(x))
    assert list(network.state_dict()) == list(model.state_dict())


@pytest.mark.parametrize("family", FAMILIES)
def test_the_file_is_readable_and_needs_torch_alone(family: str, tmp_path: Path) -> None:
    model = small_model(family)
    text = standalone_source(model, FACTS | {"classes": [f"class {number}" for number in range(20)]})
    tree = ast.parse(text)
    packages = {item.name.split(".")[0] for n in tree.body if isinstance(n, ast.Import) for item in n.names}
    packages |= {str(n.module).split(".")[0] for n in tree.body if isinstance(n, ast.ImportFrom)}
    assert packages - set(sys.stdlib_module_names) == {"torch"}
    lazily = {str(n.module).split(".")[0] for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert lazily - packages == {"PIL"}  # to read images
    assert not re.search(r"def cost\b|>>>|type: ignore|noqa|\bCost\b", text)
    assert nasformer.__version__ in text
    assert "Apache-2.0" in text
    about = str(ast.get_docstring(tree))
    assert json.loads(about[about.index("{") :]) == model.arch.to_dict()
    (tmp_path / "model.py").write_text(text)
    ruff = shutil.which("ruff", path=str(Path(sys.executable).parent)) or shutil.which("ruff")
    if ruff is None:
        pytest.skip("ruff is not installed")
    settings = ["--isolated", "--no-cache", "--line-length=120", str(tmp_path / "model.py")]
    for words in (["check", "--select=E,F,W,I,UP,B"], ["format", "--check"]):
        done = subprocess.run([ruff, *words, *settings], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_constants_of_the_file(tmp_path: Path) -> None:
    space = small_of("autoformer").with_options(img_size=(16, 24))
    model = space.build(space.root.smallest())
    module = imported(tmp_path, standalone_source(model, FACTS))
    assert module.IMG_SIZE == (16, 24)
    assert tuple(FACTS["classes"]) == module.CLASSES
    pixels = torch.randint(0, 256, (2, 3, 16, 24), dtype=torch.uint8)
    mean, std = (torch.tensor(FACTS[name]).reshape(1, 3, 1, 1) for name in ("mean", "std"))
    expected = (pixels.double() / 255 - mean) / std
    torch.testing.assert_close(module.normalise(pixels).double(), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(module.normalise(pixels / 255).double(), expected, rtol=0, atol=1e-5)
    assert not {"normalise", "predict", "PIL"} & set(re.findall(r"\w+", standalone_source(model)))
    assert standalone_source(model, FACTS) == standalone_source(model, FACTS)


def test_only_what_is_called_is_taken() -> None:
    text = Closure([TransformerBlock]).text()
    classes = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    methods = {c.name: [n.name for n in c.body if isinstance(n, ast.FunctionDef)] for c in classes}
    assert methods["TransformerBlock"] == ["__init__", "forward"]
    assert methods["RelativeAttention"] == ["__init__", "set_grid", "forward"]  # its __init__ sets the grid
    assert methods["Mlp"] == ["__init__", "forward", "forward_padded"]
    assert "def token_coordinates" in text
    assert "def init_weights" in text
    assert "set_drop_path" not in text
    assert text.index("class RelativePositions") < text.index("class RelativeAttention") < text.index("class Transf")
    assert "class Mlp" not in Closure([RelativeAttention]).text()


def define(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **modules: str) -> None:
    """Modules of somebody else's package `mine`."""
    package = tmp_path / "mine"
    package.mkdir()
    for name, text in {"__init__": "", **modules}.items():
        (package / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.split(".")[0] == "mine"]:
        monkeypatch.delitem(sys.modules, name)
    from nasformer.export.standalone import parse_module

    parse_module.cache_clear()


def test_what_cannot_stand_alone_is_said_to_be_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    define(
        tmp_path,
        monkeypatch,
        one="import numpy as np\nfrom mine.two import helper\n"
        "class Foreign:\n    def forward(self, x): return np.abs(x)\n"
        "import mine.two as second\nclass Renamed:\n    def forward(self, x): return second.helper(x)\n"
        "class Twice:\n    def forward(self, x): return helper(SIZE)\nSIZE = 1\n",
        two="SIZE = 2\ndef helper(x): return x + SIZE\n",
    )
    from mine.one import Foreign, Renamed, Twice  # type: ignore[import-not-found]

    with pytest.raises(UserError, match=r"mine.one needs numpy, but a self-contained file may need torch alone"):
        Closure([Foreign])
    with pytest.raises(UserError, match="two modules define SIZE"):
        Closure([Twice]).text()
    with pytest.raises(UserError, match=r"mine.one has `import mine.two as second`"):
        Closure([Renamed])

    class Inner(torch.nn.Module):
        pass

    with pytest.raises(UserError, match="does not define Inner at its top level"):
        Closure([Inner])


def test_layers_of_somebody_else_may_build_on_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    define(
        tmp_path,
        monkeypatch,
        __init__="from mine.scale import scaled\n",
        scale="FACTOR = 2\n# Doubles.\ndef scaled(x): return FACTOR * x\n",
        block="from torch import nn\nfrom nasformer.layers.blocks import Mlp\nfrom . import scaled\n\n\n"
        "class Block(Mlp):\n    def forward(self, x):\n        return scaled(super().forward(x))\n",
    )
    from mine.block import Block  # type: ignore[import-not-found]

    closure = Closure([Block])
    text = "from __future__ import annotations\n" + import_lines(closure.imports) + "\n" + closure.text()
    module = imported(tmp_path, text)
    torch.manual_seed(0)
    ours = Block(4, 8)
    torch.manual_seed(0)
    theirs, x = module.Block(4, 8), torch.randn(2, 4)
    assert torch.equal(theirs(x), ours(x))
    assert "# Doubles.\ndef scaled" in text


def test_a_pruned_model_has_no_source() -> None:
    model = small_of("esformer").build(small_of("esformer").root.smallest())
    model.prune_intermediate_layers([0])  # type: ignore[operator]
    with pytest.raises(UserError, match="layers were taken from"):
        standalone_source(model)


def test_a_container_runs_as_a_whole() -> None:
    plan = [Segment.of(name, LayerNorm, embed_dim=4) for name in ("a.0", "b", "a.1", "head")]
    with pytest.raises(UserError, match="do not follow each other"):
        nested(plan)
