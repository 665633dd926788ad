from __future__ import annotations

import pytest

from polyclinic.core.errors import PolyclinicError
from polyclinic.methods.expression import parse_method, same_method
from polyclinic.runs.grid_plan import parse_seeds, split_expressions


def parts(expression: str) -> dict[str, dict[str, object]]:
    return {p.component: p.settings for p in parse_method(expression).parts}


def test_a_name_is_the_method_of_that_name() -> None:
    assert list(parts("fedprox")) == ["weighted_mean", "proximal"]


def test_components_are_added_dropped_and_set() -> None:
    assert parts("fedavg+proximal(mu=1)")["proximal"] == {"mu": 1}
    assert "proximal" not in parts("fedprox-proximal")
    assert parts("fedprox(mu=0.5)")["proximal"] == {"mu": 0.5}
    assert parts("fedprox + proximal(mu = 2)")["proximal"] == {"mu": 2}
    assert parts('fedbn(unseen="average")')["local_norm"] == parts("fedbn(unseen=average)")["local_norm"]


def test_lists_take_bare_words() -> None:
    assert parts("fedbcs(taps=[encoder1, encoder2], tau=0.1)")["fsr"] == {"taps": ["encoder1", "encoder2"]}
    assert parts('fedbcs(taps=["encoder1",encoder2])')["fsr"] == {"taps": ["encoder1", "encoder2"]}
    assert parts("fedbcs(levels=[0,1])")["cdpa"] == {"levels": [0, 1]}
    assert split_expressions("fedavg,fedbcs(taps=[encoder1,encoder2])") == (
        "fedavg",
        "fedbcs(taps=[encoder1,encoder2])",
    )


def test_exactly_one_component_aggregates() -> None:
    """Adding one replaces the old one, dropping it brings back the weighted mean."""
    assert list(parts("fedavg+no_exchange")) == ["no_exchange"]
    assert list(parts("local-no_exchange")) == ["weighted_mean"]
    assert list(parts("fedavg+median")) == ["median"]
    assert list(parts("fedavg+median-median+krum")) == ["krum"]
    assert list(parts("fedavg+median+median")) == ["median"]
    assert parse_method("fedprox+no_exchange").aggregator == "no_exchange"


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("fedavgg", "did you mean 'fedavg'?"),
        ("fedavg+proximl", "did you mean 'proximal'?"),
        ("fedavg-proximal", "fedavg consists of weighted_mean"),
        ("fedavg-nonsense", "not a component"),
        ("fedavg+fedbn", "'fedbn' is a method, and + adds a component; it consists of local_norm"),
        ("fedavg+proximal(nu=1)", "Its settings: mu"),
        ("fedavg+median+krum", "'fedavg+median+krum': median and krum would each aggregate, and one component does"),
        ("pathfl+median+proximal+no_exchange", "median and no_exchange would each aggregate"),
        ("fedavg+median+krum-krum+weighted_mean", "median and weighted_mean would each aggregate"),
        ("fedavg+proximal(mu=-1)", "greater than or equal to 0"),
        ("fedavg+proximal(mu", "cannot read '(mu'"),
        ("fedavg+proximal(3)", "write name=value"),
        ("fedavg(x=1)", "not one of its settings. Its settings: weighting;"),
        ("fedbcs(tua=1)", "fedbcs(tua=...): 'tua' is not one of its settings, did you mean 'tau'? Its settings: "),
        ("fedbcs(tau=0.4,tau=0.5)", "'tau' is there twice; give it one value"),
        ("fedbcs(tau=nan)", "cdpa(tau=nan): it must be a finite number."),
        ("fedprox(mu=inf)", "proximal(mu=inf): it must be a finite number."),
        ("fedbcs(tau=low)", "cdpa(tau='low'): it must be a number."),
        ("fedbcs(taps=encoder1)", "fsr(taps='encoder1'): it must be a list, such as [encoder1], or 'auto'."),
        ("fedbcs(taps=[1])", "fsr(taps=[1]): 1 is not possible: it must be text"),
        ("fedbcs(levels=[fine])", "cdpa(levels=['fine']): 'fine' is not possible: it must be a whole number."),
        ("fedbcs(gate=relu)", "fsr(gate='relu'): it must be 'sigmoid' or 'softmax'."),
        ("+fedavg", "cannot read"),
        ("", "name of a method is expected"),
    ],
)
def test_a_wrong_expression_gets_a_sentence(expression: str, words: str) -> None:
    with pytest.raises(PolyclinicError) as caught:
        parse_method(expression)
    assert words in str(caught.value)


def test_lists_of_expressions_split_between_methods_only() -> None:
    assert split_expressions("fedavg, fedbn(unseen=average)+proximal(mu=1),local") == (
        "fedavg",
        "fedbn(unseen=average)+proximal(mu=1)",
        "local",
    )


def test_seeds_are_a_number_or_a_list() -> None:
    assert parse_seeds("3", 5) == (5, 6, 7)
    assert parse_seeds("0,7", 5) == (0, 7)
    assert parse_seeds("7,", 5) == (7,)
    with pytest.raises(PolyclinicError, match="--seeds x"):
        parse_seeds("x", 0)


def test_an_endless_expression_is_not_read() -> None:
    """Reading takes time with the square of the length: a million spaces of a server would be hours."""
    with pytest.raises(PolyclinicError, match="method: an expression of 1000001 characters is not read"):
        parse_method(" " * 1_000_000 + "!")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("fedavg", "pathfl-cse-afa-ssa", True),
        ("fedavg+cse", "pathfl-afa-ssa", True),
        ("fedprox", "fedavg+proximal(mu=0.01)", True),
        ("fedprox", "fedprox(mu=0.1)", False),
        ("fedavg+cse+afa", "fedavg+afa+cse", False),
        ("fedbn-local_norm", "fedavg", False),
        ("fl_upper", "fl_lower", False),
        ("central", "fedavg", False),
    ],
)
def test_methods_are_the_same_where_nothing_but_their_names_differs(one: str, other: str, same: bool) -> None:
    assert same_method(parse_method(one), parse_method(other)) is same
