"""Head for questions about images: a small text transformer whose words attend to the last maps of a backbone."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from nasformer.layers.basic import Cost, MapNorm, linear_cost, norm_cost
from nasformer.layers.segmentation import as_map
from nasformer.layers.stem import Grid

HEAD_DIM = 32
MLP_RATIO = 4
DROPOUT = 0.1
PADDING = 0
"""The index after the last word of a question."""
UNKNOWN = 1
"""The index of words that are not in the vocabulary."""


def split_words(text: str) -> list[str]:
    """The words of a question, in lower case.

    >>> split_words("What's left of the 2 chairs?")
    ["what's", 'left', 'of', 'the', '2', 'chairs']
    """
    return re.findall(r"[^\W_]+(?:'[^\W\d_]+)?", text.lower())


def encode(text: str, words: Mapping[str, int], length: int) -> Tensor:
    """The indices of the words of a question, padded to a length.

    >>> encode("is the sky blue?", {"is": 2, "blue": 3}, 5).tolist()
    [2, 1, 1, 3, 0]
    """
    numbers = [words.get(word, UNKNOWN) for word in split_words(text)][:length]
    return torch.tensor(numbers + [PADDING] * (length - len(numbers)))


def word_numbers(words: Sequence[str]) -> dict[str, int]:
    """The index of each word of a vocabulary."""
    return {word: number for number, word in enumerate(words, UNKNOWN + 1)}


class VQAHead(nn.Module):
    """Logits of answers from the last maps of a backbone and the words of a question.

    Each block lets the words attend to each other and then to the positions of all maps, whose rows and columns are two
    more channels. An answer token before the words gathers what is classified. Without words there is no question.

    Args:
        channels, grids: Of the maps, the finest first, which may come as tokens with others before them.
        num_classes: Answers.
        dim: Width of the transformer.
        vocab_size: Words, PADDING and UNKNOWN included.
        text_dim: Features of a word, where words come as features (those of PADDING are zeros); 0: they are indices.
    """

    def __init__(
        self,
        channels: tuple[int, ...],
        grids: tuple[Grid, ...],
        img_size: Grid,
        num_classes: int,
        dim: int = 256,
        depth: int = 2,
        vocab_size: int = 2,
        max_words: int = 20,
        text_dim: int = 0,
    ) -> None:
        super().__init__()
        self.grids, self.max_words, self.dim, self.embed_dim = grids, max_words, dim, channels[-1]
        self.norms = nn.ModuleList(MapNorm(width) for width in channels)
        # The coordinates come first, so that a narrower backbone uses the first weights of a wider one's.
        self.projs = nn.ModuleList(nn.Conv2d(2 + width, dim, 1) for width in channels)
        self.text_dim = text_dim
        self.words = nn.Linear(text_dim, dim) if text_dim else nn.Embedding(vocab_size, dim, padding_idx=PADDING)
        self.positions = nn.Parameter(torch.empty(1, max_words + 1, dim))
        self.answer = nn.Parameter(torch.empty(1, 1, dim))
        self.blocks = nn.ModuleList(text_block(dim) for _ in range(depth))
        self.last_norm = nn.LayerNorm(dim)
        # As large as what the blocks add: words that begin small all look alike behind the first block.
        for weight in (self.positions, self.answer):
            nn.init.normal_(weight)
        nn.init.normal_(self.words.weight, std=(text_dim or 1) ** -0.5)
        self.reset(num_classes)

    def reset(self, num_classes: int, global_pool: str | None = None) -> None:
        """Makes a fresh classifier of answers, on the device of the old weights."""
        self.fc = nn.Linear(self.dim, num_classes, device=self.positions.device)
        nn.init.trunc_normal_(self.fc.weight, std=0.02)
        # One answer of all is right: from even chances, hundreds of steps would only teach that the others are not.
        nn.init.constant_(self.fc.bias, -math.log(max(1, num_classes - 1)))

    def forward(self, inputs: list[Tensor]) -> Tensor:
        maps = [as_map(x, grid) for x, grid in zip(inputs, self.grids, strict=False)]
        image = torch.cat([self.tokens(number, x) for number, x in enumerate(maps)], 1)
        words = inputs[-1] if len(inputs) > len(maps) else self.no_words(image)
        x = torch.cat([self.answer.expand(words.shape[0], -1, -1), self.words(words)], 1) + self.positions
        padding = words == PADDING
        missing = nn.functional.pad(padding.all(-1) if self.text_dim else padding, (1, 0), value=False)
        for block in self.blocks:
            x = block(x, image, tgt_key_padding_mask=missing)
        return self.fc(self.last_norm(x[:, 0]))

    def no_words(self, image: Tensor) -> Tensor:
        """A question without words about each image."""
        if self.text_dim:
            return image.new_zeros(image.shape[0], self.max_words, self.text_dim)
        return torch.zeros(image.shape[0], self.max_words, dtype=torch.int64, device=image.device)

    def tokens(self, number: int, x: Tensor) -> Tensor:
        """The positions of a map with their coordinates, [batch, positions, dim]."""
        x = self.norms[number](x)
        return self.projs[number](torch.cat([coordinates(x), x], 1)).flatten(2).transpose(1, 2)

    @staticmethod
    def cost(
        channels: tuple[int, ...],
        grids: tuple[Grid, ...],
        img_size: Grid,
        num_classes: int,
        dim: int = 256,
        depth: int = 2,
        vocab_size: int = 2,
        max_words: int = 20,
        text_dim: int = 0,
    ) -> Cost:
        sizes, tokens = [rows * columns for rows, columns in grids], max_words + 1
        total, positions = Cost((tokens + 1) * dim), sum(sizes)
        total += linear_cost(max_words, text_dim, dim) if text_dim else Cost(vocab_size * dim)
        for width, size in zip(channels, sizes, strict=True):
            total += norm_cost(width) + linear_cost(size, 2 + width, dim)
        within = linear_cost(tokens, dim, 3 * dim) + linear_cost(tokens, dim, dim) + Cost(macs=2 * tokens**2 * dim)
        across = linear_cost(tokens, dim, dim) * 2 + linear_cost(positions, dim, 2 * dim)
        across += Cost(macs=2 * tokens * positions * dim)
        mlp = linear_cost(tokens, dim, MLP_RATIO * dim) + linear_cost(tokens, MLP_RATIO * dim, dim)
        total += (within + across + mlp + norm_cost(dim) * 3) * depth
        return total + norm_cost(dim) + linear_cost(1, dim, num_classes)


def text_block(dim: int) -> nn.TransformerDecoderLayer:
    """A pre-norm block whose words attend to each other, then to the image."""
    heads = max(1, dim // HEAD_DIM)
    return nn.TransformerDecoderLayer(
        dim, heads, MLP_RATIO * dim, DROPOUT, activation="gelu", batch_first=True, norm_first=True
    )


def coordinates(x: Tensor) -> Tensor:
    """Rows and columns of a map's positions from -1 to 1, [batch, 2, rows, columns]."""
    rows, columns = (torch.linspace(-1, 1, side, device=x.device, dtype=x.dtype) for side in x.shape[2:])
    return torch.stack(torch.meshgrid(rows, columns, indexing="ij")).expand(x.shape[0], -1, -1, -1)
