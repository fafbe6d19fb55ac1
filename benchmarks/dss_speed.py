"""Time per candidate of the DSS indicator, many archs side by side, against one by one as its paper describes it.

python benchmarks/dss_speed.py --device cuda --count 2048 --baseline-count 20 --out dss.json
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import nn

import nasformer
from nasformer.proxies.dss import dss_many
from nasformer.proxies.parts import is_attention, is_mlp, noise_probe
from nasformer.proxies.untrained import SideBySide, UntrainedLayers
from record import benchmark_parser, save_record


def literal_dss(model: nn.Module, ones: torch.Tensor, dtype: torch.dtype = torch.float32) -> float:
    """The formula as printed: a backward pass, then a singular value decomposition for each norm."""
    model(ones).sum().backward()
    total = 0.0
    for name, module in model.named_modules():
        if is_attention(name, module):
            matrices = (module.weight.grad, module.weight.detach())
            norms = [torch.linalg.matrix_norm(matrix.to(dtype), "nuc") for matrix in matrices]
            total += (norms[0] * norms[1]).item()
        elif is_mlp(name, module):
            total += (module.weight.grad * module.weight.detach()).abs().sum().item()
    return total


def seconds(work: Callable[[], object], device: str) -> float:
    start = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--space", default="autoformer-tiny")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--count", type=int, default=16, help="candidates, side by side")
    parser.add_argument("--baseline-count", type=int, default=4, help="candidates, one by one")
    args = parser.parse_args()
    space = nasformer.get_space(args.space)
    fresh = UntrainedLayers(space, device=args.device)
    probe = noise_probe((3, 224, 224), 1000, batch_size=1, device=args.device)
    archs = [space.sample(seed) for seed in range(args.count)]
    lockstep, fast, literal = SideBySide(fresh), list[float](), list[float]()

    first = seconds(lambda: dss_many(lockstep, archs[: args.count // 8], probe), args.device)
    many = seconds(lambda: fast.extend(dss_many(lockstep, archs, probe)), args.device) / args.count

    def built(arch: nasformer.Arch) -> nn.Module:
        model = space.build(arch).to(args.device).eval()
        model.load_state_dict(fresh.model(arch).state_dict())  # the same weights, to compare the scores
        return model

    def one_by_one() -> None:
        for arch in archs[: args.baseline_count]:
            literal.append(literal_dss(built(arch), probe.ones()))

    baseline = seconds(one_by_one, args.device) / args.baseline_count
    exact = [literal_dss(built(arch), probe.ones(), torch.float64) for arch in archs[: args.baseline_count]]
    error, literal_error = (
        max(abs(a / b - 1) for a, b in zip(found, exact, strict=False)) for found in (fast, literal)
    )
    results = {
        "milliseconds_per_candidate": 1000 * many,
        "literal_milliseconds_per_candidate": 1000 * baseline,
        "speedup": baseline / many,
        "first_call_seconds": first,
        "largest_relative_error": error,
        "literal_largest_relative_error": literal_error,
    }
    print("  ".join(f"{name} {value:,.4g}" for name, value in results.items()))
    save_record("dss_speed", vars(args), results, args.out)


if __name__ == "__main__":
    main()
