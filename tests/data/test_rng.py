from __future__ import annotations

import torch

from nasformer.utils.rng import Draws, Purpose, generator, mix


def test_mix_is_stable_for_ever() -> None:
    assert mix(0) == 4246866556266386882
    assert mix(3, 1, 4) == 8553663497235011197


def test_mix_tells_words_apart() -> None:
    seen = {mix(a, b, c) for a in range(12) for b in range(12) for c in range(12)}
    assert len(seen) == 12**3
    assert mix(1, 12) != mix(11, 2)
    assert len(set(Purpose)) == len({purpose.value for purpose in Purpose})


def test_generator_has_no_hidden_state() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = torch.rand(5, generator=generator(7, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(torch.rand(5, generator=generator(7, 1)), first)
    assert not torch.equal(torch.rand(5, generator=generator(7, 2)), first)


def test_ranks_share_the_draws_of_the_global_batch() -> None:
    whole = Draws(generator(0), 12)
    parts = [Draws(generator(0), 4, rank, 3) for rank in range(3)]
    for draw in (
        lambda d: d.uniform(2, 3),
        lambda d: d.uniform(tries=5),
        lambda d: d.normal(),
        lambda d: d.integers(9),
        lambda d: d.chance(0.5),
    ):
        assert torch.equal(draw(whole), torch.cat([draw(part) for part in parts]))


def test_draws_have_the_range_they_say() -> None:
    draws = Draws(generator(0), 2000)
    assert set(draws.integers(3).tolist()) == {0, 1, 2}
    numbers = draws.uniform(-2, 5)
    assert -2 <= numbers.min() < -1.9
    assert 4.9 < numbers.max() < 5
    assert not draws.chance(0.0).any()
    assert draws.chance(1.0).all()
