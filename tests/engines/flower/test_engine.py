"""The Flower engine over a grid that is simulated: late, lost, restarted and hostile sites."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import nan
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, RecordDict

from flower_support import FakeGrid, Fault, Info, Play, Reply, carried
from polyclinic.core.errors import PolyclinicError
from polyclinic.engines.flower import engine as module
from polyclinic.engines.flower.engine import FlowerEngine
from polyclinic.engines.flower.nodes import Nodes
from polyclinic.engines.flower.records import from_records, to_records
from polyclinic.exchange.messages import Broadcast, Description, Evaluation, Failure, Update
from polyclinic.exchange.receipts import Receipt
from polyclinic.exchange.request import Request
from polyclinic.federation.observer import Observer

SITES = ("east", "north", "south")
WEIGHTS = {"w": torch.arange(3.0), "n": torch.tensor(2)}


class Events(Observer):
    def __init__(self) -> None:
        self.statuses: list[tuple[int, str, str]] = []
        self.messages: list[str] = []

    def on_status(self, round_number: int, site: str, status: str) -> None:
        self.statuses.append((round_number, site, status))

    def on_message(self, text: str) -> None:
        self.messages.append(text)

    def last(self, site: str) -> str:
        return [status for _, name, status in self.statuses if name == site][-1]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_POLL", 0.01)
    monkeypatch.setattr(module, "_LAST_POLL", 0.02)
    monkeypatch.setattr(module, "_REFRESH_INTERVAL", 0.03)


def trained(site: str) -> Play:
    """A site that gives back the weights it got, and one more."""

    def play(request: Request) -> Reply:
        weights = {name: tensor + 1 for name, tensor in request.broadcast.weights.items()}
        return carried(Update(site, request.broadcast.round, weights, 5, 6))

    return play


def later(pulls: int, play: Play) -> Play:
    """Silence first."""
    left = [pulls]

    def wait(request: Request) -> Reply | None:
        left[0] -= 1
        return play(request) if left[0] < 0 else None

    return wait


def silent(_: Request) -> None:
    return None


def engine_of(
    plays: dict[str, Play], deadline: float | None = 5.0, grace: float = 0.0, limit: int = 2**20, **grid: Any
) -> FlowerEngine:
    played = FakeGrid(plays, **grid)
    nodes = Nodes(played, SITES)  # type: ignore[arg-type]
    return FlowerEngine(played, nodes, "run", "all", "seed = 1", limit, deadline, grace, Events())  # type: ignore[arg-type]


def all_trained(**changed: Play) -> dict[str, Play]:
    return {site: changed.get(site) or trained(site) for site in SITES}


def train(engine: FlowerEngine) -> dict[str, Update | Failure]:
    answers = list(engine.train(Broadcast(3, WEIGHTS), SITES))
    assert [answer.site for answer in answers] == list(SITES)
    return {answer.site: answer for answer in answers}


def reason(answer: object) -> str:
    assert isinstance(answer, Failure), answer
    assert (answer.round, answer.details) == (3, "")
    return answer.reason


def grid_of(engine: FlowerEngine) -> Any:
    return engine.grid


def events_of(engine: FlowerEngine) -> Events:
    assert isinstance(engine.observer, Events)
    return engine.observer


def test_every_site_gets_the_request_and_answers() -> None:
    engine = engine_of(all_trained())
    answers = train(engine)
    for site in SITES:
        answer = answers[site]
        assert isinstance(answer, Update)
        assert torch.equal(answer.weights["w"], WEIGHTS["w"] + 1)
        assert (answer.weights["n"].dtype, answer.samples) == (torch.int64, 5)
        assert [status for _, own, status in events_of(engine).statuses if own == site] == ["training", "done"]
    assert [site for site, _ in grid_of(engine).pushed] == list(SITES)
    assert {message.metadata.message_type for _, message in grid_of(engine).pushed} == {"train"}
    assert {message.metadata.ttl for _, message in grid_of(engine).pushed} == {5.0}


def test_answers_come_in_the_order_of_the_sites_whatever_the_order_of_replies() -> None:
    order: list[str] = []

    def noted(site: str) -> Play:
        def play(request: Request) -> Reply:
            order.append(site)
            return trained(site)(request)

        return play

    plays = {"east": later(8, noted("east")), "north": later(4, noted("north")), "south": noted("south")}
    answers = train(engine_of(plays))
    assert order == ["south", "north", "east"]
    assert all(isinstance(answer, Update) for answer in answers.values())


def test_an_answer_that_waits_while_the_server_is_busy_is_not_late() -> None:
    """The deadline is the site's: what has come is taken, however long the server needs for the one before."""
    engine = engine_of(all_trained(), deadline=1.5)
    answers = []
    for answer in engine.train(Broadcast(3, WEIGHTS), SITES):
        answers.append(answer)
        time.sleep(2.0 if len(answers) == 1 else 0)
    assert [type(answer) for answer in answers] == [Update, Update, Update]


def test_a_silent_site_is_late_and_the_others_are_not() -> None:
    engine = engine_of(all_trained(north=silent), deadline=1.0)
    answers = train(engine)
    assert reason(answers["north"]) == "is late: no answer within the deadline of 1 s"
    assert isinstance(answers["east"], Update)
    assert isinstance(answers["south"], Update)
    assert events_of(engine).last("north") == "late"
    time.sleep(0.3)  # whoever was about to look has looked
    pulls = grid_of(engine).pulls
    time.sleep(0.3)
    assert grid_of(engine).pulls == pulls, "nobody waits for it any more"


def test_a_late_site_does_not_cost_the_deadline_again_in_the_validation() -> None:
    engine = engine_of(all_trained(north=silent), deadline=1.0)
    train(engine)
    plays = {site: validated(site) for site in ("east", "south")}
    grid_of(engine).plays |= {**plays, "north": silent}
    asked = len(grid_of(engine).pushed)
    answers = list(engine.evaluate(Broadcast(3, WEIGHTS), SITES, "val", detailed=False))
    assert [answer.site for answer in answers] == list(SITES)
    assert reason(answers[1]) == "was late in this round's training, so it is not asked"
    assert all(isinstance(answer, Evaluation) for answer in (answers[0], answers[2]))
    assert [site for site, _ in grid_of(engine).pushed[asked:]] == ["east", "south"]
    grid_of(engine).plays["north"] = validated("north")
    later_round = list(engine.evaluate(Broadcast(4, WEIGHTS), SITES, "val", detailed=False))
    assert all(isinstance(answer, Evaluation) for answer in later_round), "it is asked again in the next round"
    assert isinstance(list(engine.evaluate(Broadcast(3, WEIGHTS), SITES, "test", detailed=True))[1], Evaluation)


def validated(site: str) -> Play:
    return lambda request: carried(Evaluation(site, request.broadcast.round, 1, 0.5))


def test_without_a_deadline_a_slow_site_is_waited_for() -> None:
    assert isinstance(train(engine_of(all_trained(north=later(20, trained("north"))), deadline=None))["north"], Update)


def test_a_site_that_is_not_connected_is_a_failure_at_once() -> None:
    plays = all_trained()
    del plays["east"]
    engine = engine_of(plays)
    answers = train(engine)
    assert reason(answers["east"]) == "is not connected"
    assert events_of(engine).last("east") == "away"
    assert isinstance(answers["south"], Update)


def test_nodes_that_are_no_site_of_the_run_are_not_asked() -> None:
    nodes = {name: Info(number, name) for number, name in enumerate((*SITES, "stranger", ""), start=1)}
    engine = engine_of(all_trained(), nodes=nodes)
    assert all(isinstance(answer, Update) for answer in train(engine).values())
    assert {site for site, _ in grid_of(engine).pushed} == set(SITES)
    assert engine.online() == SITES


def test_a_message_that_cannot_be_sent_is_a_failure() -> None:
    answers = train(engine_of(all_trained(), unsendable={"south"}))
    assert "could not be sent its message" in reason(answers["south"])
    assert isinstance(answers["east"], Update)


def vanishing(grid: list[FakeGrid], site: str) -> Callable[[int], None]:
    def on_pull(number: int) -> None:
        if number > 6:
            grid[0].nodes.pop(site, None)

    return on_pull


def test_a_site_that_goes_away_for_good_is_a_failure_after_its_grace() -> None:
    for grace in (0.0, 0.2):
        held: list[FakeGrid] = []
        engine = engine_of(all_trained(north=silent), 20.0, grace, on_pull=vanishing(held, "north"))
        held.append(grid_of(engine))
        answers = train(engine)
        assert reason(answers["north"]) == "went away during the round"
        assert isinstance(answers["south"], Update)
        assert events_of(engine).last("north") == "away"


def test_a_site_that_restarted_gets_its_task_again() -> None:
    """A new activation of a node does not have the messages of the one before."""
    held: list[FakeGrid] = []
    sent_to: list[str] = []

    def north(request: Request) -> Reply | None:
        activation = held[0].nodes["north"].last_activated_at
        sent_to.append(activation)
        return trained("north")(request) if activation == "second" else None

    def on_pull(number: int) -> None:
        if number == 8:
            held[0].nodes["north"] = Info(2, "north", "second")

    engine = engine_of(all_trained(north=north), 20.0, on_pull=on_pull)
    held.append(grid_of(engine))
    answers = train(engine)
    assert isinstance(answers["north"], Update)
    assert [site for site, _ in held[0].pushed] == [*SITES, "north"]
    assert any("north is back" in text for text in events_of(engine).messages)
    assert events_of(engine).last("north") == "done"


def test_a_site_that_is_away_for_a_moment_is_waited_for() -> None:
    held: list[FakeGrid] = []

    def on_pull(number: int) -> None:
        if number == 6:
            held[0].nodes.pop("north", None)
        if number == 12:
            held[0].nodes["north"] = Info(9, "north", "second")

    def north(request: Request) -> Reply | None:
        return trained("north")(request) if held[0].nodes["north"].node_id == 9 else None

    # The two others answer only after that, so that there is somebody to pull for.
    plays = {"east": later(15, trained("east")), "north": north, "south": later(15, trained("south"))}
    engine = engine_of(plays, 20.0, 5.0, on_pull=on_pull)
    held.append(grid_of(engine))
    assert all(isinstance(answer, Update) for answer in train(engine).values())


def test_an_answer_of_the_activation_before_is_not_taken_twice() -> None:
    engine = engine_of(all_trained())
    exchange = module._Exchange(engine, engine._request("train", Broadcast(3, WEIGHTS)), SITES)
    exchange.replies.put(("east", "an older message", carried(Update("east", 3, {}, 99, 1))))  # type: ignore[arg-type]
    answer = exchange.answer_of("east")
    assert isinstance(answer, Update)
    assert answer.samples == 5


def flower_error(_: Request) -> Reply:
    return Reply(error=Fault(0, "Traceback:\n  File 'x'\nValueError: \x1b[31mred\x1b[0m"))


def with_(message: Any) -> Play:
    return lambda request: carried(message)


ROW = {"site": "north", "case": "1", "image": "1", "class": "disc", "metric": "dice", "value": 0.5}


@pytest.mark.parametrize(
    ("play", "words"),
    [
        (flower_error, "its app failed: Traceback: File 'x' ValueError: [31mred [0m"),
        (lambda _: Reply(error=Fault(7)), "its app failed: 7"),
        (lambda _: Reply(RecordDict({})), "cannot be read: it holds no plain data"),
        (lambda _: Reply(RecordDict({"about": ConfigRecord({"json": "[" * 10**5})})), "cannot be read"),
        (lambda _: Reply(to_records({}, {"kind": "Evil"})), "cannot be read: A message of kind 'Evil'"),
        (lambda _: Reply(to_records({"weights": b"garbage"}, {"kind": "Update"})), "not in the safetensors format"),
        (lambda _: Reply(to_records({"weights": b"x" * 2**21}, {})), "bytes of tensors, at most 1048576"),
        (with_(Update("south", 3, {}, 1, 1)), "answered as 'south'"),
        (with_(Broadcast(3, {})), "answered as 'the server'"),
        (with_(Evaluation("north", 3, 1, 0.5)), "sent a Evaluation as its answer"),
        (with_(Description("north", 3, {})), "sent a Description as its answer"),
        (with_(Failure("north", -1, "refused: the policy", "a\ntraceback")), "refused: the policy"),
        (with_(Failure("south", 3, "not mine")), "answered as 'south'"),
    ],
)
def test_a_bad_answer_is_a_failure_of_its_sender_alone(play: Play, words: str) -> None:
    engine = engine_of(all_trained(north=play))
    answers = train(engine)
    assert words in reason(answers["north"])
    assert isinstance(answers["east"], Update)
    assert isinstance(answers["south"], Update)
    assert events_of(engine).last("north") == ("refused" if "refused" in words else "failed")


def test_whatever_reading_an_answer_raises_is_a_failure_of_its_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: object) -> Any:
        raise RecursionError("too deep")

    monkeypatch.setattr(module, "from_tensors", read)
    answers = train(engine_of(all_trained()))
    assert all(reason(answer) == "sent an answer that cannot be read: too deep" for answer in answers.values())


def test_a_header_that_promises_impossible_sizes_is_a_failure_of_its_sender() -> None:
    import json
    import struct

    header = json.dumps({"a": {"dtype": "F32", "shape": [0, 2**40, 2**40], "data_offsets": [0, 0]}}).encode()
    blob = struct.pack("<Q", len(header)) + header
    about = {"kind": "Update", "site": "north", "round": 3, "samples": 1, "steps": 1}
    answers = train(engine_of(all_trained(north=lambda _: Reply(to_records({"weights": blob}, about)))))
    assert "not in the safetensors format" in reason(answers["north"])


def test_what_a_site_says_is_one_short_line() -> None:
    text = "refused: \x1b[2J\n" + "x" * 10**6
    answers = train(engine_of(all_trained(north=with_(Failure("north", 3, text, "y" * 10**6)))))
    assert len(reason(answers["north"])) == 500
    assert reason(answers["north"]).isprintable()


def test_an_error_of_the_grid_is_a_failure_and_not_an_endless_wait() -> None:
    def broken(_: Request) -> Reply:
        raise ConnectionError("the SuperLink hangs up")

    answers = train(engine_of(all_trained(north=broken)))
    assert "could not be fetched (ConnectionError: the SuperLink hangs up)" in reason(answers["north"])
    assert isinstance(answers["south"], Update)


def evaluate(engine: FlowerEngine) -> dict[str, Evaluation | Failure]:
    answers = list(engine.evaluate(Broadcast(3, WEIGHTS), SITES, "test", detailed=True))
    return {answer.site: answer for answer in answers}


def scored(site: str) -> Play:
    def play(request: Request) -> Reply:
        assert (request.act, request.split, request.detailed) == ("evaluate", "test", True)
        note = "scores of 2 images are held back\x1b" if site == "south" else ""
        return carried(Evaluation(site, 3, 1, 0.5, [{**ROW, "site": site}], note=note))

    return play


def test_scores_come_back_and_notes_are_told() -> None:
    engine = engine_of({site: scored(site) for site in SITES})
    answers = evaluate(engine)
    assert answers["north"] == Evaluation("north", 3, 1, 0.5, [ROW])
    assert events_of(engine).messages == ["south: scores of 2 images are held back"]


@pytest.mark.parametrize(
    ("scores", "words"),
    [
        (Evaluation("north", 3, 1, 0.5, [{**ROW, "site": "south"}]), "it has a row of site 'south'"),
        (Evaluation("north", 3, 1, 0.5, [{"value": 0.5}]), "a row must have site, case, image"),
        (Evaluation("north", 3, 1, 0.5, [{**ROW, "value": "high"}]), "texts and a number"),
        (Evaluation("north", 3, 1, 0.5, [{**ROW, "case": 1.0}]), "texts and a number"),
        (Evaluation("north", 3, 1, 0.5, [{**ROW, "model": "x"}]), "a row must have"),
        (Evaluation("north", 3, 1, 0.5, stats={"dice": {"mean": 0.5}}), "statistics of 'dice' must have count, mean"),
        (Evaluation("north", 3, 1, float("inf")), "a mean Dice of inf"),
        (Evaluation("north", 3, 1, -0.5), "a mean Dice of -0.5"),
        (Evaluation("north", 3, 1, 1.5), "a mean Dice of 1.5"),
        (Evaluation("north", 3, -1, 0.5), "it counts -1 images"),
        (Evaluation("north", 3, 10**4000, 0.5), "it counts too many images"),
        # Each of these once ended the whole run: in the sum over cases, or where the table was read back.
        (Evaluation("north", 3, 1, 0.5, [{**ROW, "value": 1.7e308}]), "a row has the value 1.7e+308"),
        (Evaluation("north", 3, 1, 0.5, [{**ROW, "value": float("-inf")}]), "a row has the value -inf"),
        (
            Evaluation("north", 3, 1, 0.5, [{**ROW, "case": "a\rb"}]),
            "a name that is too long for a table, or not one line",
        ),
        (Evaluation("north", 3, 1, 0.5, [{**ROW, "image": "x" * 200_000}]), "a name that is too long for a table"),
        (Evaluation("north", 3, 5, 0.5, stats={"dice": {"mean": 1e308, "sd": 0.0, "count": 5.0}}), "no mean can take"),
        (Evaluation("north", 3, 5, 0.5, stats={"di\nce": {"mean": 0.5, "sd": 0.0, "count": 5.0}}), "must have count"),
    ],
)
def test_scores_that_would_spoil_a_table_are_refused(scores: Evaluation, words: str) -> None:
    answers = evaluate(engine_of({**{site: scored(site) for site in SITES}, "north": with_(scores)}))
    assert reason(answers["north"]).startswith("sent scores that cannot be used: ")
    assert words in reason(answers["north"])


NOTHING = {"mean": nan, "sd": nan, "count": 0.0}


@pytest.mark.parametrize(
    "scores",
    [
        Evaluation("north", 3, 0, nan),
        Evaluation("north", 3, 2, nan, [{**ROW, "value": nan}]),
        Evaluation("north", 3, 5, 1.0, stats={"dice": NOTHING}),
    ],
)
def test_scores_of_nothing_are_taken(scores: Evaluation) -> None:
    answers = evaluate(engine_of({**{site: scored(site) for site in SITES}, "north": with_(scores)}))
    assert repr(answers["north"]) == repr(scores)


def test_sites_describe_themselves_before_any_weight_leaves() -> None:
    def described(site: str) -> Play:
        def play(request: Request) -> Reply:
            assert (request.act, request.broadcast.weights, request.broadcast.round) == ("describe", {}, -1)
            return carried(Description(site, -1, {"channels": 1}, refusal="no\nway" if site == "south" else ""))

        return play

    engine = engine_of({site: described(site) for site in SITES})
    answers = list(engine.describe(SITES))
    assert [answer.refusal for answer in answers if isinstance(answer, Description)] == ["", "", "no way"]
    assert {message.metadata.message_type for _, message in grid_of(engine).pushed} == {"query"}


def test_personal_weights_do_not_travel() -> None:
    with pytest.raises(PolyclinicError, match="would carry its personal weights out of it"):
        engine_of(all_trained()).model(Broadcast(0, {}), "north")


def with_plain(play: Play, **plain: Any) -> Play:
    """A site that writes more beside its answer."""

    def answer(request: Request) -> Reply:
        reply = play(request)
        assert reply is not None
        blobs, about = from_records(reply.content)
        return Reply(to_records(blobs, {**about, **plain}))

    return answer


def test_a_receipt_is_taken_off_and_kept_under_the_name_of_its_sender() -> None:
    receipt = {"lines": 7, "sha256": "ab" * 32}
    engine = engine_of(all_trained(north=with_plain(trained("north"), receipt=receipt)))
    kept: list[tuple[str, Receipt]] = []
    engine.on_receipt = lambda site, given: kept.append((site, given))
    assert all(isinstance(answer, Update) for answer in train(engine).values()), "a site without one is an older one"
    assert kept == [("north", Receipt(7, "ab" * 32))]


@pytest.mark.parametrize("receipt", [None, [], {"lines": "7", "sha256": "ab" * 32}, {"lines": 7, "sha256": "<script>"}])
def test_a_forged_receipt_is_a_failure_of_its_sender(receipt: Any) -> None:
    engine = engine_of(all_trained(north=with_plain(trained("north"), receipt=receipt)))
    kept: list[str] = []
    engine.on_receipt = lambda site, _: kept.append(site)
    answers = train(engine)
    assert "its receipt is not a number of lines and a SHA-256" in reason(answers["north"])
    assert isinstance(answers["south"], Update)
    assert kept == []


def test_a_site_gives_no_receipt_in_the_name_of_another() -> None:
    receipt = {"lines": 7, "sha256": "ab" * 32}
    engine = engine_of(all_trained(north=with_plain(trained("south"), receipt=receipt)))
    kept: list[str] = []
    engine.on_receipt = lambda site, _: kept.append(site)
    assert "answered as 'south'" in reason(train(engine)["north"])
    assert kept == []
