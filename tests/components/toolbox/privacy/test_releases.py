from __future__ import annotations

import torch

from polyclinic.components.toolbox.privacy.releases import MarkedRelease, add_release, releases_in

A, B = bytes(range(32)), bytes(range(1, 33))


def test_a_release_has_its_own_noise_and_is_entered_once() -> None:
    ledger: dict[str, torch.Tensor] = {}
    for mark, noise in ((A, 0.1), (B, 7.0), (A, 0.1)):
        add_release(ledger, mark, noise)
    assert releases_in(ledger) == [MarkedRelease(A.hex(), 0.1), MarkedRelease(B.hex(), 7.0)]
    assert releases_in({}) == []


def test_releases_of_a_ledger_without_noises_have_an_unknown_one() -> None:
    ledger = {"releases": torch.tensor([list(A)], dtype=torch.uint8)}
    assert releases_in(ledger) == [MarkedRelease(A.hex(), None)]
    add_release(ledger, A, 3.0)
    assert releases_in(ledger) == [MarkedRelease(A.hex(), None)], "known already, whatever noise is said now"
    add_release(ledger, B, 3.0)
    assert releases_in(ledger) == [MarkedRelease(A.hex(), None), MarkedRelease(B.hex(), 3.0)]
