"""A quorum above the number of a round's sites is refused; a share keeps its meaning."""

from __future__ import annotations

from typing import Any

import pytest

from polyclinic.core.errors import PolyclinicError
from polyclinic.runs.high_quorum import refuse_high_quorum
from support import tiny_recipe


@pytest.mark.parametrize(
    ("training", "protocol"),
    [
        ({"quorum": 4}, {}),
        ({"quorum": 1}, {}),
        ({"quorum": 0.9}, {}),
        ({"quorum": 0.9, "participation": 1}, {"kind": "leave-one-site-out"}),
        ({"quorum": 3}, {"kind": "leave-one-site-out"}),
        ({"quorum": 2, "participation": 0.5}, {}),
    ],
)
def test_one_that_can_be_reached_passes(training: dict[str, Any], protocol: dict[str, Any]) -> None:
    refuse_high_quorum(tiny_recipe(training=training, protocol=protocol), 4)


@pytest.mark.parametrize(
    ("training", "protocol", "words"),
    [
        ({"quorum": 5}, {}, "training.quorum = 5: a round has 4 sites, so that the quorum could never be reached; "),
        ({"quorum": 4}, {"kind": "leave-one-site-out"}, "3 sites (protocol.kind leaves one out), so that"),
        ({"quorum": 3, "participation": 0.5}, {}, "2 sites (training.participation), so that"),
        ({"quorum": 2, "participation": 0.1}, {}, "1 site (training.participation), so that"),
    ],
)
def test_one_that_cannot_gets_a_sentence(training: dict[str, Any], protocol: dict[str, Any], words: str) -> None:
    with pytest.raises(PolyclinicError) as error:
        refuse_high_quorum(tiny_recipe(training=training, protocol=protocol), 4)
    assert words in str(error.value)


@pytest.mark.parametrize("key", ["quorum", "participation"])
def test_a_count_is_whole(key: str) -> None:
    assert getattr(tiny_recipe(training={key: 2.0}).training, key) == 2
    with pytest.raises(
        PolyclinicError, match=rf"training\.{key}: it must be a share up to 1, or a whole number of sites"
    ):
        tiny_recipe(training={key: 1.5})
