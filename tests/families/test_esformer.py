"""ESFormer: its blocks against timm's, its spaces against what they are meant to be."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from timm.models._efficientnet_blocks import InvertedResidual
from timm.models.convnext import ConvNeXtBlock as TimmConvNeXtBlock
from torch import Tensor, nn

from families.small import SPACES, images, randomise
from nasformer.errors import UserError
from nasformer.families.esformer import ESFormer
from nasformer.layers.basic import DropPath
from nasformer.layers.blocks import ConvNeXtBlock, InvertedBottleneck, MapEncoder
from nasformer.models.registry import get_space
from nasformer.models.space import Space
from nasformer.proxies.parts import attention_linears, is_block, mlp_linears
from nasformer.space.arch import Arch
from nasformer.space.mutation import genes
from nasformer.supernet.supernet import Supernet

NAMES = ("esformer-s0", "esformer-s1", "esformer-s2")
THEIR_NAMES = {
    "expand": "conv_pw",
    "expand_norm": "bn1",
    "depthwise": "conv_dw",
    "depthwise_norm": "bn2",
    "project": "conv_pwl",
    "project_norm": "bn3",
}
MIXED = {
    "stage1": {"embed_dim": 24, "blocks": [{"ibn": {"kernel": 5, "expansion": 3}}]},
    "stage2": {"embed_dim": 40, "blocks": [{"convnext": {"kernel": 7, "expansion": 2}}]},
    "stage3": {
        "embed_dim": 88,
        "blocks": [
            {"encoder": {"qkv_dim": 32, "ffn": {"ibn": {"kernel": 3, "expansion": 4}}}},
            {"encoder": {"qkv_dim": 96, "ffn": {"convnext": {"kernel": 9, "expansion": 3}}}},
            {"ibn": {"kernel": 9, "expansion": 6}},
            {"convnext": {"kernel": 3, "expansion": 6}},
        ],
    },
    "stage4": {
        "embed_dim": 136,
        "blocks": [{"encoder": {"qkv_dim": 256, "ffn": {"convnext": {"kernel": 5, "expansion": 2}}}}],
    },
}


PLACES = [f"2.blocks.{place}" for place in range(4)]


def mixed(space: Space) -> Arch:
    """Every alternative of a block, in all sorts of sizes."""
    return space.arch(MIXED)


def feature_map(dim: int = 16, batch: int = 4) -> Tensor:
    return torch.randn(batch, dim, 6, 5, generator=torch.Generator().manual_seed(1))


# Blocks


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("kernel", [3, 9])
def test_inverted_bottleneck_is_timms(kernel: int, training: bool) -> None:
    ours = randomise(InvertedBottleneck(16, 48, kernel, grid=(6, 5), stochastic_depth=False))
    theirs = InvertedResidual(16, 16, kernel, exp_ratio=3, act_layer=nn.GELU)
    names = ((name, *name.split(".", 1)) for name in ours.state_dict())
    theirs.load_state_dict({f"{THEIR_NAMES[layer]}.{rest}": ours.state_dict()[name] for name, layer, rest in names})
    x = feature_map()
    torch.testing.assert_close(ours.train(training)(x), theirs.train(training)(x))
    torch.testing.assert_close(ours.depthwise_norm.running_var, theirs.bn2.running_var)


@pytest.mark.parametrize("kernel", [3, 9])
def test_convnext_block_is_timms(kernel: int) -> None:
    ours = randomise(ConvNeXtBlock(16, 48, kernel, grid=(6, 5), stochastic_depth=False))
    theirs = TimmConvNeXtBlock(16, kernel_size=kernel, mlp_ratio=3)
    theirs.load_state_dict(ours.state_dict())
    torch.testing.assert_close(ours(feature_map()), theirs(feature_map()))


@pytest.mark.parametrize("ffn", [ConvNeXtBlock, InvertedBottleneck])
def test_encoder_is_attention_written_out_and_a_block(ffn: Any) -> None:
    encoder = randomise(MapEncoder(16, 24, 8, (6, 5), ffn, hidden_dim=32, kernel=3), seed=2).eval()
    x = feature_map()
    tokens = nn.functional.layer_norm(x.flatten(2).mT, (16,), encoder.norm1.weight, encoder.norm1.bias, 1e-6)
    q, k, v = (tokens @ encoder.attn.qkv.weight.T + encoder.attn.qkv.bias).split(24, dim=-1)
    heads = []
    for h in (slice(0, 8), slice(8, 16), slice(16, 24)):
        weights = (q[..., h] @ k[..., h].mT / 8**0.5).softmax(-1)
        heads.append(weights @ v[..., h])
    attended = torch.cat(heads, -1) @ encoder.attn.proj.weight.T + encoder.attn.proj.bias
    torch.testing.assert_close(encoder(x), encoder.ffn(x + attended.mT.reshape(x.shape)))


def test_every_residual_branch_of_a_block_is_dropped_at_its_rate() -> None:
    space = SPACES["esformer-s0"].with_options(drop_path_rate=0.6)
    arch = mixed(space)
    model, extracted = space.build(arch), Supernet(space).extract(arch)
    blocks = [name for name, module in model.named_modules() if is_block(name, module)]
    for made in (model, extracted):
        for place, name in enumerate(blocks):
            rates = [part.rate.item() for part in made.get_submodule(name).modules() if isinstance(part, DropPath)]
            assert rates == pytest.approx([0.6 * place / 6] * len(rates))
            assert len(rates) == 1 + isinstance(made.get_submodule(name), MapEncoder)


# The network


@pytest.mark.parametrize(
    ("name", "preset", "params"),
    [("esformer-s0", "xxs", 1.3e6), ("esformer-s1", "xs", 2.4e6), ("esformer-s2", "s", 5.6e6)],
)
def test_presets_have_the_size_of_edgenext_and_lie_well_inside(name: str, preset: str, params: float) -> None:
    space = get_space(name)
    arch = space.arch(f"edgenext-like-{preset}")
    assert space.root.contains(arch)
    assert space.cost(arch).params == pytest.approx(params, rel=0.1)
    sizes = [space.cost(space.sample(seed)).params for seed in range(100)]
    assert 20 <= sum(size < params for size in sizes) <= 80


@pytest.mark.parametrize("name", NAMES)
def test_encoders_are_in_the_last_two_stages_alone(name: str) -> None:
    root = get_space(name).root
    kinds = {stage: set(root.fields[stage].fields["blocks"].item.options) for stage in root.fields}  # type: ignore[attr-defined]
    assert kinds["stage1"] == kinds["stage2"] == {"convnext", "ibn"}
    assert kinds["stage3"] == kinds["stage4"] == {"convnext", "ibn", "encoder"}


def test_kernels_and_kinds_are_topology() -> None:
    space = get_space("esformer-s0")
    topology, size = (genes(space.root, mixed(space), role) for role in ("topology", "size"))  # type: ignore[arg-type]
    assert {path[-1] for path in topology} >= {"kernel", "ffn"}
    assert {path[-1] for path in size} == {"embed_dim", "blocks", "expansion", "qkv_dim"}


def test_proxies_find_blocks_linears_and_activations_by_name() -> None:
    space = SPACES["esformer-s0"]
    model = space.build(mixed(space))
    blocks = [name for name, module in model.named_modules() if is_block(name, module)]
    assert blocks == [f"stages.{n}" for n in ("0.blocks.0", "1.blocks.0", *PLACES, "3.blocks.0")]
    encoders = ("2.blocks.0", "2.blocks.1", "3.blocks.0")
    attention = {f"stages.{n}.attn.{linear}" for n in encoders for linear in ("qkv", "proj")}
    assert set(attention_linears(model)) == attention
    halves = ("1.blocks.0", "2.blocks.1.ffn", "2.blocks.3", "3.blocks.0.ffn")
    assert set(mlp_linears(model)) == {f"stages.{n}.mlp.{fc}" for n in halves for fc in ("fc1", "fc2")}
    assert sum(isinstance(module, nn.GELU) for module in model.modules()) == 3 * 2 + 4


def test_images_of_other_shapes() -> None:
    arch = get_space("esformer-s0").root.smallest()
    for size, patch in (((32, 64), 4), (32, 2), (16, 1)):
        space = get_space("esformer-s0", img_size=size, patch_size=patch, num_classes=5, in_chans=1)
        assert space.build(arch).eval()(images(space)).shape == (2, 5)
    model = ESFormer(arch, img_size=32).eval()
    model.set_input_size((64, 32))
    assert model(torch.randn(1, 3, 64, 32)).shape == (1, 1000)
    with pytest.raises(UserError, match="images are 32 x 32, the model is for 64 x 32"):
        model(torch.randn(1, 3, 32, 32))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"img_size": 48}, "img_size 48 is not a multiple of 32"),
        ({"img_size": (64, 16)}, "is not a multiple of 32"),
        ({"patch_size": 8}, "patch_size is 8, allowed: 1, 2, 4"),
        ({"head_dim": 24}, "qkv_dim 64 is not a multiple of head_dim 24"),
        ({"global_pool": "token"}, 'global_pool is "token", expected "avg"'),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    def plan() -> None:
        space = get_space("esformer-s0", **options)
        space.plan(space.arch("edgenext-like-xxs"))

    with pytest.raises(UserError, match=message):
        plan()


# Sharing


@pytest.fixture(scope="module")
def supernet() -> Supernet:
    return randomise(Supernet(SPACES["esformer-s0"])).eval()


def test_every_alternative_of_a_block_has_weights_of_its_own(supernet: Supernet) -> None:
    block = {"kernel": 9, "expansion": 6}
    used: dict[str, set[str]] = {}
    for kind, chosen in {
        "convnext": block,
        "ibn": block,
        "encoder": {"qkv_dim": 128, "ffn": {"ibn": block}},
        "other": {"qkv_dim": 128, "ffn": {"convnext": block}},
    }.items():
        key = "encoder" if kind == "other" else kind
        stage = {"embed_dim": 104, "blocks": [{key: chosen}] * 4}
        names = supernet.slices(supernet.space.arch({**MIXED, "stage3": stage}))
        used[kind] = {name for name in names if name.startswith("stages.2.blocks.1.")}
    assert not used["convnext"] & used["ibn"]
    assert not (used["convnext"] | used["ibn"]) & (used["encoder"] | used["other"])
    both = used["encoder"] & used["other"]
    assert {name.split(".")[4] for name in both} == {"norm1", "attn"}  # attention is shared, the blocks behind are not
    assert set.union(*used.values()) == {
        name for name, _ in supernet.weights.named_parameters() if name.startswith("stages.2.blocks.1.")
    }


def test_a_small_kernel_is_the_centre_of_a_large_one(supernet: Supernet) -> None:
    slices, shared = supernet.slices(mixed(supernet.space)), supernet.shared()
    for name, size, rows in (("stages.0.blocks.0.depthwise", 5, 72), ("stages.3.blocks.0.ffn.conv_dw", 5, 136)):
        whole = shared[f"{name}.weight"]
        assert whole.shape[2:] == (9, 9)
        assert torch.equal(slices[f"{name}.weight"], whole[:rows, :, 2 : 2 + size, 2 : 2 + size])
    name = "stages.2.blocks.0.attn.qkv.weight"  # 128 rows for each of q, k and v, of which the arch has 32
    assert torch.equal(slices[name][32:64], shared[name][128:160, :88])


def test_a_net_of_all_kinds_is_sliced_as_it_is_extracted(supernet: Supernet) -> None:
    arch, x = mixed(supernet.space), images(supernet.space, batch=4)
    model = supernet.extract(arch)
    assert torch.equal(supernet(x, arch), model(x))
    supernet.zero_grad()
    for made in (supernet.train(), model.train()):
        torch.manual_seed(0)
        (made(x, arch) if made is supernet else made(x)).square().mean().backward()
    shared = dict(supernet.weights.named_parameters())
    for name, weight in model.named_parameters():
        whole = shared[name].grad
        assert whole is not None
        torch.testing.assert_close(whole.norm(), weight.grad.norm(), msg=name)  # type: ignore[union-attr]
    supernet.zero_grad()
    supernet.eval()
