"""PiT: rethinking spatial dimensions of vision transformers (Heo et al., ICCV 2021, arXiv 2103.16302).

A vision transformer in three stages, as searched by TF-TAS (Zhou et al., CVPR 2022). Between stages a depthwise
convolution halves the map and widens it. The width of a stage is base_dim * heads, so heads are base_dim wide. Base
dimension and MLP ratio are chosen for the whole net, depth and heads for each stage. Patches overlap and have absolute
positions; the class token, which the head reads, has none.

Where paper and published code disagree, or are silent, our choices:
- Size: each space has 4 * 27 * 10 * 4 = 4,320 archs, since pooling is depthwise and the heads of a stage must be a
  multiple of those before: 10 of 27 triples. TF-TAS's supplement speaks of 3.4e6 archs in all. The closest reading
  is base dimension and MLP ratio by stage (3 * 4**3 * 27 * 10 * 4**3 = 3.3e6), but its text says that both are the same
  in every stage, and so are they in its nets.
- Presets: TF-TAS's files where its supplement differs. There the net S has other depths and ratio
  (``tf-tas-pit-s-supplement``), and XS lacks one of its three head numbers.
- Initial weights: torch's default, so they depend on the width, as in timm's PiT; scores of untrained nets depend on
  it, and with it DSS ranks as it is reported to. TF-TAS's code has 0.02 for linear layers and N(0, 1) for convolutions,
  which drowns the positions (0.02).
- Stochastic depth grows linearly to the last block of the net at hand, as in timm; TF-TAS's code stops one step short.
- Sharing (the papers have no supernet): by prefix; q, k and v each. A pooling filter belongs to its output channel, as
  do all the weights of the next stage that read this channel; its input channel depends on the ratio of heads: channel
  c comes from c // ratio. Likewise a row of q, k or v keeps its index, and the base dimension decides which head it is
  in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from nasformer.errors import UserError
from nasformer.layers.basic import LayerNorm, TokenHead
from nasformer.layers.blocks import TransformerBlock
from nasformer.layers.stem import Grid, OverlapPatchEmbed, TokenPool, half_grid
from nasformer.models.base import Segment, TokenBackbone, check_option, drop_path_rates, patch_grid, rename
from nasformer.models.registry import register_space
from nasformer.models.sharing import SharingRules, grouped_prefix
from nasformer.models.space import Space
from nasformer.space.arch import Arch
from nasformer.space.nodes import Choice, Struct
from nasformer.space.rules import Rule

STAGES = ("stage1", "stage2", "stage3")
NORM_EPS = 1e-6


class PiT(TokenBackbone):
    """The static PiT of an arch.

    >>> model = PiT(PRESETS["pit-ti"], img_size=32, patch_size=4, stride=4, num_classes=10)
    >>> model(torch.randn(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    >>> [(info["num_chs"], info["reduction"]) for info in model.feature_info]
    [(64, 4), (128, 8), (256, 16)]
    """

    family = "pit"
    patch_embed: OverlapPatchEmbed

    @classmethod
    def plan(
        cls,
        arch: Arch,
        *,
        img_size: int | tuple[int, int] = 224,
        patch_size: int = 16,
        stride: int = 8,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: Literal["token", "avg"] = "token",
        drop_path_rate: float = 0.1,
    ) -> list[Segment]:
        """Patch embedding, three stages of blocks with pooling between them, norm and head.

        Args:
            stride: Distance of neighbouring patches; they overlap where it is less than patch_size.
            drop_path_rate: Stochastic-depth rate of the last block; it grows linearly from 0.
        """
        check_option("global_pool", global_pool, ("token", "avg"))
        grid, dims = patch_grid(img_size, patch_size, stride), widths(arch)
        stem = {"patch_size": patch_size, "stride": stride, "in_chans": in_chans, "embed_dim": dims[0]}
        segments = [Segment.of("patch_embed", OverlapPatchEmbed, grid=grid, **stem)]
        rates = drop_path_rates(sum(arch.depth.values()), drop_path_rate)
        for stage, dim in enumerate(dims):
            if stage:
                pool = f"stages.{stage}.pool"
                segments.append(Segment.of(pool, TokenPool, grid=grid, in_dim=dims[stage - 1], out_dim=dim))
                grid = half_grid(grid)
            block = block_options(arch, STAGES[stage], grid) | {"stochastic_depth": drop_path_rate > 0}
            for index in range(arch.depth[STAGES[stage]]):
                segments.append(Segment.of(f"stages.{stage}.blocks.{index}", TransformerBlock, next(rates), **block))
        norm = Segment.of("norm", LayerNorm, embed_dim=dims[-1], norm_eps=NORM_EPS)
        head = Segment.of("head", TokenHead, embed_dim=dims[-1], num_classes=num_classes, global_pool=global_pool)
        return [*segments, norm, head]

    @classmethod
    def sharing(cls, **options: Any) -> SharingRules:
        return {"qkv.weight": grouped_prefix(3), "qkv.bias": grouped_prefix(3)}

    @classmethod
    def from_columns(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Fields from the columns ``"depth": [2, 6, 4]`` and ``"num_heads": [2, 4, 8]`` of the three stages."""
        listed = {name: values[name] for name in ("depth", "num_heads") if isinstance(values.get(name), list | tuple)}
        return {**values, **{name: by_stage(name, entries) for name, entries in listed.items()}}

    @classmethod
    def space_of(cls, model: Any) -> tuple[Struct, dict[str, Any]] | None:
        """The cuts of a timm PiT: 1 to all blocks of each stage, and MLP ratios up to its own."""
        from timm.models.pit import PoolingVisionTransformer

        if type(model) is not PoolingVisionTransformer or len(set(model.base_dims)) > 1:
            return None
        blocks = [stage.blocks for stage in model.transformers]
        ratio = blocks[0][0].mlp.fc1.out_features // blocks[0][0].norm1.normalized_shape[0]
        root = Struct(
            base_dim=Choice(model.base_dims[0]),
            mlp_ratio=Choice(*range(1, ratio + 1)),
            depth=Struct(**{name: Choice(*range(1, len(b) + 1)) for name, b in zip(STAGES, blocks, strict=True)}),
            num_heads=Struct(**{name: Choice(heads) for name, heads in zip(STAGES, model.heads, strict=True)}),
        )
        stem = model.patch_embed
        options = {"patch_size": stem.conv.kernel_size[0], "stride": stem.conv.stride[0], "drop_path_rate": 0.0}
        side = (stem.height - 1) * options["stride"] + options["patch_size"]
        return root, options | {
            "img_size": side,
            "in_chans": stem.conv.in_channels,
            "num_classes": model.num_classes,
        }

    @classmethod
    def from_timm(cls, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The weights of a timm PiT under our names; its map of positions becomes a list of tokens."""
        if any(name.startswith("head_dist.") for name in state):
            raise UserError("these are weights of a distilled PiT, which has a second class token; take the plain one")
        return {
            rename(name, NAMES): weight.flatten(2).transpose(1, 2) if name == "pos_embed" else weight
            for name, weight in state.items()
        }

    @property
    def feature_info(self) -> list[dict[str, Any]]:
        return [
            {"num_chs": dim, "reduction": self.options["stride"] * 2**stage, "module": name}
            for stage, (name, dim) in enumerate(zip(self.last_blocks(), widths(self.arch), strict=False))
        ]

    @torch.jit.ignore
    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        stages = [(r"^stages\.(\d+)", None)]
        blocks = [(r"^stages\.(\d+)\.pool", (0,)), (r"^stages\.(\d+)\.blocks\.(\d+)", None)]
        return {"stem": r"^patch_embed", "blocks": [*(stages if coarse else blocks), (r"^norm", (99999,))]}


def widths(arch: Arch) -> list[int]:
    """The embedding width of each stage."""
    return [arch.base_dim * arch.num_heads[stage] for stage in STAGES]


def block_options(arch: Arch, stage: str, grid: Grid) -> dict[str, Any]:
    """The options that all blocks of a stage share."""
    dim = arch.base_dim * arch.num_heads[stage]
    return {
        "embed_dim": dim,
        "num_heads": arch.num_heads[stage],
        "head_dim": arch.base_dim,
        "hidden_dim": int(dim * arch.mlp_ratio),
        "grid": grid,
        "max_distance": None,
        "norm_eps": NORM_EPS,
        "init_std": None,
    }


def by_stage(name: str, entries: Sequence[Any]) -> dict[str, Any]:
    if len(entries) != len(STAGES):
        raise UserError(f"{name} has {len(entries)} entries, expected {len(STAGES)}: one for each stage")
    return dict(zip(STAGES, entries, strict=True))


def each_a_multiple(first: int, second: int, third: int) -> bool:
    return second % first == 0 and third % second == 0


def declare(
    base_dim: tuple[int, ...],
    num_heads: tuple[int, ...],
    depth: tuple[tuple[int, ...], ...] = ((1, 2, 3), (4, 6, 8), (2, 4, 6)),
    mlp_ratio: tuple[float, ...] = (2, 4, 6, 8),
) -> Struct:
    """The declaration of a PiT space: the same choice of heads for every stage, depths for each."""
    rule = Rule(STAGES, each_a_multiple, "each stage's heads are a multiple of the stage before")
    return Struct(
        base_dim=Choice(*base_dim),
        mlp_ratio=Choice(*mlp_ratio),
        depth=Struct(**{stage: Choice(*depths) for stage, depths in zip(STAGES, depth, strict=True)}),
        num_heads=Struct(rule, **{stage: Choice(*num_heads) for stage in STAGES}),
    )


def published(base_dim: int, depth: str, num_heads: str, mlp_ratio: int) -> Arch:
    """An arch from the columns of a paper: depths and heads, one for each stage."""
    columns = {"depth": [int(d) for d in depth.split()], "num_heads": [int(h) for h in num_heads.split()]}
    return Arch.from_dict(PiT.from_columns({"base_dim": base_dim, "mlp_ratio": mlp_ratio, **columns}))


PRESETS = {
    "pit-ti": published(32, "2 6 4", "2 4 8", 4),
    "pit-xs": published(48, "2 6 4", "2 4 8", 4),
    "pit-s": published(48, "2 6 4", "3 6 12", 4),
    "tf-tas-pit-ti": published(40, "2 4 4", "2 4 8", 2),
    "tf-tas-pit-xs": published(56, "1 4 2", "2 8 8", 2),
    "tf-tas-pit-s": published(36, "1 4 4", "3 12 12", 6),
    "tf-tas-pit-s-supplement": published(36, "1 4 2", "3 12 12", 4),
}


def register(name: str, about: str, root: Struct) -> None:
    register_space(Space(name, PiT, root, {}, PRESETS, about))


register("pit-tiny", "TF-TAS's PiT space Ti: about 0.14 to 36 M parameters", declare((16, 24, 32, 40), (2, 4, 8)))
register("pit-xs", "TF-TAS's PiT space XS: about 0.6 to 91 M parameters", declare((40, 48, 56, 64), (2, 4, 8)))
register("pit-small", "TF-TAS's PiT space S: about 1 to 258 M parameters", declare((36, 48, 60, 72), (3, 6, 12)))


# timm's PiT: its pretrained weights serve as ours.

NAMES = (
    (r"^patch_embed\.conv\.", "patch_embed.proj."),
    (r"^(cls_token|pos_embed)$", r"patch_embed.\1"),
    (r"^transformers\.", "stages."),
    (r"^head\.", "head.fc."),
)
