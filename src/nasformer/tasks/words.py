"""Questions as numbers: the words of a vocabulary, or the features that a pretrained text encoder has of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from nasformer.errors import UserError
from nasformer.layers.vqa import PADDING

UNKNOWN = 1
"""The number of words that are not in the vocabulary; PADDING is before it."""


def split_words(text: str) -> list[str]:
    """
    >>> split_words("What's left of the 2 chairs?")
    ["what's", 'left', 'of', 'the', '2', 'chairs']
    """
    return re.findall(r"[a-z0-9]+(?:'[a-z]+)?", text.lower())


def encode(text: str, words: Mapping[str, int], length: int) -> Tensor:
    """The numbers of the words of a question, with PADDING behind them.

    >>> encode("is the sky blue?", {"is": 2, "blue": 3}, 5).tolist()
    [2, 1, 1, 3, 0]
    """
    found = [words.get(word, UNKNOWN) for word in split_words(text)][:length]
    return torch.tensor(found + [PADDING] * (length - len(found)))


def word_numbers(words: Sequence[str]) -> dict[str, int]:
    return {word: number for number, word in enumerate(words, UNKNOWN + 1)}


class TextEncoder:
    """A pretrained text encoder of transformers, whose weights stay as they are.

    So its features of a question are computed once and kept.

    Args:
        source: Its name on the Hugging Face hub, or a folder.
        length: Tokens of a question that are read.
    """

    def __init__(self, source: str, length: int) -> None:
        self.source, self.length, self.known = source, length, dict[str, Tensor]()

    @cached_property
    def parts(self) -> tuple[Any, Any]:
        """Tokenizer and model."""
        try:
            from transformers import AutoModel, AutoTokenizer
        except ImportError:
            raise UserError("--vqa.text needs transformers; install it: pip install 'nasformer[vqa]'") from None
        try:
            tokenizer, model = AutoTokenizer.from_pretrained(self.source), AutoModel.from_pretrained(self.source)
        except Exception as error:  # no such name or folder, no network: transformers raises a dozen kinds
            reason = " ".join(str(error).split())[:200]
            raise UserError(f"cannot load the text encoder {self.source} ({reason}); check its name") from error
        return tokenizer, model.eval().requires_grad_(False)

    @property
    def dim(self) -> int:
        """Features of a token."""
        return int(self.parts[1].config.hidden_size)

    def __call__(self, texts: Sequence[str], device: torch.device) -> Tensor:
        """Features [texts, tokens, dim]; zeros behind the last token of each."""
        new = [text for text in dict.fromkeys(texts) if text not in self.known]
        if new:
            self.known |= dict(zip(new, self.features(new, device).half().cpu(), strict=True))
        return torch.stack([self.known[text] for text in texts]).to(device, torch.float32)

    @torch.no_grad()
    def features(self, texts: Sequence[str], device: torch.device) -> Tensor:
        tokenizer, model = self.parts
        shape = {"padding": "max_length", "truncation": True, "max_length": self.length}
        tokens = tokenizer(list(texts), return_tensors="pt", **shape).to(device)
        found = model.to(device)(input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"])
        return found.last_hidden_state * tokens["attention_mask"][..., None]

    def __getstate__(self) -> dict[str, Any]:
        """Without the weights, which another process loads itself."""
        return {"source": self.source, "length": self.length, "known": {}}
