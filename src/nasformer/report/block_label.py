"""What the box of a block says: its operator, and what was decided in it, in few letters."""

from __future__ import annotations

from collections import Counter

from nasformer.report.anatomy import Block, Scalar

WORDS = {
    "expansion": "×{}",
    "mlp_ratio": "MLP ×{}",
    "num_heads": "heads {}",
    "qkv_dim": "q-k-v {}",
    "query_rate": "q ×{}",
    "value_rate": "v ×{}",
}


def block_label(block: Block) -> list[str]:
    """The operator and each field.

    >>> block_label(Block("local", {"expansion": 0.25, "window": 7, "query_rate": 0.5, "num_heads": 8}))
    ['local', '×1/4', 'window 7', 'q ×1/2', 'heads 8']
    >>> block_label(Block("encoder ibn", {"qkv_dim": 64, "ffn.kernel": 5, "ffn.expansion": 4}))
    ['encoder + ibn', 'q-k-v 64', 'kernel 5', '×4']
    """
    last = Counter(name.rpartition(".")[2] for name in block.fields)
    named = {name: name.rpartition(".")[2] for name in block.fields}
    short = {name: end if last[end] == 1 else name for name, end in named.items()}
    fields = [WORDS.get(short[name], short[name] + " {}").format(in_short(v)) for name, v in block.fields.items()]
    return [" + ".join(block.kind.split()), *fields]


def in_short(value: Scalar) -> str:
    """A value in few letters; what is one half, one third ... is said to be so.

    >>> in_short(0.125), in_short(1.0), in_short(3.5), in_short("gelu")
    ('1/8', '1', '3.5', 'gelu')
    """
    if isinstance(value, float) and 0 < value < 1 and abs(1 / value - round(1 / value)) < 1e-9:
        return f"1/{round(1 / value)}"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
