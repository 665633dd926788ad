"""The Flower ClientApp: carries a message to the site's worker and the answer back. It holds no site and no torch."""

from __future__ import annotations

import sys
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from polyclinic.core.errors import PolyclinicError
from polyclinic.deploy.site.worker_client import forward_request, own_name
from polyclinic.engines.flower.records import from_records, to_records

app = ClientApp()


def _answer(message: Message, context: Context) -> Message:
    try:
        answer = forward_request(*from_records(message.content), context)
    except PolyclinicError as error:
        answer = {}, _failure(str(error))
    except Exception as error:
        # Flower would send the text of the exception, which may name what is the hospital's alone.
        print(f"the site's app failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        answer = {}, _failure(f"the site's app failed ({type(error).__name__}); its log says why")
    return Message(to_records(*answer), reply_to=message)


def _failure(reason: str) -> dict[str, Any]:
    """As the worker would say it, had it been there."""
    return {"kind": "Failure", "site": own_name(), "round": -1, "reason": reason}


app.train()(_answer)
app.evaluate()(_answer)
app.query()(_answer)
