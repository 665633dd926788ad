from __future__ import annotations

import doctest
from typing import Any

import pytest
import torch

from polyclinic.core.errors import PolyclinicError
from polyclinic.data.federation import Task
from polyclinic.networks import build_network, classifiers
from polyclinic.networks.classifiers import auxiliary_heads
from polyclinic.recipe.network import NetworkSettings

TASK = Task(("background", "vessel", "lesion"), 1, 2)


def network_of(**keys: Any) -> Any:
    return build_network(TASK, NetworkSettings(**{"width": 2, "depth": 4, **keys}), seed=3)


def test_example() -> None:
    assert doctest.testmod(classifiers) == (0, 1)


@pytest.mark.parametrize("keys", [{}, {"name": "vit", "patch": 8, "embedding": 6, "heads": 2, "layers": 2, "mlp": 8}])
def test_a_network_starts_from_the_prior(keys: dict[str, Any]) -> None:
    network = network_of(**keys, prior_bias=(0.01, 0.05))
    torch.testing.assert_close(network.classifier.bias.softmax(0), torch.tensor([0.94, 0.01, 0.05]))
    plain = network_of(**keys)
    for name, weight in plain.state_dict().items():
        assert name == "classifier.bias" or torch.equal(network.state_dict()[name], weight), name
    shares = network(torch.randn(4, 1, 32, 32)).softmax(1).mean((0, 2, 3))
    assert shares[0] > 0.8 > plain(torch.randn(4, 1, 32, 32)).softmax(1).mean((0, 2, 3))[0]
    one_for_all = network_of(**keys, prior_bias=0.01, deep_supervision=not keys)
    for layer in (one_for_all.classifier, *auxiliary_heads(one_for_all).values()):
        torch.testing.assert_close(layer.bias.softmax(0), torch.tensor([0.98, 0.01, 0.01]))


@pytest.mark.parametrize(
    ("prior", "words"), [((0.1,), "1 share, and the task has 2 foreground classes"), (0.5, "nothing for the back")]
)
def test_a_prior_that_does_not_fit_gets_a_sentence(prior: Any, words: str) -> None:
    with pytest.raises(PolyclinicError, match=words):
        network_of(prior_bias=prior)


def test_auxiliary_heads_change_no_other_weight_and_no_prediction() -> None:
    plain, supervised = network_of(), network_of(deep_supervision=True)
    heads = auxiliary_heads(supervised)
    assert {tap: head.weight.shape[:2] for tap, head in heads.items()} == {"decoder1": (3, 4), "decoder2": (3, 8)}
    assert not auxiliary_heads(plain)
    added = supervised.state_dict().keys() - plain.state_dict().keys()
    assert {name.removeprefix(f"{classifiers.HEADS}.") for name in added} == {
        f"{tap}.{what}" for tap in heads for what in ("weight", "bias")
    }
    assert added <= set(supervised.stages()["head"])
    images = torch.randn(1, 1, 32, 32)
    assert torch.equal(plain(images), supervised(images))


def test_too_few_levels_get_a_sentence() -> None:
    with pytest.raises(PolyclinicError, match="three levels of the decoder or more, and this network has 2"):
        network_of(depth=2, deep_supervision=True)
