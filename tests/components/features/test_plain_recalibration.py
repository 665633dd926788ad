"""The form for exported graphs is the component's own map."""

from __future__ import annotations

import pytest
import torch

from polyclinic.components.features.fsr import StyleRecalibration
from polyclinic.components.features.plain_recalibration import PlainRecalibration


@pytest.mark.parametrize("shape", [(2, 3, 8, 6), (1, 3, 7, 5), (2, 3, 4, 6, 5)])
@pytest.mark.parametrize(
    "options",
    [{}, {"gate": "softmax"}, {"per_channel": True}, {"form": "released"}],
    ids=["paper", "softmax", "per channel", "released"],
)
def test_the_plain_form_gives_the_same_map(shape: tuple[int, ...], options: dict[str, object]) -> None:
    torch.manual_seed(0)
    layer = StyleRecalibration(3, len(shape) - 2, **options)  # type: ignore[arg-type]
    with torch.no_grad():
        for weight in layer.parameters():
            weight.add_(torch.randn_like(weight))
    plain, maps = layer.for_export(), torch.randn(shape) * 3 + 1
    assert isinstance(plain, PlainRecalibration)
    torch.testing.assert_close(plain(maps), layer(maps), atol=2e-5, rtol=2e-5)
    assert not torch.allclose(plain(maps), maps, atol=1e-2)
