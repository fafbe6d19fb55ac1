"""How much faster bf16 is than fp32 on a CPU, by net: one thread, fp32 and bf16 in turns, processor time.

python benchmarks/cpu_precision.py --out cpu_precision.json
"""

from __future__ import annotations

import time
from statistics import median

import torch

import nasformer
from nasformer.train.evaluate import autocast
from nasformer.utils.device import computes_in_bf16
from record import benchmark_parser, save_record

NETS = {  # space, image size, batch
    "ViT-Ti, 96 px": ("timm:vit_tiny_patch16_224", 96, 32),
    "ViT-Ti, 224 px": ("timm:vit_tiny_patch16_224", 224, 8),
    "AutoFormer-T, 64 px": ("autoformer-tiny", 64, 32),
    "S3-T, 64 px": ("s3-tiny", 64, 8),
    "TrioNet, 32 px": ("trionet-small", 32, 16),
    "ESFormer-S0, 64 px": ("esformer-s0", 64, 8),
    "autoformer-micro, 32 px": ("autoformer-micro", 32, 64),
}


def train(model: torch.nn.Module, x: torch.Tensor, precision: str) -> None:
    with autocast(x.device, precision):
        loss = model(x).float().logsumexp(1).mean()
    loss.backward()


@torch.no_grad()
def answer(model: torch.nn.Module, x: torch.Tensor, precision: str) -> None:
    with autocast(x.device, precision):
        model(x)


def times_as_fast(model: torch.nn.Module, x: torch.Tensor, training: bool, rounds: int) -> float:
    """Of bf16: the median of the rounds after a first."""
    work, model = train if training else answer, model.train(training)
    ratios = []
    for _ in range(rounds + 1):
        seconds = dict[str, float]()
        for precision in ("fp32", "bf16"):
            start = time.thread_time()
            work(model, x, precision)
            seconds[precision] = time.thread_time() - start
        ratios.append(seconds["fp32"] / seconds["bf16"])
    return median(ratios[1:])


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, dict[str, float]] = {}
    for name, (named, img_size, batch) in NETS.items():
        space = nasformer.get_space(named, img_size=img_size)
        model, x = space.build(space.root.largest()), torch.randn(batch, 3, img_size, img_size)
        kinds = {"training": True, "evaluation": False}
        results[name] = {kind: times_as_fast(model, x, training, args.rounds) for kind, training in kinds.items()}
        print(f"{name:24}", "  ".join(f"{kind} {ratio:.2f}" for kind, ratio in results[name].items()), flush=True)
    save_record("cpu_precision", {**vars(args), "bf16 instructions": computes_in_bf16()}, results, args.out, quiet=True)


if __name__ == "__main__":
    main()
