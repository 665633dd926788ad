from __future__ import annotations

from pathlib import Path

import pytest

from polyclinic.components import registry as component_registry
from polyclinic.core.errors import PolyclinicError
from polyclinic.methods import registry as method_registry
from polyclinic.methods.expression import parse_method
from polyclinic.methods.registry import load_plugins


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
