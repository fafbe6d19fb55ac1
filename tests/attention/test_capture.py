"""The weights of every family are those of its layers: on the values of the map they give what the layer gives."""

from __future__ import annotations

import torch

from attention.formulas import output_by_formula, weights_on_map
from attention.nets import FAMILIES, each_family, net, pictures
from families.small import SPACES
from nasformer.report.attention import (
    Recorder,
    attention_blocks,
    attention_layers,
    attention_maps,
    find_block,
    inputs_of,
    record_calls,
)


def test_no_family_is_forgotten() -> None:
    assert set(FAMILIES) == {space.model.family for space in SPACES.values()}


@each_family
def test_every_fused_attention_of_a_model_has_a_place(family: str) -> None:
    model, x = net(family), pictures(family)
    with torch.no_grad(), Recorder() as recorder:
        model(x)
    layers = [
        layer
        for block in attention_blocks(model)
        for layer in attention_layers(model.get_submodule(find_block(model, block))).values()
    ]
    calls = [call for made in record_calls(model, layers, x) for call in made]
    assert len(calls) == len(recorder.calls) > 0
    for call, whole in zip(calls, recorder.calls, strict=True):
        torch.testing.assert_close(call.query, whole.query)
        torch.testing.assert_close(call.weights @ call.value, whole.output, rtol=1e-4, atol=1e-5)


@each_family
def test_weights_add_up_and_give_the_output_of_the_layer(family: str) -> None:
    model, x = net(family), pictures(family)
    for block in attention_blocks(model):
        maps = attention_maps(model, x, block)
        assert (maps.queries >= 0).all()
        torch.testing.assert_close(maps.queries.sum(-1), torch.ones(maps.queries.shape[:-1]))
        name = find_block(model, block)
        layers = attention_layers(model.get_submodule(name))
        start = 0
        for layer, (inputs,) in zip(layers.values(), inputs_of(model, list(layers.values()), x), strict=True):
            heads = weights_on_map(layer, inputs, maps.grid)
            own = maps.weights[:, start : start + heads.shape[1]]
            start += heads.shape[1]
            with torch.no_grad():
                torch.testing.assert_close(
                    output_by_formula(layer, own, inputs, maps.grid), layer(inputs), rtol=1e-4, atol=1e-4
                )
        assert start == len(maps.heads)
