"""A formula that breaks: the site whose numbers break it is left out, however large the other sites' updates are."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from polyclinic.components.aggregation.median import Median
from polyclinic.components.features.afa import Afa
from polyclinic.exchange.messages import Tensors, Update
from polyclinic.federation.culprit import culprit
from polyclinic.federation.recovery import NoCulpritError, NoQuorumError, suspect
from polyclinic.federation.update_bounds import NormHistory
from support import Keeper, spoiling, tiny_recipe, tiny_server


def test_who_breaks_it() -> None:
    def with_any_of(*evil: str):  # type: ignore[no-untyped-def]
        return lambda sites: bool(set(evil) & set(sites))

    assert culprit("abc", with_any_of("b")) == "b"
    assert culprit("abcde", with_any_of("b", "d")) == "b", "the other one is found when the round is repeated"
    assert culprit("ab", with_any_of("b")) == "b", "two sites are enough"
    assert culprit("abc", lambda _: True) is None, "it breaks whoever is there: that is no site's fault"

    def together(sites: Collection[str]) -> bool:
        return {"a", "b"} <= set(sites)

    assert culprit("abc", together) is None, "two of them make it, and either may be the honest one"


def slowly(update: Update) -> Update:
    """Weights that change less than anybody's, and a variance that is not large, but impossible."""
    update.shared["afa"]["variance"] = torch.full_like(update.shared["afa"]["variance"], -1e4)
    return update


@pytest.fixture
def unbounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """AFA as a component of somebody who forgot the lower bound."""
    leaves = Afa.leaves
    monkeypatch.setattr(Afa, "leaves", lambda *args: tuple(replace(one, at_least=None) for one in leaves(*args)))


@pytest.mark.usefixtures("unbounded")
@pytest.mark.parametrize("sizes", [None, {"south": 5, "west": 3}], ids=["three sites", "two sites"])
def test_a_negative_variance_is_blamed_on_the_site_that_sent_it(sizes: dict[str, int] | None, tmp_path: Path) -> None:
    recipe = tiny_recipe("fedavg+afa", training={"rounds": 3, "lr": 1e-3})
    server = tiny_server(tmp_path, recipe, sizes=sizes, observer=(keeper := Keeper()), engine=spoiling("west", slowly))
    server.fit()
    assert {site for _, site, _ in server.state.returns} == {"west"}
    assert [event["refused"].keys() for event in keeper.events[-3:]] == [{"west"}] * 3
    assert server.state.weights["taps.bottleneck.afa.deviation"].isfinite().all()


def test_a_negative_variance_is_refused_at_once(tmp_path: Path) -> None:
    recipe = tiny_recipe("fedavg+afa", training={"rounds": 2, "lr": 1e-3})
    server = tiny_server(tmp_path, recipe, observer=(keeper := Keeper()), engine=spoiling("west", slowly))
    server.fit()
    assert server.state.returns == []
    said = "update refused: component afa shares a value of -1e+04 in 'variance', which is at least 0"
    assert [event["refused"] for event in keeper.events] == [{"west": said}] * 2


@pytest.mark.parametrize("raises", [False, True])
def test_an_error_in_a_component_is_its_own_unless_one_site_brings_it_about(
    raises: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    combine = Afa.combine

    def fragile(self: Afa, server: object, shared: dict[str, Tensors]) -> Tensors:
        if raises or "west" in shared:
            raise IndexError("there is no such class")
        return combine(self, server, shared)  # type: ignore[arg-type]

    monkeypatch.setattr(Afa, "combine", fragile)
    server = tiny_server(tmp_path, tiny_recipe("fedavg+afa"))
    if raises:
        with pytest.raises(IndexError):
            server.round()
        return
    server.round()
    ((_, site, reason),) = server.state.returns
    assert (site, reason) == ("west", "component afa cannot work with what it got (IndexError)")


def test_an_aggregation_over_a_list_is_done_again_without_each_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aggregate = Median.aggregate

    def broken(self: Median, server: object, updates: list[Update]) -> Tensors:
        factor = float("nan") if any(update.site == "south" for update in updates) else 1.0
        return {n: t * factor if t.is_floating_point() else t for n, t in aggregate(self, server, updates).items()}  # type: ignore[arg-type]

    monkeypatch.setattr(Median, "aggregate", broken)
    server = tiny_server(tmp_path, tiny_recipe("fedavg+median"))
    server.round()
    assert [site for _, site, _ in server.state.returns] == ["south"]


def test_nobody_is_blamed_for_what_breaks_with_anybody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    aggregate = Median.aggregate
    monkeypatch.setattr(
        Median,
        "aggregate",
        lambda *args: {n: t * float("inf") if t.is_floating_point() else t for n, t in aggregate(*args).items()},
    )
    server = tiny_server(tmp_path, tiny_recipe("fedavg+median"))
    with pytest.raises(NoCulpritError, match=r"^Round 1 was spoilt: in the new global model .* no site's update st"):
        server.round()
    assert issubclass(NoCulpritError, NoQuorumError), "a server elsewhere waits and repeats the round"
    assert server.state.returns == []


def test_what_a_site_shared_counts_when_a_model_breaks_later() -> None:
    """Sites that cannot train on enormous numbers of one of them: not the one that merely learnt most."""
    history: NormHistory = {"a": [[0.0, 1.0, 1.0, 1.0]], "b": [[0.0, 12.0, 1.0, 1.0]], "evil": [[0.0, 1.0, 1.0, 900.0]]}
    assert suspect(history, 0) == "evil"
    assert suspect({site: [entry[:3] for entry in entries] for site, entries in history.items()}, 0) == "b"
