"""The desk of a site: a request comes in, the policy is asked, the site works, the audit log is written, it answers."""

from __future__ import annotations

import hashlib
import json
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from polyclinic.data.federation import Federation, Item, item_header
from polyclinic.data.imageset import ImageSet
from polyclinic.data.sitedata import SiteData
from polyclinic.engines.flower.blobs import decode, encode
from polyclinic.engines.flower.request import Request
from polyclinic.engines.flower.settings import SiteSettings
from polyclinic.engines.flower.wire import Blobs
from polyclinic.errors import PolyclinicError
from polyclinic.evaluation.protocols import ProtocolPart, site_part
from polyclinic.federation.audit import AuditLog
from polyclinic.federation.bench import Bench, build_bench
from polyclinic.federation.messages import (
    Broadcast,
    Description,
    Evaluation,
    Failure,
    Message,
    Update,
    tensor_bytes,
    to_tensors,
)
from polyclinic.federation.policy import (
    Policy,
    limited,
    load_policy,
    refusal_of_bytes,
    refusal_of_counts,
    refusal_of_method,
    refusal_of_plugins,
    refusal_of_privacy,
)
from polyclinic.federation.site import Site
from polyclinic.federation.store import SiteStore
from polyclinic.methods.expression import parse_method
from polyclinic.methods.registry import load_plugins
from polyclinic.recipe import Recipe
from polyclinic.recipe_files import make_recipe, parse_recipe
from polyclinic.runs.folder import versions
from polyclinic.runs.sites import open_for, prepare_items, require_training_data, site_data


class RefusedError(Exception):
    """The site's policy says no; the sentence goes to both ends."""


@dataclass
class _Open:
    """A recipe that the site works on, with everything that is worth keeping between messages."""

    text: str
    recipe: Recipe
    federation: Federation
    bench: Bench
    images: dict[tuple[Item, ...], ImageSet] = field(default_factory=dict)
    data: dict[str, SiteData] = field(default_factory=dict)


class Desk:
    """Answers requests one after another; keeps the recipe's network and images in memory between them."""

    def __init__(self, settings: SiteSettings, log: Callable[[str], None] = lambda _: None) -> None:
        self.settings, self.log = settings, log
        self.home = Path(settings.home)
        self.audit = AuditLog(self.home / "audit.jsonl")
        self._open: _Open | None = None

    def serve(self, blobs: Mapping[str, bytes], about: Any) -> tuple[Blobs, dict[str, Any]]:
        """The answer to whatever came, as it travels; what is no request gets a failure, and that is written down."""
        try:
            reply = self.answer(Request.from_tensors(decode(blobs), about))
        except PolyclinicError as error:
            self.log(str(error))
            reply = self._recorded("", "", Failure(self.settings.name, -1, str(error)))
        tensors, plain = to_tensors(reply)
        return encode(tensors), plain

    def answer(self, request: Request) -> Message:
        """The reply to a request. What goes wrong at a site is an answer too, in one sentence."""
        number, name = request.broadcast.round, self.settings.name
        try:
            reply = self._work(request)
        except RefusedError as refusal:
            reply = Failure(name, number, f"refused: {refusal}")
        except PolyclinicError as error:
            reply = Failure(name, number, self._outward(str(error)))
        except Exception as error:
            # The traceback names files of the hospital: it stays in the hospital's log.
            self.log(traceback.format_exc())
            said = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            reply = Failure(name, number, self._outward(said))
        self._tell(request, reply)
        return self._recorded(request.run, request.part, reply)

    def _outward(self, text: str) -> str:
        """What goes wrong in words for the server: those that name a file of the hospital stay in its log."""
        settings = self.settings
        for own in filter(None, (settings.policy, settings.home, settings.data, settings.encoder)):
            if own in text or str(Path(own).resolve()) in text:
                self.log(text)
                what = "policy" if own == settings.policy else "files"
                return f"something is wrong with the site's {what}, so nothing leaves; its log says what"
        return text

    def _work(self, request: Request) -> Message:
        policy = load_policy(Path(self.settings.policy) if self.settings.policy else None)
        opened = self._opened(request.recipe, policy)
        if request.act == "describe":
            return self._describe(opened, policy, request)
        _refuse(_refusal(opened.bench, policy))
        _require_model(opened.bench, request.broadcast)
        data = self._data(opened, request.part)
        site = Site(data, SiteStore(self.home / "runs" / request.run / request.part))
        if request.act == "evaluate":
            return limited(policy, site.evaluate(opened.bench, request.broadcast, request.split, request.detailed))
        require_training_data(data, opened.bench)
        _refuse(self._too_few(opened, data, policy))
        _refuse(refusal_of_privacy(policy, opened.bench.components, _releases(site.store) + 1))
        update = site.train(opened.bench, request.broadcast)
        _refuse(refusal_of_bytes(policy, update.bytes))
        return update

    def _opened(self, text: str, policy: Policy) -> _Open:
        """The recipe of a request with this site's own folder, device and encoder; built once."""
        if self._open is None or self._open.text != text:
            self._open = None  # the memory of the last one is free before the next one fills it
            recipe = make_recipe(self._at_home(parse_recipe(text, "the server's recipe")), "the server's recipe")
            _refuse(refusal_of_plugins(policy, recipe.plugins))
            load_plugins(recipe.plugins)
            parse_method(recipe.method)
            federation, resolved = open_for(recipe)
            # Units were settled for all sites together, whatever the files of this one know.
            resolved = resolved.model_copy(update={"evaluation": recipe.evaluation})
            self._open = _Open(text, resolved, federation, build_bench(resolved, federation.task))
        return self._open

    def _at_home(self, table: dict[str, Any]) -> dict[str, Any]:
        """What the hospital decides, not the server: where data lies, on which device, where an encoder's file is."""
        settings = self.settings
        for key in ("data", "network", "engine"):
            if not isinstance(table.get(key, {}), dict):
                raise PolyclinicError(f"the server's recipe: {key} = {table[key]!r} is not possible: it is a table.")
        data = {k: v for k, v in table.get("data", {}).items() if k != "cache"}
        data |= {"sites": [settings.name], "cache": str(self.home / "cache")}
        network = {k: v for k, v in table.get("network", {}).items() if k != "weights"}
        if "weights" in table.get("network", {}):
            network["weights"] = "random" if table["network"]["weights"] == "random" else settings.encoder
            if network["weights"] is None:
                raise PolyclinicError(
                    "the recipe needs the file of a pretrained encoder, and the site gave none; start the site with "
                    "--encoder FILE."
                )
        engine = {**table.get("engine", {}), "device": settings.device or "auto"}
        return {
            **table,
            "federation": settings.data,
            "data": data,
            "network": network,
            "engine": engine,
            "tracking": {},
        }

    def _data(self, opened: _Open, part_name: str) -> SiteData:
        """The site's prepared images for a part of the protocol; those of the last part serve again where they fit."""
        if part_name not in opened.data:
            part = self._part(opened, part_name)
            items = part.items(opened.federation, self.settings.name)
            if items not in opened.images:
                self.log(f"reading {len(items)} images")
                opened.images = {items: prepare_items(opened.federation, opened.recipe, items)}
            opened.data = {part_name: site_data(self.settings.name, opened.images[items], part)}
        return opened.data[part_name]

    def _part(self, opened: _Open, name: str) -> ProtocolPart:
        return site_part(opened.federation, opened.recipe, self.settings.name, name, opened.bench.method.all_labels)

    def _describe(self, opened: _Open, policy: Policy, request: Request) -> Description:
        federation, part = opened.federation, self._part(opened, request.part)
        items = federation.sites[self.settings.name]
        counts = {s: len(part.split.items(federation, self.settings.name, s)) for s in ("train", "val", "test")}
        header = item_header(items[0])
        spaced = header.affine is not None or federation.task.nominal_spacing(len(header.shape)) is not None
        # Through JSON, as it travels: tuples become lists on the way.
        task = json.loads(json.dumps({**asdict(federation.task), "volumes_as_slices": federation.volumes_as_slices}))
        return Description(
            self.settings.name, request.broadcast.round, task, counts, spaced,
            hashlib.sha256(part.split.to_csv().encode()).hexdigest(), versions(),
            refusal=_refusal(opened.bench, policy) or "",
        )  # fmt: skip

    def _too_few(self, opened: _Open, data: SiteData, policy: Policy) -> str | None:
        """Why too few images stand behind what would leave, or ``None``."""
        bench = opened.bench
        indices = data.training_indices(None if bench.learns_unlabelled else True)
        rows = any(one.prototypes for declared in bench.declared().values() for one in declared)
        by_class: dict[str, int] = {}
        if rows:
            found = torch.zeros(len(bench.task.classes), dtype=torch.long)
            for index in data.training_indices(True):
                present = torch.unique(data.images.batch(index[None])[1])
                found[present[present < len(found)].long()] += 1
            by_class = dict(zip(bench.task.classes, found.tolist(), strict=True))
        return refusal_of_counts(policy, len(indices), by_class, rows)

    def _recorded(self, run: str, part: str, reply: Message) -> Message:
        """Write the audit log first; what cannot be written down does not leave."""
        try:
            self.audit.add(run, part, *to_tensors(reply))
        except PolyclinicError as error:
            self.log(str(error))
            return Failure(self.settings.name, reply.round, "the site's audit log cannot be written")
        return reply

    def _tell(self, request: Request, reply: Message) -> None:
        number = request.broadcast.round + 1
        if isinstance(reply, Failure):
            self.log(f"round {number}: {reply.reason}" if number else f"{request.act}: {reply.reason}")
        elif isinstance(reply, Update):
            self.log(f"round {number}: trained in {reply.seconds:.1f} s, {reply.bytes / 2**20:.2f} MB leave")
        elif isinstance(reply, Evaluation):
            held = f" ({reply.note})" if reply.note else ""
            self.log(f"round {number}: {request.split} scored on {reply.images} images{held}")
        elif isinstance(reply, Description):
            said = f"will not take part: {reply.refusal}" if reply.refusal else "takes part"
            self.log(f"run {request.run}: {said}")


def _refusal(bench: Bench, policy: Policy) -> str | None:
    """Why a method may not run here, as far as that is known before it does."""
    return (
        refusal_of_plugins(policy, bench.recipe.plugins)
        or refusal_of_method(policy, bench.method.name, bench.declared())
        or refusal_of_privacy(policy, bench.components, bench.recipe.training.rounds)
        or refusal_of_bytes(policy, tensor_bytes(bench.initial_exchanged))
    )


def _require_model(bench: Bench, broadcast: Broadcast) -> None:
    """What a broadcast leaves out would stay as the last message left it."""
    missing = sorted(bench.exchanged - broadcast.weights.keys())
    if missing:
        raise PolyclinicError(f"the server's weights are not those of this model: '{missing[0]}' is missing")


def _releases(store: SiteStore) -> int:
    """Updates with noise that this run has had of the site, as its ledger counts them."""
    return len(store.ledgers().get("privacy", {}).get("releases", ()))


def _refuse(reason: str | None) -> None:
    if reason is not None:
        raise RefusedError(reason)
