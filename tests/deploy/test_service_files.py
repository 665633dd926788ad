"""The pages on deploying and the files of deploy/ agree with the program: every command, option and key exists."""

from __future__ import annotations

import re
import shlex
from configparser import ConfigParser
from pathlib import Path

import click
import pytest
import typer

from polyclinic.cli import app
from polyclinic.federation.site_policy import Policy, load_policy
from polyclinic.recipe import EngineSettings
from polyclinic.recipe.files import make_recipe, parse_recipe
from polyclinic.runs.remote_execution import refuse_impossible

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
PAGES = ("tutorials/first-federation.md", "reference/deployment.md", "explanation/security.md")
PAGE = "\n".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in PAGES)
UNITS = ("polyclinic-server.service", "polyclinic-site.service")
IMAGE = "polyclinic:0.1.0"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def shown() -> list[list[str]]:
    """The arguments of every polyclinic command in a block of the page, those in a container too."""
    found = []
    for block in blocks("bash"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words and Path(words[0]).name == "polyclinic":
                found.append(words[1:])
            elif IMAGE in words and "run" in words:
                found.append(words[words.index(IMAGE) + 1 :])
    return found


def mentioned() -> list[list[str]]:
    """The same for commands inside of sentences, which may leave arguments out."""
    text = re.sub(r"^```.*?^```", "", PAGE, flags=re.DOTALL | re.MULTILINE)
    return [shlex.split(words) for words in re.findall(r"`polyclinic ([^`]+)`", text)]


def find(arguments: list[str]) -> tuple[click.Command, list[str]]:
    """A command and what is left for it."""
    command: click.Command = typer.main.get_command(app)
    rest = list(arguments)
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        assert rest[0] in command.commands, f"there is no command {' '.join(arguments)}"
        command = command.commands[rest.pop(0)]
    return command, rest


def require_options(arguments: list[str]) -> None:
    command, rest = find(arguments)
    known = {name for one in command.params for name in (*one.opts, *one.secondary_opts)} | {"--help"}
    for word in rest:
        assert not word.startswith("-") or word.partition("=")[0] in known, f"{' '.join(arguments)}: no {word}"


def require_parses(arguments: list[str]) -> None:
    """All of it as click reads it: nothing unknown, nothing missing; nothing is run."""
    require_options(arguments)
    command, rest = find(arguments)
    if rest != ["--version"]:
        whole = not isinstance(command, click.Group) or command.invoke_without_command
        assert whole, f"{' '.join(arguments)} is not a whole command"
        command.make_context(command.name or "", rest)


def unit(name: str) -> ConfigParser:
    parser = ConfigParser(interpolation=None, strict=True, delimiters=("=",), comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string((DEPLOY / name).read_text(encoding="utf-8"))
    return parser


def test_the_policy_is_whole_and_has_the_defaults() -> None:
    path = DEPLOY / "policy.toml"
    assert load_policy(path) == Policy()
    for key in Policy.model_fields:
        assert re.search(rf"^(# )?{key} = ", path.read_text(encoding="utf-8"), re.MULTILINE), key


def test_commented_keys_of_the_policy_load_too(tmp_path: Path) -> None:
    text = (DEPLOY / "policy.toml").read_text(encoding="utf-8")
    path = tmp_path / "policy.toml"
    path.write_text(re.sub(r"^# (\w+ = )", r"\1", text, flags=re.MULTILINE))
    assert load_policy(path).model_fields_set == set(Policy.model_fields)


@pytest.mark.parametrize("arguments", shown(), ids=" ".join)
def test_commands_of_the_page_parse(arguments: list[str]) -> None:
    require_parses(arguments)


@pytest.mark.parametrize("arguments", mentioned(), ids=" ".join)
def test_commands_inside_of_sentences_exist(arguments: list[str]) -> None:
    require_options(arguments)


def test_every_step_is_shown() -> None:
    commands = {" ".join(words[:2]) if words[0] in ("keys", "data") else words[0] for words in shown()}
    assert commands >= {
        "keys server", "keys site", "keys accept", "data check", "site", "server", "watch", "predict", "explain",
        "audit",
    }  # fmt: skip


def test_a_wrong_command_would_be_found() -> None:
    for wrong in ("servr x", "site --nam north", "keys", "server recipe.toml"):
        with pytest.raises((AssertionError, click.UsageError)):
            require_parses(wrong.split())


def test_every_key_is_on_the_page() -> None:
    for key in Policy.model_fields:
        assert re.search(rf"^\| `{key}` \|", PAGE, re.MULTILINE), f"policy: {key}"
    for key in EngineSettings.model_fields:
        assert re.search(rf"^\| `engine\.{key}` \|", PAGE, re.MULTILINE), f"engine.{key}"


def test_the_recipe_of_the_page_can_run_over_a_network() -> None:
    text = next(block for block in blocks("toml") if "[training]" in block)
    refuse_impossible(make_recipe(parse_recipe(text, "the page"), "the page"))


@pytest.mark.parametrize("name", UNITS)
def test_units_start_commands_that_exist(name: str) -> None:
    service = unit(name)["Service"]
    program, *arguments = shlex.split(service["ExecStart"])
    assert Path(program).is_absolute()
    assert Path(program).name == "polyclinic"
    require_parses(arguments)
    assert arguments[0] == name.removeprefix("polyclinic-").removesuffix(".service")
    assert ("--resume" in arguments) == (arguments[0] == "server")
    assert service["Restart"] == "on-failure"
    assert set(service["SuccessExitStatus"].split()) == {"143", "130"}


@pytest.mark.parametrize("name", UNITS)
def test_units_are_hardened_and_let_the_program_write_where_it_must(name: str) -> None:
    service = unit(name)["Service"]
    assert service["User"] == "polyclinic"
    assert (service["NoNewPrivileges"], service["ProtectSystem"]) == ("yes", "strict")
    arguments = shlex.split(service["ExecStart"])
    writable = service["ReadWritePaths"].split()
    for option in ("--out", "--home"):
        if option in arguments:
            assert any(Path(arguments[arguments.index(option) + 1]).is_relative_to(path) for path in writable)
    for option in ("--data", "--key", "--keys", "--ca", "--policy"):
        if option in arguments:
            path = Path(arguments[arguments.index(option) + 1])
            assert any(path.is_relative_to(one) for one in service["ReadOnlyPaths"].split()), option


@pytest.mark.parametrize("name", [*UNITS, "policy.toml", "Containerfile"])
def test_the_page_points_to_the_files(name: str) -> None:
    assert f"](../../deploy/{name})" in PAGE
    assert (DEPLOY / name).is_file()


def test_the_image_has_no_root_and_takes_what_is_there() -> None:
    lines = (DEPLOY / "Containerfile").read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    steps = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    assert steps[0] == ["FROM", "docker.io/library/python:3.11-slim"]
    assert [what for step, what in steps if step == "USER"][-1] == "10001:10001"
    assert any("--constraint" in what and "flower" in what for step, what in steps if step == "RUN")
    for step, what in steps:
        if step == "COPY":
            for source in what.split()[:-1]:
                assert (ROOT / source).exists(), source
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert len([pin for pin in pins if pin.startswith("torch==")]) == 1
