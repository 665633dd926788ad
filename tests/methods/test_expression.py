from __future__ import annotations

from pathlib import Path

import pytest

from polyclinic.components import registry as component_registry
from polyclinic.core.errors import PolyclinicError
from polyclinic.methods import registry as method_registry
from polyclinic.methods.expression import parse_method
from polyclinic.methods.registry import load_plugins
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


def test_a_plugin_registers_a_method_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(component_registry, "_COMPONENTS", dict(component_registry._COMPONENTS))
    monkeypatch.setattr(method_registry, "_METHODS", dict(method_registry._METHODS))
    plugin = tmp_path / "twice.py"
    plugin.write_text(
        "from polyclinic.components.base import Component\n"
        "from polyclinic.components.registry import component\n"
        "from polyclinic.methods.registry import Method, part, register\n"
        "@component\n"
        "class Twice(Component):\n"
        "    '''Doubles the loss.'''\n"
        "    name = 'twice'\n"
        "    level = 'objective'\n"
        "    def loss(self, step):\n"
        "        return {'again': step.losses.get('segmentation', step.output.logits.sum() * 0)}\n"
        "register(Method(name='doubled', parts=(part('twice'),)))\n"
    )
    load_plugins([str(plugin)])
    assert [p.component for p in parse_method("doubled").parts] == ["weighted_mean", "twice"]
    with pytest.raises(PolyclinicError, match=r"plugins: .*missing\.py"):
        load_plugins([str(tmp_path / "missing.py")])


@pytest.mark.parametrize("text", ["def broken(:", "raise ValueError('no')", "import nothing_of_that_name"])
def test_a_plugin_that_fails_gets_a_sentence_and_can_be_mended(text: str, tmp_path: Path) -> None:
    plugin = tmp_path / "idea.py"
    plugin.write_text(text)
    with pytest.raises(PolyclinicError, match=r"plugins: .*idea\.py' cannot be imported \(\w+Error"):
        load_plugins([str(plugin)])
    plugin.write_text("value = 1")
    load_plugins([str(plugin)])


def test_two_plugins_of_one_file_name_are_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(method_registry, "_METHODS", dict(method_registry._METHODS))
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        text = f"from polyclinic.methods.registry import *\nregister(Method(name='idea_{name}', parts=()))\n"
        (tmp_path / name / "idea.py").write_text(text)
    load_plugins([str(tmp_path / name / "idea.py") for name in ("one", "two")])
    assert [parse_method(f"idea_{name}").aggregator for name in ("one", "two")] == ["weighted_mean"] * 2
