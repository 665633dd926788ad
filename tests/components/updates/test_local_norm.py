"""FedBN's norms stay at the sites."""

from __future__ import annotations

from pathlib import Path

import torch

from support import final_tensors, tiny_recipe, tiny_server


def test_fedbn_keeps_norms_and_averages_the_rest(tmp_path: Path) -> None:
    server = tiny_server(tmp_path, tiny_recipe("fedbn"))
    server.fit()
    found = final_tensors(server)
    norms = server.workspace.network.norm_names()
    assert server.workspace.kept == norms
    assert not {n.removeprefix("global/") for n in found if n.startswith("global/")} & norms
    name = next(n for n in sorted(norms) if n.endswith("weight"))
    assert not torch.equal(found[f"north/personal/{name}"], found[f"south/personal/{name}"])


def test_fedbn_averages_norms_for_unseen_sites_only_when_asked(tmp_path: Path) -> None:
    quiet = tiny_server(tmp_path / "own", tiny_recipe("fedbn"))
    assert quiet.workspace.declared()["local_norm"] == ()
    asked = tiny_server(tmp_path / "unseen", tiny_recipe("fedbn", protocol={"kind": "leave-one-site-out"}))
    asked.round()
    found = final_tensors(asked)
    unseen = asked.checkpoint.load_model("last")[1]
    assert unseen.keys() == asked.workspace.kept
    for name, tensor in unseen.items():
        own = torch.stack([found[f"{site}/personal/{name}"].double() for site in asked.sites])
        if tensor.is_floating_point():
            torch.testing.assert_close(tensor, own.mean(0).float(), rtol=1e-6, atol=1e-8)
        else:
            assert torch.equal(tensor, found[f"north/personal/{name}"])


def test_fedbn_warns_when_norms_hold_nothing(tmp_path: Path) -> None:
    server = tiny_server(tmp_path, tiny_recipe("fedbn", network={"norm": "batch-nostats"}))
    (warning,) = [w for c in server.workspace.components for w in c.warnings()]
    assert "equals fedavg" in warning
