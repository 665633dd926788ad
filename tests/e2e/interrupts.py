"""Children of tests that get a Ctrl-C."""

from __future__ import annotations

import signal


def heed_interrupts() -> None:
    """For ``preexec_fn``: a background job ignores SIGINT, and a child would inherit that from the tests."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
