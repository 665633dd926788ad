"""The security boundary: what a site may send, and everything that is refused, each with its attack."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from polyclinic.core.wording import printable_line
from polyclinic.engines.inprocess import InProcess
from polyclinic.exchange.checks import (
    description_problem,
    fits_table,
    is_finite,
    scores_problem,
    shared_amount,
    update_problem,
)
from polyclinic.exchange.declarations import Shared
from polyclinic.exchange.messages import Broadcast, Description, Evaluation, Failure, Tensors, Update
from support import Keeper, assert_same, tiny_recipe, tiny_server

ROUND = 3
WEIGHTS = {
    "encoder.weight": torch.ones(2, 3),
    "encoder.steps": torch.tensor(5),
    "encoder.empty": torch.zeros(0, 4),
    "head.bias": torch.zeros(3),
}
DECLARED = {
    "bank": (
        Shared("prototypes", ("clusters", 4), "mean features", at_most=5, prototypes=True),
        Shared("classes", ("clusters",), "their classes", torch.int64, below=3),
    ),
    "style": (
        Shared("mean", (2,), "mean of the channels"),
        Shared("gap", (1,), "may be NaN", finite=False, at_least=-1),
        Shared("variance", (2,), "of the channels", at_least=0, squared=True),
        Shared("pixels", (2,), "how many", torch.int64, at_least=0),
    ),
}
SHARED = {
    "bank": {"prototypes": torch.ones(2, 4), "classes": torch.tensor([0, 2])},
    "style": {
        "mean": torch.zeros(2),
        "gap": torch.tensor([nan]),
        "variance": torch.tensor([0.0, 4.0]),
        "pixels": torch.tensor([0, 2**48]),
    },
}


def good_update(**changes: Any) -> Update:
    shared = {component: dict(tensors) for component, tensors in SHARED.items()}
    update = Update("south", ROUND, dict(WEIGHTS), samples=5, steps=3, shared=shared, losses={"dice": 0.5})
    return replace(update, **changes)


def problem_of(update: Update) -> str | None:
    return update_problem(update, WEIGHTS, DECLARED, ROUND)


def weights_with(**changes: torch.Tensor) -> Tensors:
    return {**WEIGHTS, **{name.replace("__", "."): tensor for name, tensor in changes.items()}}


def weights_without(name: str, **changes: torch.Tensor) -> Tensors:
    return {key: tensor for key, tensor in weights_with(**changes).items() if key != name}


def shared_with(component: str, **changes: torch.Tensor | None) -> dict[str, Tensors]:
    tensors = {**SHARED.get(component, {}), **changes}
    return {**SHARED, component: {name: tensor for name, tensor in tensors.items() if tensor is not None}}


def test_an_update_as_declared_is_accepted() -> None:
    assert problem_of(good_update()) is None


ACCEPTED = {
    "no sample and no step": {"samples": 0, "steps": 0},
    "the largest count": {"samples": 2**31 - 1},
    "a loss that is not a number": {"losses": {"dice": nan}},
    "a hundred terms": {"losses": {f"term {number}": 0.0 for number in range(100)}},
    "the largest value of a weight": {"weights": weights_with(head__bias=torch.full((3,), 1e18))},
    "no prototype at all": {
        "shared": shared_with("bank", prototypes=torch.ones(0, 4), classes=torch.zeros(0, dtype=torch.int64))
    },
    "as many rows as are declared": {
        "shared": shared_with("bank", prototypes=torch.ones(5, 4), classes=torch.zeros(5, dtype=torch.int64))
    },
    "a loss without end": {"losses": {"dice": -inf}},
    "no second": {"seconds": 0.0},
    "a space that is not ASCII in a name": {"losses": {"Bild 9.41\u202fPM \u3000\xa0": 1.0}},
    "a negative number above its bound": {"shared": shared_with("style", gap=torch.tensor([-1.0]))},
    "infinity where it is declared": {"shared": shared_with("style", gap=torch.tensor([inf]))},
}


@pytest.mark.parametrize("changes", ACCEPTED.values(), ids=ACCEPTED)
def test_limits_are_still_accepted(changes: dict[str, Any]) -> None:
    assert problem_of(good_update(**changes)) is None


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an old round": ({"round": ROUND - 1}, "it answers round 2, not round 3"),
    "a future round": ({"round": 10**30}, "not round 3"),
    "negative samples": ({"samples": -1}, "it counts -1 samples"),
    "samples beyond any mean": ({"samples": 2**31}, "it counts too many samples"),
    "samples that no float can hold": ({"samples": 10**400}, "it counts too many samples"),
    "hugely negative samples": ({"samples": -(10**400)}, "it counts too many samples"),
    "negative steps": ({"steps": -7}, "it counts -7 steps"),
    "steps that no float can hold": ({"steps": 10**400}, "it counts too many steps"),
    "too many terms of the loss": (
        {"losses": {f"term {number}": 0.0 for number in range(101)}},
        "it lists 101 terms of its loss",
    ),
    "a line break in the name of a term": ({"losses": {"a\nb": 1.0}}, "whose name no table can hold"),
    "an endless name of a term": ({"losses": {"x" * 1001: 1.0}}, "whose name no table can hold"),
    "half a letter in the name of a term": ({"losses": {"\ud800": 1.0}}, "whose name no table can hold"),
    "an escape of one byte in the name of a term": ({"losses": {"\x9b31mred": 1.0}}, "whose name no table can hold"),
    "letters that run backwards": ({"losses": {"a\u202eb": 1.0}}, "whose name no table can hold"),
    "another kind of line break": ({"losses": {"a\u2028b": 1.0}}, "whose name no table can hold"),
    "endless seconds": ({"seconds": inf}, "it says that it took inf seconds"),
    "seconds that are no number": ({"seconds": nan}, "it says that it took nan seconds"),
    "seconds before the start": ({"seconds": -1.0}, "it says that it took -1 seconds"),
    "seconds that spoil any sum": ({"seconds": 1e308}, "it says that it took 1e+308 seconds"),
    "a negative variance": (
        {"shared": shared_with("style", variance=torch.tensor([1.0, -1e6]))},
        "component style shares a value of -1e+06 in 'variance', which is at least 0",
    ),
    "a negative value where NaN is allowed": (
        {"shared": shared_with("style", gap=torch.tensor([-inf]))},
        "component style shares a value of -inf in 'gap', which is at least -1",
    ),
    "a negative count": (
        {"shared": shared_with("style", pixels=torch.tensor([1, -1]))},
        "component style shares a value of -1 in 'pixels', which is at least 0",
    ),
    "a count that no sum can take": (
        {"shared": shared_with("style", pixels=torch.tensor([1, 2**62]))},
        "component style shares a count of 4.61e+18 in 'pixels', at most 2.81e+14 can be used",
    ),
    "no weights": ({"weights": {}}, "4 weights are missing, 'encoder.empty' first"),
    "a missing weight": ({"weights": weights_without("head.bias")}, "1 weights are missing, 'head.bias' first"),
    "a missing weight of no size": (
        {"weights": weights_without("encoder.empty")},
        "1 weights are missing, 'encoder.empty' first",
    ),
    "a renamed weight": (
        {"weights": weights_without("head.bias", head__bais=torch.zeros(3))},
        "1 weights are missing, 'head.bias' first",
    ),
    "one weight more": (
        {"weights": weights_with(head__bais=torch.zeros(3))},
        "'head.bais' is not a weight of this model, did you mean 'head.bias'?",
    ),
    "another shape": (
        {"weights": weights_with(head__bias=torch.zeros(4))},
        "'head.bias' is torch.float32 of shape (4,), expected torch.float32 of shape (3,)",
    ),
    "a shape that would broadcast": ({"weights": weights_with(head__bias=torch.zeros(1))}, "of shape (1,), expected"),
    "a shape with one axis more": (
        {"weights": weights_with(head__bias=torch.zeros(1, 3))},
        "of shape (1, 3), expected",
    ),
    "no numbers": ({"weights": weights_with(head__bias=torch.zeros(0))}, "of shape (0,), expected"),
    "another number of no numbers": (
        {"weights": weights_with(encoder__empty=torch.zeros(4, 0))},
        "of shape (4, 0), expected",
    ),
    "a wider type": (
        {"weights": weights_with(head__bias=torch.zeros(3, dtype=torch.float64))},
        "'head.bias' is torch.float64",
    ),
    "a counter that is a float": ({"weights": weights_with(encoder__steps=torch.tensor(5.0))}, "expected torch.int64"),
    "NaN": ({"weights": weights_with(head__bias=torch.tensor([0, nan, 0]))}, "'head.bias' holds NaN or infinite"),
    "infinity": ({"weights": weights_with(head__bias=torch.tensor([0, inf, 0]))}, "'head.bias' holds NaN or infinite"),
    "infinities that cancel out": (
        {"weights": weights_with(head__bias=torch.tensor([-inf, inf, 0]))},
        "'head.bias' holds NaN or infinite",
    ),
    "one value near the end of the numbers": (
        {"weights": weights_with(head__bias=torch.tensor([0, -3e38, 0]))},
        "'head.bias' holds a value of 3e+38, at most 1e+18 can be used",
    ),
    "a shared value near the end of the numbers": (
        {"shared": shared_with("style", mean=torch.tensor([0, 3e38]))},
        "component style shares a value of 3e+38 in 'mean', at most 1e+18 can be used",
    ),
    "an undeclared component": (
        {"shared": shared_with("odd", images=torch.zeros(1))},
        "component odd shares without declaring 'images'",
    ),
    "an undeclared component without tensors": ({"shared": shared_with("odd")}, "component odd is not declared"),
    "an undeclared tensor": (
        {"shared": shared_with("style", images=torch.zeros(1))},
        "component style shares without declaring 'images'",
    ),
    "nothing of a component": (
        {"shared": {"bank": SHARED["bank"]}},
        "component style declares but does not share 'gap'",
    ),
    "a tensor that was declared and is missing": (
        {"shared": shared_with("style", mean=None)},
        "component style declares but does not share 'mean'",
    ),
    "another width of prototypes": (
        {"shared": shared_with("bank", prototypes=torch.ones(2, 7))},
        "component bank shares 'prototypes' as torch.float32 of shape (2, 7), "
        "declared is torch.float32 of shape ('clusters', 4)",
    ),
    "prototypes without rows": (
        {"shared": shared_with("bank", prototypes=torch.ones(4))},
        "of shape (4,), declared is",
    ),
    "another type of prototypes": (
        {"shared": shared_with("bank", prototypes=torch.ones(2, 4).half())},
        "shares 'prototypes' as torch.float16",
    ),
    "NaN among prototypes": (
        {"shared": shared_with("bank", prototypes=torch.full((2, 4), nan))},
        "component bank shares NaN or infinite values in 'prototypes'",
    ),
    "more rows than are declared": (
        {"shared": shared_with("bank", prototypes=torch.ones(6, 4), classes=torch.zeros(6, dtype=torch.int64))},
        "component bank shares 6 rows in 'prototypes', at most 5 are declared",
    ),
    "a class that does not exist": (
        {"shared": shared_with("bank", classes=torch.tensor([0, 3]))},
        "component bank shares 'classes' with values outside 0 to 2",
    ),
    "a negative class": (
        {"shared": shared_with("bank", classes=torch.tensor([-1, 0]))},
        "component bank shares 'classes' with values outside 0 to 2",
    ),
    "sizes that disagree": (
        {"shared": shared_with("bank", classes=torch.tensor([0]))},
        "component bank shares 2 clusters in 'prototypes' and 1 in 'classes'",
    ),
}


@pytest.mark.parametrize(("changes", "words"), REFUSED.values(), ids=REFUSED)
def test_an_attack_is_refused_with_its_reason(changes: dict[str, Any], words: str) -> None:
    problem = problem_of(good_update(**changes))
    assert problem is not None
    assert words in problem


SHAPES = st.lists(st.integers(0, 4), max_size=4).map(tuple)


@given(SHAPES, SHAPES)
def test_only_the_expected_shape_is_accepted(sent: tuple[int, ...], expected: tuple[int, ...]) -> None:
    update = Update("a", 0, {"w": torch.zeros(sent)}, 1, 1)
    problem = update_problem(update, {"w": torch.zeros(expected)}, {}, 0)
    assert (problem is None) == (sent == expected)


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))
def test_sizes_of_run_time_are_free_but_agree(rows: int, others: int, width: int, declared_width: int) -> None:
    declared = {
        "c": (
            Shared("values", ("rows", declared_width), "", at_most=8),
            Shared("counts", ("rows",), "", torch.int64),
        )
    }
    shared = {"c": {"values": torch.zeros(rows, width), "counts": torch.zeros(others, dtype=torch.int64)}}
    problem = update_problem(Update("a", 0, {}, 1, 1, shared), {}, declared, 0)
    assert (problem is None) == (rows == others and width == declared_width and rows <= 8)


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 5), max_size=6), st.integers(1, 5))
def test_integers_stay_in_their_range(values: list[int], below: int) -> None:
    declared = {"c": (Shared("numbers", ("rows",), "", torch.int64, below=below),)}
    shared = {"c": {"numbers": torch.tensor(values, dtype=torch.int64)}}
    problem = update_problem(Update("a", 0, {}, 1, 1, shared), {}, declared, 0)
    assert (problem is None) == all(0 <= value < below for value in values)


@given(st.lists(st.floats(width=32) | st.sampled_from([3.4e38, -3.4e38]), max_size=8))
def test_finite_means_every_single_value(values: list[float]) -> None:
    tensor = torch.tensor(values, dtype=torch.float32)
    assert is_finite(tensor) == bool(torch.isfinite(tensor).all())
    assert is_finite(tensor.half()) == bool(torch.isfinite(tensor.half()).all())


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.uint8])
def test_integers_are_always_finite(dtype: torch.dtype) -> None:
    assert is_finite(torch.ones(3, dtype=dtype))


def test_declarations_of_shipped_methods_refuse_what_breaks_them(tmp_path: Path) -> None:
    """The same attacks against what components really declare."""
    contrast = tiny_server(tmp_path / "contrast", tiny_recipe("fedcontrast"))
    rows = {"prototypes": torch.ones(18, 256), "classes": torch.zeros(18, dtype=torch.long)}
    update = Update("south", 0, contrast.state.weights, 1, 1, {"prototype_contrast": rows})
    declared = {"prototype_contrast": contrast.declared["prototype_contrast"]}
    problem = update_problem(update, contrast.state.weights, declared, 0)
    assert "shares 18 rows in 'prototypes', at most 17 are declared" in str(problem)
    clusters = tiny_server(tmp_path / "clusters", tiny_recipe("fedplvm"))
    declared = {"local_clusters": clusters.declared["local_clusters"]}
    for prototypes, classes, words in [
        (torch.ones(2, 8), [0, 3], "'classes' with values outside 0 to 2"),
        (torch.ones(1, 8), [-1], "'classes' with values outside 0 to 2"),
        (torch.ones(2, 8), [0], "shares 2 clusters in 'prototypes' and 1 in"),
        (torch.ones(1, 7), [0], "declared is torch.float32 of shape"),
        (torch.full((1, 8), nan), [0], "NaN or infinite values in"),
    ]:
        shared = {"local_clusters": {"prototypes": prototypes, "classes": torch.tensor(classes)}}
        update = Update("south", 0, clusters.state.weights, 1, 1, shared)
        problem = update_problem(update, clusters.state.weights, declared, 0)
        assert words in str(problem)


def drop(update: Update, name: str) -> None:
    del update.weights[name]


ATTACKS: dict[str, Callable[[Update], object]] = {
    "NaN": lambda update: update.weights.update({"classifier.bias": torch.full((3,), nan)}),
    "infinity": lambda update: update.weights.update({"classifier.bias": torch.full((3,), inf)}),
    "shape": lambda update: update.weights.update({"classifier.bias": torch.zeros(4)}),
    "type": lambda update: update.weights.update({"classifier.bias": torch.zeros(3, dtype=torch.float64)}),
    "unknown": lambda update: update.weights.update({"classifier.bais": torch.zeros(3)}),
    "control characters": lambda update: update.weights.update({"\x1b[2J" + "x" * 10**6: torch.zeros(1)}),
    "missing": lambda update: drop(update, "classifier.bias"),
    "round": lambda update: setattr(update, "round", 7),
    "samples": lambda update: setattr(update, "samples", 10**400),
    "steps": lambda update: setattr(update, "steps", -1),
    "losses": lambda update: setattr(update, "losses", {"a\nb": 1.0}),
    "undeclared": lambda update: update.shared.update(odd={"images": torch.zeros(1)}),
    "empty component": lambda update: update.shared.update(odd={}),
}


def one_round(folder: Path, attack: Callable[[Update], object] | None) -> tuple[Tensors, Keeper]:
    """The weights after a round in which the answer of ``west`` is attacked, or never comes."""

    class Attacked(InProcess):
        def train(self, broadcast: Broadcast, sites: Sequence[str]) -> Iterator[Update | Failure]:
            for answer in super().train(broadcast, sites):
                if answer.site == "west":
                    if attack is None:
                        continue
                    attack(answer)  # type: ignore[arg-type]
                yield answer

    recipe = tiny_recipe(training={"local_epochs": 1}, evaluation={})
    server = tiny_server(folder, recipe, observer=(keeper := Keeper()), engine=Attacked)
    server.round()
    return server.state.weights, keeper


@pytest.fixture(scope="module")
def weights_without_west(tmp_path_factory: pytest.TempPathFactory) -> Tensors:
    return one_round(tmp_path_factory.mktemp("without"), None)[0]


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_a_refused_update_never_touches_the_global_weights(
    attack: Callable[[Update], object], weights_without_west: Tensors, tmp_path: Path
) -> None:
    weights, keeper = one_round(tmp_path, attack)
    ((number, site, reason),) = keeper.refusals
    assert (number, site) == (0, "west")
    assert reason.startswith("update refused: ")
    assert reason.isprintable()
    assert len(reason) <= 500
    assert_same(weights, weights_without_west)


ROW: dict[str, str | float] = {
    "site": "north", "case": "c1", "image": "i1", "class": "disc", "metric": "dice", "value": 0.5
}  # fmt: skip
STATISTICS = {"mean": 0.5, "sd": 0.1, "count": 5.0}


def scores(images: int = 1, dice: float = 0.5, stats: dict[str, Any] | None = None, **row: Any) -> Evaluation:
    return Evaluation("north", ROUND, images, dice, [{**ROW, **row}], stats or {})


@pytest.mark.parametrize(
    "evaluation",
    [
        scores(),
        scores(images=0, dice=nan, value=nan),
        scores(dice=0.0),
        scores(dice=1.0 + 1e-7),
        scores(value=1e12),
        scores(value=-1e12),
        scores(case="x" * 1000, image="ü/北"),
        scores(stats={"dice": STATISTICS, "hd95": dict.fromkeys(STATISTICS, nan)}),
        Evaluation("north", ROUND, 2**31 - 1, 0.5),
    ],
    ids=range(9),
)
def test_honest_scores_are_accepted(evaluation: Evaluation) -> None:
    assert scores_problem(evaluation) is None


@pytest.mark.parametrize(
    ("evaluation", "words"),
    [
        (scores(images=-1), "it counts -1 images"),
        (scores(images=2**31), "it counts too many images"),
        (scores(images=10**4000), "it counts too many images"),
        (scores(images=-(10**4000)), "it counts too many images"),
        (scores(dice=-0.5), "a mean Dice of -0.5"),
        (scores(dice=1.5), "a mean Dice of 1.5"),
        (scores(dice=inf), "a mean Dice of inf"),
        (scores(dice=-inf), "a mean Dice of -inf"),
        (Evaluation("north", ROUND, 1, 0.5, [{"value": 0.5}]), "a row must have site, case, image"),
        (scores(model="x"), "a row must have"),
        (scores(value="high"), "texts and a number"),
        (scores(value=1), "texts and a number"),
        (scores(case=1.0), "texts and a number"),
        (scores(site="south"), "it has a row of site 'south'"),
        (scores(case="a\rb"), "a name that is too long for a table, or not one line"),
        (scores(metric="a\x1b[2J"), "a name that is too long for a table, or not one line"),
        (scores(**{"class": "a\x00"}), "a name that is too long for a table, or not one line"),
        (scores(case="=cmd()"), "a formula to a spreadsheet"),
        (scores(case="\ud800"), "a name that is too long for a table, or not one line"),
        (scores(image="\x9b31mred"), "a name that is too long for a table, or not one line"),
        (scores(stats={"\ud800": STATISTICS}), "the statistics of '' must have count, mean, sd"),
        (scores(image="@SUM(A1)"), "a formula to a spreadsheet"),
        (scores(image="x" * 1001), "a name that is too long for a table, or not one line"),
        (scores(value=inf), "a row has the value inf"),
        (scores(value=-inf), "a row has the value -inf"),
        (scores(value=1.7e308), "a row has the value 1.7e+308"),
        (scores(value=-1.1e12), "a row has the value -1"),
        (scores(stats={"dice": {"mean": 0.5}}), "the statistics of 'dice' must have count, mean, sd"),
        (scores(stats={"dice": {**STATISTICS, "cases": 5.0}}), "the statistics of 'dice' must have count, mean, sd"),
        (scores(stats={"di\nce": STATISTICS}), "must have count, mean, sd"),
        (scores(stats={"dice": {**STATISTICS, "mean": 1e308}}), "hold a value that no mean can take"),
        (scores(stats={"dice": {**STATISTICS, "sd": inf}}), "hold a value that no mean can take"),
    ],
)
def test_scores_that_would_spoil_a_table_are_refused(evaluation: Evaluation, words: str) -> None:
    problem = scores_problem(evaluation)
    assert problem is not None
    assert words in problem


@given(st.text(st.characters(), max_size=20))
def test_what_fits_a_table_can_be_written_and_read_again(text: str) -> None:
    assume(fits_table(text))
    assert text.encode().decode() == text
    assert len(f"a{text}b".splitlines()) == 1


DESCRIPTION = Description("north", -1, {}, {"train": 3}, True, "0a", {"torch": "2.6.0+cpu"})


def test_an_honest_description_can_be_used() -> None:
    assert description_problem(DESCRIPTION) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"versions": {"torch": "\ud800"}}, "a text that no table can hold"),
        ({"versions": {"\x9b31m": "1"}}, "a text that no table can hold"),
        ({"split_sha256": "\ud800"}, "a text that no table can hold"),
        ({"images": {"\ud800": 1}}, "a text that no table can hold"),
        ({"images": {"train": -1}}, "it counts fewer than no images, or too many"),
        ({"images": {"train": 10**400}}, "it counts fewer than no images, or too many"),
        ({"versions": {f"package {number}": "1" for number in range(101)}}, "101 versions, at most 100"),
    ],
)
def test_a_description_that_no_file_can_hold_is_refused(changes: dict[str, Any], words: str) -> None:
    assert words in str(description_problem(replace(DESCRIPTION, **changes)))


def test_every_row_is_looked_at() -> None:
    rows = [dict(ROW), dict(ROW), {**ROW, "value": inf}]
    assert scores_problem(Evaluation("north", ROUND, 1, 0.5, rows)) == "a row has the value inf"


@given(st.text(st.characters(categories=["L", "N", "P"]), max_size=500))
def test_a_plain_line_stays_as_it_is(text: str) -> None:
    assume(" ".join(text.split()) == text)
    assert printable_line(text) == text


def test_a_line_loses_what_a_terminal_would_obey() -> None:
    assert printable_line("a\x1b[2Jb\r\nc\td\u202ee") == "a [2Jb c d e"


def test_prototypes_are_counted_by_rows_that_are_not_zero() -> None:
    tensors = {"prototypes": torch.tensor([[1.0, 0, 0, 0], [0, 0, 0, 0]]), "classes": torch.tensor([0, 1])}
    assert shared_amount(tensors, DECLARED["bank"]) == {"bytes": 2 * 4 * 4 + 2 * 8, "prototypes": 1}
    assert shared_amount(SHARED["style"], DECLARED["style"]) == {"bytes": 5 * 4 + 2 * 8}
