"""Stochastic depth: its statistics, and when it does nothing."""

import torch

from nasformer.layers.basic import DropPath


def test_keeps_the_mean_and_drops_whole_samples() -> None:
    torch.manual_seed(0)
    x = torch.ones(20_000, 2, 3)
    y = DropPath(0.3).train()(x)
    kept = y.flatten(1)[:, 0] != 0
    assert abs(kept.float().mean() - 0.7) < 0.02
    assert abs(y.mean() - 1) < 0.03
    torch.testing.assert_close(y, kept[:, None, None] * x / 0.7)


def test_rate_zero_and_evaluation_change_nothing() -> None:
    x = torch.randn(64, 5)
    assert torch.equal(DropPath(0.0).train()(x), x)
    assert DropPath(0.9).eval()(x) is x


def test_rate_is_no_weight_and_keeps_the_dtype() -> None:
    layer = DropPath(0.5)
    assert not layer.state_dict()
    assert layer(torch.ones(4, 2, dtype=torch.bfloat16)).dtype == torch.bfloat16
    layer.rate.fill_(0.0)
    assert torch.equal(layer(torch.ones(64)), torch.ones(64))
