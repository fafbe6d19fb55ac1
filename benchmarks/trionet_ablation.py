"""The curves of a TrioNet supernet with and without each of its parts, side by side, as in the paper's Figures 5 and 6.

python benchmarks/trionet_ablation.py runs/ablation --out docs/images/trionet-ablation.png

The folder holds watched runs named PART-SEED: full-0, full-1, nohs-0, nomhs-0, nosand-0 ... How they were trained is in
docs/results.md.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path

from PIL import Image

from nasformer.report.architectures import operator_panels
from nasformer.report.style import png

PARTS = {"nohs": "Hierarchical Sampling", "nomhs": "Multi-Head Sharing", "nosand": "Sandwich rule"}
COLOURS = 64  # of the picture: as few as look the same


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--out", type=Path, default=Path("trionet-ablation.png"))
    asked = parser.parse_args()
    full = logs(asked.runs, "full")
    figure = operator_panels({t: {"with": full, "without": logs(asked.runs, p)} for p, t in PARTS.items()})
    if figure is None:
        parser.error(f"no run in {asked.runs} was watched; train them with --train.watch-epochs 1")
    picture = Image.open(io.BytesIO(png(figure))).convert("RGB")
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(asked.out, optimize=True)


def logs(runs: Path, part: str) -> list[Path]:
    return sorted(runs.glob(f"{part}-*/train/log.jsonl"))


if __name__ == "__main__":
    main()
