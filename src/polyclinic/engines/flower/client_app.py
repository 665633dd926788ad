"""The Flower ClientApp: carries a message to the site's worker and the answer back. It holds no site and no torch."""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from polyclinic.engines.flower.reception import deliver
from polyclinic.engines.flower.wire import from_records, to_records

app = ClientApp()


def _answer(message: Message, context: Context) -> Message:
    return Message(to_records(*deliver(*from_records(message.content), context)), reply_to=message)


app.train()(_answer)
app.evaluate()(_answer)
app.query()(_answer)
