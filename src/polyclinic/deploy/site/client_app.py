"""The Flower ClientApp of a simulation. A site of a real federation has none: it speaks to the server itself."""

from __future__ import annotations

import sys
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from polyclinic.core.errors import PolyclinicError
from polyclinic.deploy.site.simulated_site import simulate_request
from polyclinic.engines.flower.records import from_records, to_records

app = ClientApp()


def _answer(message: Message, context: Context) -> Message:
    try:
        answer = simulate_request(*from_records(message.content), context)
    except PolyclinicError as error:
        answer = {}, _failure(str(error))
    except Exception as error:
        # Flower would send the text of the exception, which may hold paths or names of the site.
        print(f"the site's app failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        answer = {}, _failure(f"the site's app failed ({type(error).__name__}); its log says why")
    return Message(to_records(*answer), reply_to=message)


def _failure(reason: str) -> dict[str, Any]:
    """The same message that a site sends when a request fails."""
    return {"kind": "Failure", "site": "", "round": -1, "reason": reason}


app.train()(_answer)
app.evaluate()(_answer)
app.query()(_answer)
