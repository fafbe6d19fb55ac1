from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from nasformer.export.safetensors_reader import read_safetensors


def test_it_reads_what_safetensors_writes(tmp_path: Path) -> None:
    tensors = {
        "a": torch.randn(3, 4),
        "half": torch.randn(5).bfloat16(),
        "count": torch.tensor(7),
        "mask": torch.tensor([True, False]),
        "none": torch.empty(0, 3),
        "odd": torch.arange(3, dtype=torch.uint8),
        "double": torch.randn(2, 1, dtype=torch.float64),
    }
    save_file(tensors, tmp_path / "x.safetensors", metadata={"made": "here"})
    found = read_safetensors(tmp_path / "x.safetensors")
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name
    found["a"].add_(1)  # they are tensors of one's own
    assert torch.equal(read_safetensors(tmp_path / "x.safetensors")["a"], tensors["a"])


def file_of(header: Any, numbers: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + numbers


def entry(first: Any = 0, last: Any = 8, shape: Any = (2,), dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [first, last]}


SOUND = file_of({"a": entry(), "b": entry(8, 12, [])}, bytes(12))
DAMAGED = {
    "empty": b"",
    "short": b"\x01\x00",
    "cut": SOUND[:-1],
    "longer": SOUND + b"\x00",
    "cut header": SOUND[:20],
    "huge header": file_of({"a": entry()}, bytes(8), length=2**63),
    "no JSON": file_of(b"{]", bytes(8)),
    "no text": file_of(b"\xff\xfe", bytes(8)),
    "list": file_of([1]),
    "entry is no object": file_of({"a": 1}),
    "no offsets": file_of({"a": {"dtype": "F32", "shape": [2]}}, bytes(8)),
    "unknown type": file_of({"a": entry(dtype="X9")}, bytes(8)),
    "shape too large": file_of({"a": entry(shape=[3])}, bytes(8)),
    "negative shape": file_of({"a": entry(shape=[-2, -1])}, bytes(8)),
    "fraction": file_of({"a": entry(shape=[2.0])}, bytes(8)),
    "shape of words": file_of({"a": entry(shape=["2"])}, bytes(8)),
    "offsets of words": file_of({"a": entry("0", "8")}, bytes(8)),
    "hole": file_of({"a": entry(), "b": entry(12, 20)}, bytes(20)),
    "overlap": file_of({"a": entry(), "b": entry(4, 12)}, bytes(12)),
    "before the start": file_of({"a": entry(-8, 0)}, bytes(8)),
    "beyond the end": file_of({"a": entry(0, 16, [4])}, bytes(8)),
}


def test_a_sound_file_made_by_hand(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(SOUND)
    assert {name: list(tensor.shape) for name, tensor in read_safetensors(tmp_path / "x").items()} == {
        "a": [2],
        "b": [],
    }


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_file_is_refused(damage: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(DAMAGED[damage])
    with pytest.raises(ValueError, match="x is no sound safetensors file"):
        read_safetensors(tmp_path / "x")
