"""The pool of workers, with workers that only echo: order, window, and blocks, without any training."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from functools import partial

import pytest
import torch

from polyclinic.core.errors import PolyclinicError
from polyclinic.engines.workers.channel import Channel
from polyclinic.engines.workers.pool import Job, WorkerPool
from polyclinic.engines.workers.process import WorkerProcess, fork_worker
from polyclinic.engines.workers.schedule import Expected
from polyclinic.engines.workers.shared_block import SharedBlock
from polyclinic.exchange.messages import Update, to_tensors

SITES = [f"site{number:02d}" for number in range(12)]


def echo(channel: Channel) -> None:
    """Answers with a tensor that says which site was asked for."""
    blocks: dict[int, SharedBlock] = {}
    while True:
        try:
            request, descriptors = channel.receive()
        except (EOFError, ConnectionResetError):
            return
        blocks |= {n: SharedBlock(d) for n, d in zip(request["new"], descriptors, strict=True)}
        if request["site"] == "broken":
            channel.send({"error": "this machine is full."})
            continue
        number = float(request["site"].removeprefix("site"))
        blocks[request["answer"]].write(*to_tensors(Update(request["site"], 0, {"w": torch.full((4,), number)}, 1, 1)))
        channel.send({"unsaved": None, "seconds": 0.01})


@pytest.fixture
def pool():  # type: ignore[no-untyped-def]
    pool = WorkerPool(3, partial(fork_worker, echo), message_bytes=2**29, say=lambda _: None)
    yield pool
    pool.stop()


def job_of(pool: WorkerPool) -> Job:
    job = Job("train", pool.new_block(), Expected(lambda site: int(site[-1])))
    pool.blocks[job.broadcast].write({}, {})
    return job


def test_answers_keep_the_order_whatever_starts_first(pool: WorkerPool) -> None:
    started: list[str] = []
    answers = list(pool.run(job_of(pool), SITES, started.append))
    assert [answer.site for answer in answers] == SITES
    assert [float(answer.weights["w"][0]) for answer in answers] == list(range(12))  # type: ignore[union-attr]
    assert sorted(started) == SITES
    assert started != SITES


def test_no_worker_runs_further_ahead_than_the_window(pool: WorkerPool) -> None:
    """Answers of half a gigabyte: the window is the smallest, two sites a worker and two more."""
    started: list[str] = []
    for taken, _ in enumerate(pool.run(job_of(pool), SITES, started.append)):
        assert max(SITES.index(site) for site in started) <= taken + 2 * pool.count + 2


def test_blocks_are_used_again_once_their_tensors_are_gone(pool: WorkerPool) -> None:
    job = job_of(pool)
    for _ in range(5):
        for _answer in pool.run(job, SITES, lambda _: None):
            pass
    assert len(pool.blocks) <= 2 + 2 * pool.count + 2
    held = list(pool.run(job, SITES, lambda _: None))
    again = list(pool.run(job, SITES[::-1], lambda _: None))
    assert [float(answer.weights["w"][0]) for answer in held] == list(range(12)), "nothing was written over"  # type: ignore[union-attr]
    assert len(again) == 12


def test_an_error_of_this_machine_ends_the_work_and_the_workers(pool: WorkerPool) -> None:
    job = Job("train", pool.new_block(), Expected(lambda _: 1))
    with pytest.raises(PolyclinicError, match="this machine is full"):
        list(pool.run(job, ["broken"], lambda _: None))
    assert pool.workers == []
    assert [answer.site for answer in pool.run(job_of(pool), SITES[:2], lambda _: None)] == SITES[:2]


def test_whoever_stops_listening_ends_the_workers(pool: WorkerPool) -> None:
    answers = pool.run(job_of(pool), SITES, lambda _: None)
    next(answers)
    answers.close()  # type: ignore[attr-defined]
    assert pool.workers == []


def test_workers_are_numbered_and_a_new_one_takes_the_free_number(pool: WorkerPool) -> None:
    list(pool.run(job_of(pool), SITES, lambda _: None))
    numbers = [worker.number for worker in pool.workers]
    assert sorted(numbers) == [0, 1, 2]
    os.kill(pool.workers[1].pid, signal.SIGKILL)
    answers = list(pool.run(job_of(pool), SITES, lambda _: None))
    assert [answer.site for answer in answers] == SITES
    assert sorted(worker.number for worker in pool.workers) == [0, 1, 2]
    others: Sequence[WorkerProcess] = pool.workers
    assert len({worker.pid for worker in others}) == 3
