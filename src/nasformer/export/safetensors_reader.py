"""A reader of safetensors files that needs nothing but torch; exported models carry it with them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
from torch import Tensor

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


def read_safetensors(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a file: 8 bytes with the length of a JSON header, the header, and the numbers one after another.

    A file that is cut, that has bytes of no tensor or tensors that share bytes is refused with a ValueError.
    """
    content = bytearray(Path(path).read_bytes())
    start = 8 + int.from_bytes(content[:8], "little")
    try:
        header = json.loads(content[8:start].decode("utf-8"))
        header.pop("__metadata__", None)
        entries = [(*entry["data_offsets"], name, entry["dtype"], entry["shape"]) for name, entry in header.items()]
        tensors, end = {}, 0
        for first, last, name, kind, shape in sorted(entries):
            dtype, count = DTYPES[kind], math.prod(shape)
            if first != end or last - first != count * dtype.itemsize or min(shape, default=0) < 0:
                raise ValueError(f"{name} is not where it should be")
            part = content[start + first : start + last]
            tensors[name] = torch.frombuffer(part, dtype=dtype, count=count) if count else torch.empty(0, dtype=dtype)
            tensors[name], end = tensors[name].reshape(shape), last
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} is no sound safetensors file: {error}") from None
    if start + end != len(content):
        raise ValueError(f"{path} is no sound safetensors file: {len(content)} bytes instead of {start + end}")
    return tensors
