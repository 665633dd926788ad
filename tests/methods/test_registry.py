from __future__ import annotations

import sys
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


def test_what_may_not_run_is_not_imported_unless_it_is_here_already(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files, and modules that Python would find."""
    monkeypatch.syspath_prepend(tmp_path)
    code = f"open({str(tmp_path / 'ran')!r}, 'a').write('x')\n"
    names = [str(tmp_path / "a_file_of_theirs.py"), "a_module_of_theirs"]
    for name in ("a_file_of_theirs", "a_module_of_theirs"):
        (tmp_path / f"{name}.py").write_text(code)
    for name in names:
        with pytest.raises(PolyclinicError, match=rf"rights: {name}; .*--plugins \(plugins=True in Python\)\.$"):
            load_plugins(["sys", name], allowed=False)
    with pytest.raises(PolyclinicError, match=rf"{names[0]}, {names[1]};"):
        load_plugins(names, allowed=False)
    assert not (tmp_path / "ran").exists()
    load_plugins(names)
    load_plugins(names, allowed=False)
    assert (tmp_path / "ran").read_text() == "xx"
    monkeypatch.delitem(sys.modules, "a_module_of_theirs")


def test_names_of_plugins_cannot_write_on_a_terminal() -> None:
    with pytest.raises(PolyclinicError) as caught:
        load_plugins(["\x1b[2Jevil.py"], allowed=False)
    assert str(caught.value).isprintable()
