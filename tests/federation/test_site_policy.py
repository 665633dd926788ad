from __future__ import annotations

import json
from math import isnan, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyclinic.components.base import Context
from polyclinic.core.errors import PolyclinicError
from polyclinic.core.memory import physical_memory
from polyclinic.evaluation.aggregate import summarise
from polyclinic.exchange.declarations import Shared
from polyclinic.exchange.messages import Evaluation, to_tensors
from polyclinic.federation.site_policy import (
    Policy,
    limited,
    load_policy,
    refusal_of_bytes,
    refusal_of_counts,
    refusal_of_method,
    refusal_of_plugins,
    refusal_of_privacy,
    statistics,
)
from polyclinic.methods.expression import parse_method
from support import tiny_task

DECLARED = {"cdpa": (Shared("prototypes", (3, 8), "class means"), Shared("counts", (3,), "numbers"))}


def policy_of(tmp_path: Path, text: str) -> Policy:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    return load_policy(path)


def test_every_key_is_read(tmp_path: Path) -> None:
    policy = policy_of(
        tmp_path,
        """
        methods = ["fedavg", "fedprox*"]
        shared = ["cdpa/*"]
        plugins = ["ours"]
        minimum_images = 9
        per_case_metrics = "named"
        split = "own"
        max_mb_per_round = 1.5
        max_steps_per_round = 10
        max_seconds_per_round = 20
        max_memory_gb = 30
        max_home_gb = 40
        keep_runs_days = 50.5
        require_privacy = true
        max_epsilon = 9
        """,
    )
    assert policy == Policy(
        methods=("fedavg", "fedprox*"), shared=("cdpa/*",), plugins=("ours",), minimum_images=9,
        per_case_metrics="named", split="own", max_mb_per_round=1.5, require_privacy=True, max_epsilon=9,
        max_steps_per_round=10, max_seconds_per_round=20, max_memory_gb=30, max_home_gb=40, keep_runs_days=50.5,
    )  # fmt: skip
    assert policy.memory_bytes == 30e9
    assert set(policy.model_dump()) == set(Policy.model_fields)


def test_without_a_file_the_defaults_let_no_case_out(tmp_path: Path) -> None:
    assert load_policy(None) == Policy() == policy_of(tmp_path, "")
    assert (Policy().per_case_metrics, Policy().minimum_images, Policy().plugins) == ("no", 5, ())


def test_without_a_file_the_work_is_bounded() -> None:
    policy = Policy()
    assert (policy.split, policy.max_steps_per_round, policy.max_seconds_per_round) == ("recipe", 100_000, 86_400)
    assert (policy.max_home_gb, policy.keep_runs_days) == (50, 90)
    assert 0 < policy.memory_bytes < physical_memory()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("method = ['fedavg']", "unknown key 'method', did you mean 'methods'?"),
        ("colour = 1", "unknown key 'colour'; keys of a policy: methods, shared"),
        ("methods = 'fedavg'", "methods = 'fedavg'; it must be a list"),
        ("methods = [1]", "methods: 1; it must be text"),
        ("minimum_images = 0", "minimum_images = 0; it must be greater than or equal to 1"),
        ("minimum_images = 1.5", "minimum_images = 1.5; it must be a whole number"),
        ("split = 'mine'", "split = 'mine'; it must be"),
        ("max_steps_per_round = 0", "max_steps_per_round = 0; it must be greater than or equal to 1"),
        ("max_steps_per_round = 1.5", "max_steps_per_round = 1.5; it must be a whole number"),
        ("max_seconds_per_round = 0", "max_seconds_per_round = 0; it must be greater than 0"),
        ("max_memory_gb = inf", "max_memory_gb = inf; it must be"),
        ("max_home_gb = -1", "max_home_gb = -1; it must be greater than 0"),
        ("keep_runs_days = 'ever'", "keep_runs_days = 'ever'; it must be a number"),
        ("minimum_images = true", "minimum_images = True; it must be a whole number"),
        ("minimum_images = '5'", "minimum_images = '5'; it must be a whole number"),
        ("per_case_metrics = 'all'", "per_case_metrics = 'all'; it must be 'no', 'numbered' or 'named'"),
        ("per_case_metrics = false", "per_case_metrics = False"),
        ("max_mb_per_round = 0", "max_mb_per_round = 0; it must be greater than 0"),
        ("max_mb_per_round = nan", "max_mb_per_round = nan; it must be"),
        ("require_privacy = 'no'", "require_privacy = 'no'; it must be true or false"),
        ("require_privacy = maybe", "not a readable TOML file"),
        ("[methods]\na = 1", "methods = {'a': 1}"),
    ],
)
def test_a_wrong_policy_gets_a_sentence(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(PolyclinicError) as caught:
        policy_of(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path / 'policy.toml'}: ")
    assert words in str(caught.value)


def test_a_policy_that_cannot_be_read_is_no_permission(tmp_path: Path) -> None:
    (tmp_path / "latin.toml").write_bytes(b"# K\xf6ln\n")
    for path in (tmp_path / "missing.toml", tmp_path, tmp_path / "latin.toml"):
        with pytest.raises(PolyclinicError, match="or nothing leaves"):
            load_policy(path)


@pytest.mark.parametrize(
    ("pattern", "method", "allowed"),
    [
        ("*", "fedavg+proximal(mu=0.1)", True),
        ("fedavg", "fedavg", True),
        ("fedavg", "fedavg+proximal(mu=0.1)", False),
        ("fedavg", "FedAvg", False),
        ("fedavg+*", "fedavg+proximal(mu=0.1)", True),
        ("fedavg+*", "fedavg", False),
        ("fed*", "central", False),
        ("fedavg+proximal(mu=0.1)", "fedavg+proximal(mu=0.1)", True),
        ("fedavg+proximal(mu=0.1)", "fedavg+proximal(mu=0.2)", False),
        ("fedavg+proximal(mu=0.?)", "fedavg+proximal(mu=0.2)", True),
        ("fedavg + proximal(mu = 0.1)", "fedavg+proximal(mu=0.1)", True),
        ("fedavg+fsr(taps=[encoder1,encoder2])", "fedavg+fsr(taps=[encoder1,encoder2])", True),
        ("fedavg+fsr(taps=[encoder1,encoder2])", "fedavg+fsr(taps=e)", False),
        ("fed[ab]vg", "fedavg", False),
        ("fedavg+fsr(taps=[*])", "fedavg+fsr(taps=[encoder1])", True),
    ],
)
def test_methods_are_named_literally_or_by_patterns(pattern: str, method: str, allowed: bool) -> None:
    reason = refusal_of_method(Policy(methods=("none", pattern)), method, {})
    assert (reason is None) == allowed
    if reason is not None:
        assert f"does not allow the method {method}" in reason


@pytest.mark.parametrize(
    ("patterns", "refused"),
    [(("*",), None), (("cdpa/*",), None), (("cdpa/prototypes", "cdpa/counts"), None), (("cdpa/p*",), "cdpa/counts"),
     (("other/*",), "cdpa/prototypes"), ((), "cdpa/prototypes"), (("cdpa",), "cdpa/prototypes")],
)  # fmt: skip
def test_shared_tensors_leave_only_if_a_pattern_names_them(patterns: tuple[str, ...], refused: str | None) -> None:
    reason = refusal_of_method(Policy(shared=patterns), "fedbcs", DECLARED)
    assert (reason is None) == (refused is None)
    assert refused is None or f"does not let {refused} leave" in str(reason)


PICTURES = {"fedmix": (Shared("images", ("means", 1, 8, 8), "means of 5 images", pictures_of=5),)}


@pytest.mark.parametrize(
    ("patterns", "images", "words"),
    [
        (("*",), 5, "does not let fedmix/images leave"),
        (("*/images",), 5, "does not let fedmix/images leave"),
        (("fedm*/*",), 5, "does not let fedmix/images leave"),
        (("*", "fedmix/*"), 5, None),
        (("fedmix/images",), 5, None),
        (("fedmix/*",), 6, "would be the mean of 5 images, the site's policy asks for 6"),
    ],
)
def test_averaged_images_leave_only_by_name_and_of_enough_cases(
    patterns: tuple[str, ...], images: int, words: str | None
) -> None:
    reason = refusal_of_method(Policy(shared=patterns, minimum_images=images), "fedmix", PICTURES)
    assert (reason is None) == (words is None)
    assert words is None or words in str(reason)


def test_privacy_can_be_asked_for() -> None:
    policy = Policy(require_privacy=True, max_epsilon=9)
    for method, fine in {
        "fedavg": False,
        "fedavg+privacy": True,
        "fedavg+privacy(noise=0)": False,
        "fedavg+privacy(seeded=true)": False,
        "fedavg+privacy(uncovered=allow)": False,
    }.items():
        components = parse_method(method).build(Context(tiny_task()))
        assert (refusal_of_privacy(policy, components, [], 1) is None) == fine, method
        assert refusal_of_privacy(Policy(), components, [], 1) is None


def test_an_epsilon_is_measured_with_the_sites_own_delta() -> None:
    """Noise 1 spends about 4.9 in a release at delta 1e-5, whatever delta the server names."""
    components = parse_method("fedavg+privacy(noise=1,delta=0.5)").build(Context(tiny_task()))
    assert refusal_of_privacy(Policy(max_epsilon=5), components, [], 1) is None
    assert refusal_of_privacy(Policy(max_epsilon=5), components, [1.0], 0) is None
    assert "max_epsilon" in str(refusal_of_privacy(Policy(max_epsilon=4), components, [], 1))
    assert "2 updates would spend" in str(refusal_of_privacy(Policy(max_epsilon=5), components, [], 2))
    assert "2 updates would spend" in str(refusal_of_privacy(Policy(max_epsilon=5), components, [1.0], 1))
    assert "does not know" in str(refusal_of_privacy(Policy(max_epsilon=99), components, [1.0, None], 1))
    assert "does not have" in str(refusal_of_privacy(Policy(max_epsilon=5), [], [], 1))
    assert "says not how much" in str(refusal_of_privacy(Policy(require_privacy=True), components, [], 1))


def test_privacy_without_a_limit_of_epsilon_is_a_mistake_in_the_policy(tmp_path: Path) -> None:
    """A noise of 1e-12 was privacy enough."""
    (tmp_path / "policy.toml").write_text("require_privacy = true\n")
    with pytest.raises(PolyclinicError, match=r"policy\.toml: require_privacy = true without max_epsilon"):
        load_policy(tmp_path / "policy.toml")
    (tmp_path / "policy.toml").write_text("require_privacy = true\nmax_epsilon = 3\n")
    assert load_policy(tmp_path / "policy.toml").max_epsilon == 3


def test_only_plugins_that_the_site_names_are_loaded() -> None:
    assert refusal_of_plugins(Policy(), ()) is None
    assert "does not allow the plugin theirs" in str(refusal_of_plugins(Policy(plugins=("ours",)), ("ours", "theirs")))
    assert refusal_of_plugins(Policy(plugins=("ours",)), ("ours",)) is None
    assert refusal_of_plugins(Policy(plugins=("*",)), ("theirs",)) is not None  # names, no patterns


def test_too_few_images_behind_an_update() -> None:
    policy = Policy(minimum_images=5)
    assert refusal_of_counts(policy, 5, {}, False) is None
    assert "rests on 4 images, the site's policy asks for 5" in str(refusal_of_counts(policy, 4, {}, False))


def test_too_few_images_behind_the_prototype_of_a_class() -> None:
    policy, counts = Policy(minimum_images=5), {"background": 9, "disc": 4, "core": 2, "absent": 0}
    assert refusal_of_counts(policy, 9, counts, rows=False) is None
    assert "class 'core' would rest on 2 images" in str(refusal_of_counts(policy, 9, counts, rows=True))
    assert refusal_of_counts(policy, 9, {"disc": 5, "absent": 0}, rows=True) is None


def test_megabytes_of_a_round() -> None:
    assert refusal_of_bytes(Policy(), 2**40) is None
    assert refusal_of_bytes(Policy(max_mb_per_round=2), 2_000_000) is None
    assert "3.0 MB would leave this round, the site's policy allows 2" in str(
        refusal_of_bytes(Policy(max_mb_per_round=2), 3_000_000)
    )


def row(case: str, image: str, name: str, metric: str, value: float) -> dict[str, Any]:
    return {"site": "north", "case": case, "image": image, "class": name, "metric": metric, "value": value}


ROWS = [
    row(f"Mueller-{case}", f"Mueller-{case}-slice{image}", name, metric, 0.05 * case + 0.01 * image + 0.1 * number)
    for case in range(6)
    for image in range(1 + case % 2)
    for number, name in enumerate(("disc", "core"))
    for metric in ("dice", "hd95")
]


def scores(rows: list[dict[str, Any]]) -> Evaluation:
    return Evaluation("north", 3, len({r["image"] for r in rows}), 0.5, rows)


def naive(rows: list[dict[str, Any]], metric: str, name: str | None = None) -> np.ndarray:
    """A value a case: the mean over images of the mean over classes."""
    own = [r for r in rows if r["metric"] == metric and name in (None, r["class"])]
    by_case: dict[str, dict[str, list[float]]] = {}
    for one in own:
        by_case.setdefault(one["case"], {}).setdefault(one["image"], []).append(one["value"])
    return np.array([np.mean([np.mean(values) for values in images.values()]) for images in by_case.values()])


@pytest.mark.parametrize("kind", ["no", "numbered", "named"])
def test_a_mean_over_the_slices_of_one_case_is_a_value_of_that_case(kind: Any) -> None:
    policy, quick = Policy(minimum_images=5, per_case_metrics=kind), Evaluation("north", 3, 30, 0.5)
    assert limited(policy, quick, cases=5) == quick
    held = limited(policy, quick, cases=4)
    if kind == "no":
        assert (held.images, isnan(held.dice)) == (0, True)
        assert held.note == "scores of 4 cases are held back, the policy asks for 5"
    else:
        assert held == quick


def test_statistics_are_those_of_numpy_and_of_the_summary() -> None:
    found = statistics(ROWS)
    assert found.keys() == {m + c for m in ("dice", "hd95") for c in ("", "/disc", "/core")}
    for key, numbers in found.items():
        metric, _, name = key.partition("/")
        values = naive(ROWS, metric, name or None)
        assert numbers["count"] == len(values) == 6
        assert numbers["mean"] == pytest.approx(values.mean(), abs=1e-12)
        assert numbers["sd"] == pytest.approx(values.std(ddof=1), abs=1e-12)
    means = summarise(ROWS)[0]["north"]  # type: ignore[arg-type]
    assert {key: numbers["mean"] for key, numbers in found.items()} == means


@given(st.lists(st.floats(0, 1) | st.just(nan), min_size=1, max_size=8))
def test_statistics_leave_nan_out(values: list[float]) -> None:
    rows = [row(str(i), str(i), "disc", "dice", value) for i, value in enumerate(values)]
    known = np.array([value for value in values if not isnan(value)])
    (numbers,) = statistics(rows).values()
    assert numbers["count"] == len(known)
    assert isnan(numbers["mean"]) if not len(known) else numbers["mean"] == pytest.approx(known.mean(), abs=1e-12)
    assert isnan(numbers["sd"]) if len(known) < 2 else numbers["sd"] == pytest.approx(known.std(ddof=1), abs=1e-9)


def test_no_gives_statistics_and_nothing_of_any_case() -> None:
    reply = limited(Policy(), scores(ROWS))
    assert (reply.rows, reply.images, reply.dice, reply.note) == ([], 9, 0.5, "")
    assert reply.stats == statistics(ROWS)
    assert "Mueller" not in json.dumps(to_tensors(reply)[1])
    assert "slice" not in json.dumps(to_tensors(reply)[1])


def test_numbered_gives_values_without_names() -> None:
    reply = limited(Policy(per_case_metrics="numbered"), scores(ROWS))
    text = json.dumps(to_tensors(reply)[1])
    assert "Mueller" not in text
    assert "slice" not in text
    assert [r["value"] for r in reply.rows] == [r["value"] for r in ROWS]
    assert summarise(reply.rows) == summarise(ROWS)  # type: ignore[arg-type]
    assert len({r["case"] for r in reply.rows}) == 6
    assert len({r["image"] for r in reply.rows}) == 9
    assert ROWS[0]["case"] == "Mueller-0"  # the site's own rows are as they were


def test_two_cases_with_images_of_one_name_stay_two() -> None:
    rows = [row(case, "slice0", "disc", "dice", value) for case, value in (("a", 0.1), ("b", 0.9))]
    reply = limited(Policy(per_case_metrics="numbered", minimum_images=1), scores(rows))
    assert [(r["case"], r["image"]) for r in reply.rows] == [("case-1", "image-1"), ("case-2", "image-2")]


def test_named_gives_all() -> None:
    assert limited(Policy(per_case_metrics="named"), scores(ROWS)).rows == ROWS


@pytest.mark.parametrize("kind", ["no", "numbered", "named"])
def test_scores_of_too_few_images_are_held_back(kind: Any) -> None:
    policy = Policy(minimum_images=10, per_case_metrics=kind)
    reply = limited(policy, scores(ROWS))
    assert (reply.rows, reply.stats, reply.images) == ([], {}, 0)
    assert isnan(reply.dice)
    assert reply.note == "scores of 9 images are held back, the policy asks for 10"


def test_a_validation_score_of_enough_images_leaves_and_of_none_too() -> None:
    for images, dice in ((5, 0.5), (0, nan)):
        plain = Evaluation("north", 3, images, dice)
        assert limited(Policy(), plain) is plain


def test_statistics_that_rest_on_too_few_cases_stay() -> None:
    """A class that only one case has: its mean is the value of that case."""
    rows = [row(str(i), str(i), "disc", "dice", 0.1 * i) for i in range(6)]
    rows += [row(str(i), str(i), "core", "dice", 0.25 if i == 3 else nan) for i in range(6)]
    reply = limited(Policy(minimum_images=5), scores(rows))
    assert reply.stats.keys() == {"dice/disc"}, "the mean over classes would give it back"
    assert limited(Policy(minimum_images=1), scores(rows)).stats["dice/core"]["mean"] == 0.25


def test_many_slices_of_few_cases_are_held_back() -> None:
    rows = [row(case, f"{case}-{i}", "disc", "dice", 0.5) for case in "ab" for i in range(10)]
    reply = limited(Policy(minimum_images=5), scores(rows))
    assert (reply.stats, reply.images) == ({}, 0)
    assert reply.note == "scores of 2 cases are held back, the policy asks for 5"


def test_a_class_that_is_held_back_does_not_come_back_through_the_means_over_all_classes() -> None:
    rows: list[dict[str, Any]] = [
        {"site": "s", "case": str(n), "image": str(n), "class": "a", "metric": metric, "value": 0.5 + 0.01 * n}
        for n in range(6) for metric in ("dice", "iou")
    ]  # fmt: skip
    rare = {"site": "s", "case": "0", "image": "0", "class": "b", "metric": "dice", "value": 0.123}
    left = limited(Policy(minimum_images=5), Evaluation("s", 0, 6, 0.47, [*rows, rare]), 6)
    assert set(left.stats) == {"dice/a", "iou"}
    assert isnan(left.dice)
    assert limited(Policy(minimum_images=5), Evaluation("s", 0, 6, 0.47, rows), 6).dice == 0.47
