from __future__ import annotations

from dataclasses import replace

import torch

from polyclinic.networks.encoders import _create, import_timm
from polyclinic.networks.presets import PRESETS


def test_conch_is_vit_b_16_for_images_of_448() -> None:
    with torch.device("meta"):
        model = _create(import_timm(), PRESETS["conch"])
    layer = 12 * 768 * 768 + 13 * 768
    expected = 12 * layer + (3 * 16 * 16 + 1) * 768 + (28 * 28 + 1) * 768 + 768 + 2 * 768
    assert sum(p.numel() for p in model.parameters()) == expected
    assert model.pos_embed.shape == (1, 785, 768)
    assert [one["reduction"] for one in model.feature_info] == [16] * 12


def test_chief_is_swin_t_with_convolutions_before_it() -> None:
    with torch.device("meta"):
        model, plain = (
            _create(import_timm(), preset) for preset in (PRESETS["chief"], replace(PRESETS["chief"], options={}))
        )
    stem = {name: tuple(t.shape) for name, t in model.patch_embed.state_dict().items() if name.endswith("weight")}
    assert stem == {
        "proj.0.weight": (12, 3, 3, 3), "proj.1.weight": (12,), "proj.3.weight": (24, 12, 3, 3),
        "proj.4.weight": (24,), "proj.6.weight": (96, 24, 1, 1), "norm.weight": (96,),
    }  # fmt: skip
    own, other = ({n for n in m.state_dict() if "patch_embed" not in n} for m in (model, plain))
    assert own == other
    assert [one["reduction"] for one in model.feature_info] == [4, 8, 16, 32]
