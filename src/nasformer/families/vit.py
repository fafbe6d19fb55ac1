"""ViT: the plain vision transformers of timm, as spaces whose members are cut out of a pretrained net.

ViT (AugReg), DeiT and DeiT-3, DINOv2 with or without registers, the image towers of CLIP and SigLIP. `timm:NAME` is the
space of such a net: every block keeps 0 to all of its heads, and 0 to all of its MLP's neurons in steps that suit
hardware. 0 leaves the branch out, so depth is elastic anywhere and not only at the end. The largest member is the net
itself, and has its weights. The width of the embedding is fixed unless an expression opens it, such as
`timm:vit_tiny_patch16_224[embed_dim=128,160,192]`: cutting it costs every layer, where cutting branches costs one. So
is the size of the images: `[img_size=160,192,224]` lets a net resize them, and its positions are resampled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from nasformer.errors import UserError
from nasformer.layers.basic import LayerNorm, NoNorm
from nasformer.layers.stem import PatchEmbed, to_2tuple
from nasformer.layers.vit import ACTIVATIONS, ViTBlock, ViTHead
from nasformer.models.base import Segment, TokenBackbone, check_option, drop_path_rates, patch_grid, rename
from nasformer.models.pretrained import SUPPORTED
from nasformer.models.registry import register_space
from nasformer.models.sharing import SharingRules, grouped_prefix, resampled_positions
from nasformer.models.space import Space
from nasformer.space.arch import Arch
from nasformer.space.nodes import Choice, Repeat, Struct

POOLS = ("token", "avg", "map")


class ViT(TokenBackbone):
    """The static ViT of an arch.

    >>> arch = Arch.from_dict({"embed_dim": 64, "blocks": [{"num_heads": 1, "hidden_dim": 128}] * 2})
    >>> ViT(arch, img_size=32, patch_size=8, num_classes=10)(torch.randn(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    family = "vit"
    no_decay_suffixes = frozenset({"patch_embed.pos_embed", "patch_embed.cls_token", "patch_embed.reg_token"})

    @classmethod
    def plan(
        cls,
        arch: Arch,
        *,
        img_size: int | tuple[int, int] = 224,
        patch_size: int = 16,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: Literal["token", "avg", "map"] = "token",
        head_dim: int = 64,
        class_token: bool = True,
        reg_tokens: int = 0,
        no_embed_class: bool = False,
        pre_norm: bool = False,
        final_norm: bool = True,
        fc_norm: bool = False,
        qkv_bias: bool = True,
        qk_norm: bool = False,
        layer_scale: bool = False,
        activation: str = "gelu",
        norm_eps: float = 1e-6,
        pool_width: int = 0,
        pool_heads: int = 0,
        pool_hidden: int = 0,
        drop_path_rate: float = 0.0,
    ) -> list[Segment]:
        """Patch embedding, blocks, norm and head; blocks that keep nothing are left out.

        Args:
            reg_tokens: Registers, learned tokens that no head reads.
            no_embed_class: Whether only patches have positions.
            pre_norm: Whether tokens are normalised before the first block, as in CLIP.
            final_norm: Whether tokens are normalised behind the last block.
            fc_norm: Whether the pooled vector is.
            activation: "gelu", "gelu_tanh", "quick_gelu", or "swiglu" for a gated MLP.
            pool_width: Width of the attention that pools tokens, where global_pool is "map".
            drop_path_rate: Stochastic-depth rate of the last block; it grows linearly from 0.
        """
        check_option("global_pool", global_pool, POOLS)
        check_option("activation", activation, ACTIVATIONS)
        grid, dim, prefix = grid_of(arch, img_size, patch_size), arch.embed_dim, class_token + reg_tokens
        resized = {"resize": True} if to_2tuple(arch.get("img_size", img_size)) != to_2tuple(img_size) else {}
        tokens = grid[0] * grid[1] + prefix
        stem = {"patch_size": patch_size, "in_chans": in_chans, "embed_dim": dim, "class_token": class_token}
        stem |= {"reg_tokens": reg_tokens, "no_embed_class": no_embed_class, "proj_bias": not pre_norm, **resized}
        norm = {"embed_dim": dim, "norm_eps": norm_eps}
        common: dict[str, Any] = {"grid": grid, "prefix_tokens": prefix, "qkv_bias": qkv_bias, "qk_norm": qk_norm}
        common |= {"layer_scale": layer_scale, "activation": activation, "norm_eps": norm_eps}
        common |= {"stochastic_depth": drop_path_rate > 0}
        segments = [Segment.of("patch_embed", PatchEmbed, grid=grid, **stem)]
        segments += [Segment.of("norm_pre", LayerNorm, **norm)] if pre_norm else []
        rates = drop_path_rates(len(arch.blocks), drop_path_rate)
        for index, (block, rate) in enumerate(zip(arch.blocks, rates, strict=True)):
            sizes = {"num_heads": block.num_heads, "head_dim": head_dim, "hidden_dim": block.hidden_dim}
            if block.num_heads or block.hidden_dim:
                segments.append(Segment.of(f"blocks.{index}", ViTBlock, rate, embed_dim=dim, **sizes, **common))
        segments.append(Segment.of("norm", LayerNorm, **norm) if final_norm else Segment.of("norm", NoNorm))
        head: dict[str, Any] = {"pool_width": pool_width, "pool_heads": pool_heads, "pool_hidden": pool_hidden}
        head |= {"embed_dim": dim, "num_classes": num_classes, "tokens": tokens, "global_pool": global_pool}
        head |= {"prefix_tokens": prefix, "fc_norm": fc_norm, "norm_eps": norm_eps, "activation": activation}
        return [*segments, Segment.of("head", ViTHead, **head)]

    @classmethod
    def sharing(
        cls,
        *,
        activation: str = "gelu",
        class_token: bool = True,
        reg_tokens: int = 0,
        no_embed_class: bool = False,
        **options: Any,
    ) -> SharingRules:
        q_k_v, halves = grouped_prefix(3), grouped_prefix(2)
        positions = resampled_positions(0 if no_embed_class else class_token + reg_tokens)
        gated = {"mlp.fc1.weight": halves, "mlp.fc1.bias": halves} if activation == "swiglu" else {}
        return {"qkv.weight": q_k_v, "qkv.bias": q_k_v, "pos_embed": positions, **gated}

    @classmethod
    def optional_dimensions(cls, *, img_size: int | tuple[int, int] = 224, **options: Any) -> dict[str, Choice]:
        """The size to which images are resized inside the net: 'timm:NAME[img_size=160,192,224]'."""
        rows, columns = to_2tuple(img_size)
        return {"img_size": Choice(rows)} if rows == columns else {}

    def as_map(self, block: str, x: Tensor, output_fmt: str) -> Tensor:
        patches = x[:, self.options["class_token"] + self.options["reg_tokens"] :]
        grid = grid_of(self.arch, self.options["img_size"], self.options["patch_size"])
        return patches if output_fmt == "NLC" else patches.transpose(1, 2).unflatten(2, grid)

    @classmethod
    def space_of(cls, model: Any) -> tuple[Struct, dict[str, Any]] | None:
        from timm.models.vision_transformer import VisionTransformer

        if type(model) is not VisionTransformer:
            return None
        check_plain(model)
        block = model.blocks[0]
        hidden = block.mlp.fc2.in_features
        root = declare_cuts(model.embed_dim, block.attn.num_heads, hidden, len(model.blocks))
        return root, timm_options(model)

    def cuts(self) -> tuple[str, Struct]:
        """Blocks keep up to as much as the largest of them has."""
        blocks = self.arch.blocks
        heads, neurons = max(block.num_heads for block in blocks), max(block.hidden_dim for block in blocks)
        return "vit-cuts", declare_cuts(self.arch.embed_dim, heads, neurons, len(blocks))

    @classmethod
    def from_timm(cls, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The weights of a timm ViT under our names."""
        return {rename(name, NAMES): weight for name, weight in state.items()}

    def to_timm(self) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
        """Arguments with which timm's vit_base_patch16_224 is this net, and its weights for it.

        None where timm's ViT cannot be it: its blocks are all alike, and their heads are as wide as the embedding.
        """
        blocks = [block for block in self.arch.blocks if block.num_heads or block.hidden_dim]
        alike = len(set(blocks)) == 1 and "img_size" not in self.arch
        if not alike or not is_plain(self.arch.embed_dim, blocks[0], self.options):
            return None
        names = [name for name in self.segment_names if name.startswith("blocks.")]
        numbers = {f"{name}.": f"blocks.{number}." for number, name in enumerate(names)}
        state = {rename(renumber(name, numbers), TIMM_NAMES): weight for name, weight in self.state_dict().items()}
        return timm_arguments(self.arch.embed_dim, blocks[0], len(blocks), self.options), state


def grid_of(arch: Arch, img_size: int | tuple[int, int], patch_size: int) -> tuple[int, int]:
    """Rows and columns of patches: of the images, or of the size that an arch resizes them to."""
    size = arch.get("img_size", img_size)
    if max(to_2tuple(size)) > max(to_2tuple(img_size)):
        raise UserError(f"the space resizes images to {size} px, but they have {img_size}; choose no larger size")
    return patch_grid(size, patch_size)


def declare(embed_dim: int, num_heads: Sequence[int], hidden_dim: Sequence[int], depth: int) -> Struct:
    """The declaration of a space of ViTs: heads and neurons of every block."""
    block = Struct(num_heads=Choice(*num_heads), hidden_dim=Choice(*hidden_dim))
    return Struct(embed_dim=Choice(embed_dim), blocks=Repeat(block, depth=Choice(depth)))


def declare_cuts(embed_dim: int, num_heads: int, hidden_dim: int, depth: int) -> Struct:
    """The space of what can be cut out of a ViT of this width, whose blocks have these heads and neurons."""
    return declare(embed_dim, range(num_heads + 1), neuron_steps(hidden_dim), depth)


def neuron_steps(hidden_dim: int) -> list[int]:
    """Numbers of neurons from 0 to all, in about eight steps that are multiples of 64 (of 8 in a narrow net).

    >>> neuron_steps(768), neuron_steps(96)
    ([0, 128, 256, 384, 512, 640, 768], [0, 16, 32, 48, 64, 80, 96])
    """
    unit = 64 if hidden_dim >= 512 else 8
    step = -(-hidden_dim // (8 * unit)) * unit
    return [*range(0, hidden_dim, step), hidden_dim]


MICRO = {"head_dim": 16, "img_size": 32, "patch_size": 4, "num_classes": 10}

register_space(
    Space(
        "vit-micro",
        ViT,
        declare(64, range(5), (64, 128, 192, 256), 6),
        {**MICRO, "global_pool": "avg", "class_token": False},
        {},
        "ViTs whose blocks differ in heads and neurons, for small images and machines: 0.06 to 0.3 M parameters",
    )
)
register_space(
    Space(
        "vit-cuts",
        ViT,
        declare_cuts(64, 4, 256, 6),
        MICRO,
        {},
        "what can be cut out of a small ViT, whole branches and blocks too: 0.01 to 0.3 M parameters",
    )
)


# timm's ViTs: their weights and options.

NAMES = (
    (r"^(cls_token|reg_token|pos_embed)$", r"patch_embed.\1"),
    (r"^attn_pool\.", "head.attn_pool."),
    (r"^fc_norm\.", "head.fc_norm."),
    (r"^head\.(weight|bias)$", r"head.fc.\1"),
)


TIMM_NAMES = (
    (r"^patch_embed\.(cls_token|reg_token|pos_embed)$", r"\1"),
    (r"^head\.fc_norm\.", "fc_norm."),
    (r"^head\.fc\.", "head."),
)
"""Our names as timm has them."""
ARGUMENTS = (
    *("img_size", "patch_size", "in_chans", "num_classes", "global_pool", "class_token", "reg_tokens"),
    *("no_embed_class", "pre_norm", "fc_norm", "qkv_bias", "qk_norm"),
)
"""Options that timm has under the same names."""


def renumber(name: str, numbers: Mapping[str, str]) -> str:
    start = next((before for before in numbers if name.startswith(before)), "")
    return numbers.get(start, "") + name.removeprefix(start)


def is_plain(embed_dim: int, block: Any, options: Mapping[str, Any]) -> bool:
    """Whether timm's ViT can be built from such blocks by plain arguments."""
    full = block.num_heads * options["head_dim"] == embed_dim and block.hidden_dim > 0
    usual = options["norm_eps"] == 1e-6 and options["activation"] != "swiglu" and options["global_pool"] != "map"
    return full and usual and not (options["final_norm"] and options["fc_norm"])


def timm_arguments(embed_dim: int, block: Any, depth: int, options: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `timm.create_model` for a net whose blocks are all alike."""
    sizes = {"embed_dim": embed_dim, "depth": depth, "num_heads": block.num_heads}
    sizes["mlp_ratio"] = (block.hidden_dim + 0.5) / embed_dim  # timm rounds down
    rest: dict[str, Any] = {"init_values": 1e-5} if options["layer_scale"] else {}
    rest["final_norm"] = options["final_norm"] or options["fc_norm"]  # timm moves it behind the pooling
    return {**sizes, **{name: options[name] for name in ARGUMENTS}, **rest, "act_layer": options["activation"]}


def timm_options(model: Any) -> dict[str, Any]:
    """The options with which our ViT computes what timm's does."""
    block, pool = model.blocks[0], getattr(model, "attn_pool", None)
    rows, columns = model.patch_embed.grid_size  # timm reads no further where patches leave a rest, as of 384 px by 14
    patch = model.patch_embed.patch_size[0]
    options: dict[str, Any] = {
        "img_size": as_number((rows * patch, columns * patch)),
        "patch_size": patch,
        "in_chans": model.patch_embed.proj.in_channels,
        "num_classes": model.num_classes,
        "global_pool": model.global_pool,
        "head_dim": block.attn.head_dim,
        "class_token": model.cls_token is not None,
        "reg_tokens": model.num_reg_tokens,
        "no_embed_class": bool(model.no_embed_class),
        "pre_norm": is_layer(model, "norm_pre"),
        "final_norm": is_layer(model, "norm"),
        "fc_norm": is_layer(model, "fc_norm"),
        "qkv_bias": block.attn.qkv.bias is not None,
        "qk_norm": is_layer(block.attn, "q_norm"),
        "layer_scale": is_layer(block, "ls1"),
        "activation": activation_name(block.mlp),
        "norm_eps": block.norm1.eps,
    }
    if pool is not None:
        hidden = pool.mlp.fc2.in_features
        options |= {"pool_width": pool.proj.in_features, "pool_heads": pool.num_heads, "pool_hidden": hidden}
    return options


def as_number(size: tuple[int, int]) -> int | tuple[int, int]:
    return size[0] if size[0] == size[1] else to_2tuple(size)


def check_plain(model: Any) -> None:
    """Refuses a ViT of timm with a part that ours does not have."""
    for what, present in unknown_parts(model):
        if present:
            raise UserError(f"this ViT of timm has {what}, which ours lacks; {SUPPORTED}")


def unknown_parts(model: Any) -> Iterator[tuple[str, bool]]:
    """Parts that our ViT lacks, each with whether the model has it; blocks first, since other checks look into them."""
    block, pool = model.blocks[0], getattr(model, "attn_pool", None)
    yield f"blocks of the type {type(block).__name__}", type(block).__name__ != "Block"
    yield f"attention of the type {type(block.attn).__name__}", type(block.attn).__name__ != "Attention"
    yield "a norm inside its attention", is_layer(block.attn, "norm")
    yield "a gate inside its attention", getattr(block.attn, "gate", None) is not None
    yield "no bias behind its attention", block.attn.proj.bias is None
    yield "a norm inside its MLP", is_layer(block.mlp, "norm")
    yield f"norms of the type {type(block.norm1).__name__}", not isinstance(block.norm1, nn.LayerNorm)
    yield "no learned positions", model.pos_embed is None
    yield f"the pooling {model.global_pool!r}", model.global_pool not in POOLS or model.pool_include_prefix
    yield f"a stem of the type {type(model.patch_embed).__name__}", type(model.patch_embed).__name__ != "PatchEmbed"
    yield "patches with a norm", is_layer(model.patch_embed, "norm")
    yield "rectangular patches", len(set(model.patch_embed.patch_size)) > 1
    if pool is not None:
        positions = pool.pos_embed is not None or pool.pool != "token"
        yield "an attention pool with positions or norms", positions or is_layer(pool, "q_norm")


def is_layer(module: Any, name: str) -> bool:
    """Whether a module has a part of this name that is no identity."""
    return not isinstance(getattr(module, name, nn.Identity()), nn.Identity)


def activation_name(mlp: Any) -> str:
    """Which of our activations an MLP of timm has: the one with the same values."""
    x = torch.linspace(-3, 3, 31)
    if type(mlp).__name__ == "GluMlp" and not mlp.gate_last and torch.allclose(mlp.act(x), nn.functional.silu(x)):
        return "swiglu"
    if type(mlp).__name__ == "Mlp":
        from nasformer.layers.blocks import Mlp

        for name in ACTIVATIONS[:3]:
            if torch.allclose(mlp.act(x), Mlp(1, 1, name).act(x), atol=1e-6):
                return name
    raise UserError(f"this ViT of timm has an MLP of the type {type(mlp).__name__}, which ours lacks; {SUPPORTED}")
