from __future__ import annotations

import torch

from polyclinic.data.sitedata import pool
from support import tiny_site


def test_pooled_data_is_the_sites_data_in_order() -> None:
    sites = [tiny_site("north", 3), tiny_site("south", 2)]
    pooled = pool(sites, "pooled")
    assert pooled.splits["train"].tolist() == [0, 1, 2, 5, 6]
    images, labels = pooled.images.batch(torch.tensor([5, 1, 6]))
    wanted = [sites[1].images.batch(torch.tensor([0, 1])), sites[0].images.batch(torch.tensor([1]))]
    assert torch.equal(images, torch.stack([wanted[0][0][0], wanted[1][0][0], wanted[0][0][1]]))
    assert torch.equal(labels[1], wanted[1][1][0])
    assert pooled.images.uniform
    assert len(pooled.images) == 9


def test_pooled_data_is_read_ahead_as_it_is_read() -> None:
    sites = [tiny_site("north", 3), tiny_site("south", 2)]
    pooled = pool(sites, "pooled")
    told: list[tuple[str, list[int], int]] = []
    for site in sites:

        def will_need(
            rows: torch.Tensor, size: object, generator: torch.Generator, _: float, name: str = site.site
        ) -> None:
            told.append((name, rows.tolist(), int(torch.randint(100, (1,), generator=generator))))

        site.images.will_need = will_need  # type: ignore[method-assign, assignment]
    generator = torch.Generator().manual_seed(0)
    pooled.images.will_need(torch.tensor([6, 1, 5, 0]), (4, 4), generator)
    draws = [int(torch.randint(100, (1,), generator=torch.Generator().manual_seed(0)))]
    assert told[0] == ("north", [1, 0], draws[0])
    assert told[1][:2] == ("south", [1, 0])
