"""Rounds over a network: waiting for sites to connect, and repeating a round that too few of them finished."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from polyclinic.federation.observer import Observer
from polyclinic.federation.recovery import NoQuorumError
from polyclinic.federation.server import Server

_POLL_SECONDS = 1.0
_RETRY_PAUSES = (5, 20, 60)  # in polls; so that a site can be mended or come back

OnlineSites = Callable[[], Sequence[str]]
"""Names of the sites that are connected now."""


def wait_for_sites(online: OnlineSites, sites: Sequence[str], quorum: int, patience: float, observer: Observer) -> None:
    """Wait for all sites, and after ``patience`` seconds only for a quorum, however long that takes."""
    started, last_text = time.monotonic(), ""
    while True:
        connected = [site for site in sites if site in online()]
        away = [site for site in sites if site not in connected]
        if not away or (len(connected) >= quorum and time.monotonic() - started >= patience):
            return
        text = f"waiting for {', '.join(away)} ({len(connected)} of {len(sites)} sites are there)"
        if text != last_text:
            observer.on_message(text)
            last_text = text
        time.sleep(_POLL_SECONDS)


def fit_with_retries(
    server: Server,
    reopen: Callable[[], Server],
    online: OnlineSites,
    check_round: Callable[[Server], None],
    observer: Observer,
) -> Server:
    """All rounds that are still to do; gives back the server that did the last one.

    A round below the quorum is repeated after a pause by a server from ``reopen``, which starts from the checkpoint;
    after the last pause its error is raised. ``check_round`` is called after each finished round.
    """
    failures = 0
    while not server.done:
        _wait_for_quorum(server, online, observer)
        try:
            server.round()
            failures = 0
            check_round(server)
        except NoQuorumError as error:
            failures += 1
            if failures > len(_RETRY_PAUSES):
                raise
            problem = str(error).partition("; mend")[0]
            pause = _POLL_SECONDS * _RETRY_PAUSES[failures - 1]
            observer.on_message(f"{problem}; in {pause:g} s it is repeated ({failures} of {len(_RETRY_PAUSES)}).")
            time.sleep(pause)
            server = reopen()
    return server


def _wait_for_quorum(server: Server, online: OnlineSites, observer: Observer) -> None:
    chosen, told = server.choose(server.state.round), False
    while len([site for site in chosen if site in online()]) < server.quorum:
        if not told:
            observer.on_message(f"waiting for {server.quorum} of {', '.join(chosen)} to be there")
        told = True
        time.sleep(_POLL_SECONDS)
