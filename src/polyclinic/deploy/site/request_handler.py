"""The request handler of a site: checks a request against the policy, does it, and logs the answer before it leaves."""

from __future__ import annotations

import hmac
import re
import secrets
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import write_private, write_text
from polyclinic.core.version import installed_versions
from polyclinic.data.federation import Federation, Item, item_header
from polyclinic.data.federation_file import read_federation_file
from polyclinic.data.formats import stem_of
from polyclinic.data.imageset import ImageSet
from polyclinic.data.sitedata import SiteData
from polyclinic.deploy.keys.signatures import KeyFile
from polyclinic.deploy.site.admission import (
    RefusedError,
    refusal,
    refuse,
    require_model,
    require_task,
    task_of,
    too_few,
)
from polyclinic.deploy.site.privacy_ledger import PrivacyLedger, Spending
from polyclinic.deploy.site.run_recipe import RunRecipe
from polyclinic.deploy.site.settings import SiteSettings
from polyclinic.evaluation.protocols import ProtocolPart, site_part
from polyclinic.exchange.audit import AuditLog
from polyclinic.exchange.messages import (
    Description,
    Evaluation,
    Failure,
    Message,
    Update,
    to_tensors,
)
from polyclinic.exchange.receipts import Receipt, with_receipt
from polyclinic.exchange.request import Request
from polyclinic.exchange.serialization import decode, encode
from polyclinic.exchange.tensor_names import Blobs
from polyclinic.federation.site import Site
from polyclinic.federation.site_policy import (
    Policy,
    limited,
    load_policy,
    privacy_of,
    refusal_of_bytes,
    refusal_of_plugins,
    refusal_of_privacy,
    refusal_of_recipe,
)
from polyclinic.federation.site_store import SiteStore
from polyclinic.federation.workspace import Workspace
from polyclinic.recipe import Recipe
from polyclinic.recipe.changes import with_changes
from polyclinic.recipe.files import make_recipe, parse_recipe
from polyclinic.recipe.fingerprint import AskedRecipe, read_asked
from polyclinic.runs.part_scoring import require_spacing
from polyclinic.runs.plan import plan_run, prepare_items, require_training_data, site_data

_CHANNEL_SUFFIX = re.compile(r"_\d{4}$")  # a file's name is that of its image and the number of the channel
_SHORTEST_NAME = 3  # letters from which the name of an image can identify a patient


@dataclass
class _OpenRecipe:
    """A recipe with what was built for it and is used again for later requests: federation, network, images."""

    text: str
    recipe: Recipe
    federation: Federation
    workspace: Workspace
    images: dict[tuple[Item, ...], ImageSet] = field(default_factory=dict)
    data: dict[str, SiteData] = field(default_factory=dict)


class RequestHandler:
    """Answers requests one after another; the recipe's network and images stay in memory between them."""

    def __init__(self, settings: SiteSettings, log: Callable[[str], None] = lambda _: None) -> None:
        self.settings, self.log = settings, log
        self.home = Path(settings.home)
        signer = KeyFile(Path(settings.key)) if settings.key else None
        self.audit = AuditLog(self.home / "audit.jsonl", signer)
        self.privacy = PrivacyLedger(self.home)
        self._open: _OpenRecipe | None = None
        self._asked_recipe: AskedRecipe | None = None
        self._receipt: Receipt | None = None
        self.device_failed = False

    def serve(self, blobs: Mapping[str, bytes], about: Any) -> tuple[Blobs, dict[str, Any]]:
        """Answer a request as it travels; an invalid request gets a failure, which is logged like any answer."""
        try:
            reply = self.answer(Request.from_tensors(decode(blobs), about))
        except PolyclinicError as error:
            self.log(str(error))
            asked = read_asked(about.get("recipe") if isinstance(about, Mapping) else None)
            reply = self._audited(Request("", "", "", ""), asked, Failure(self.settings.name, -1, str(error)))  # type: ignore[arg-type]
        tensors, plain = to_tensors(reply)
        return encode(tensors), with_receipt(plain, self._receipt) if self._receipt else plain

    def answer(self, request: Request) -> Message:
        """The reply to a request; an error at the site becomes a failure with one sentence."""
        number, name = request.broadcast.round, self.settings.name
        asked = self._asked(request.recipe)
        try:
            reply = self._work(request, asked)
        except RefusedError as reason:
            reply = Failure(name, number, f"refused: {reason}")
        except PolyclinicError as error:
            reply = Failure(name, number, self._without_names(str(error)))
        except Exception as error:
            # The traceback names files of the site: it stays in the site's log.
            self.log(traceback.format_exc())
            # After an error of CUDA every later call of this process fails too.
            self.device_failed = isinstance(error, RuntimeError) and "CUDA" in str(error)
            sentence = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            reply = Failure(name, number, self._without_names(sentence))
        self._log_reply(request, reply)
        return self._audited(request, asked, reply)

    def _without_names(self, text: str) -> str:
        """An error's sentence for the server; one that names a file or an image of the site stays in the site's log."""
        settings = self.settings
        paths = list(filter(None, (settings.policy, settings.home, settings.data, settings.encoder)))
        named_path = next((path for path in paths if path in text or str(Path(path).resolve()) in text), None)
        if named_path is None and not self._names_an_image(text):
            return text
        self.log(text)
        what = "policy" if named_path is not None and named_path == settings.policy else "files"
        return f"something is wrong with the site's {what}, so nothing leaves; its log says what"

    def _names_an_image(self, text: str) -> bool:
        """Whether a sentence holds the name of an image (often that of a patient) without its folder."""
        files = [path for path in (Path(self.settings.data) / self.settings.name).rglob("*") if path.is_file()]
        stems = {stem_of(path) for path in files}
        names = {path.name for path in files} | stems | {_CHANNEL_SUFFIX.sub("", stem) for stem in stems}
        candidates = (name for name in names if len(name) >= _SHORTEST_NAME and name in text)
        return any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) for name in candidates)

    def _asked(self, text: str) -> AskedRecipe:
        """The recipe of a request with its fingerprint, computed once."""
        if self._asked_recipe is None or self._asked_recipe.text != text:
            self._asked_recipe = read_asked(text)
        return self._asked_recipe

    def _work(self, request: Request, asked: AskedRecipe) -> Message:
        if request.site and request.site != self.settings.name:
            raise PolyclinicError(
                f"the coordinator knows this site's key as '{request.site}', and the site calls itself "
                f"'{self.settings.name}'; start it with --name {request.site}"
            )
        policy = load_policy(Path(self.settings.policy) if self.settings.policy else None)
        refuse(refusal_of_recipe(policy, asked.sha256))
        run_recipe = RunRecipe(self.home / "runs" / request.run)
        run_recipe.require(asked)
        opened = self._opened(request.recipe, policy)
        if request.act == "describe":
            description = self._describe(opened, policy, request)
            if not description.refusal:
                run_recipe.remember(asked)
            return description
        refuse(refusal(opened.workspace, policy, self._spending(policy, request.run)))
        require_task(opened.federation, request.task)
        require_model(opened.workspace, request.broadcast)
        run_recipe.remember(asked)
        run = self.home / "runs" / request.run
        self._require_same_split(opened, request.part, run / request.part / "split.mark")
        data = self._data(opened, request.part)
        site = Site(data, SiteStore(run / request.part))
        if request.act == "evaluate":
            require_spacing(data, opened.recipe)
            scores = site.evaluate(opened.workspace, request.broadcast, request.split, request.detailed)
            cases = {data.images.samples[int(index)].case for index in data.labelled_indices(request.split)}
            return limited(policy, scores, len(cases))
        require_training_data(data, opened.workspace)
        refuse(too_few(opened.workspace, data, policy))
        self._check_privacy(opened, policy, request, will_release=True)
        update = site.train(opened.workspace, request.broadcast)
        if privacy_of(opened.workspace.components) is not None:
            ledger = site.store.ledgers().get("privacy", {})
            self.privacy.enter(request.run, request.part, update.round, asked.sha256, ledger)
        # A repeated round gives the update of before and spends nothing; only now does the ledger tell.
        self._check_privacy(opened, policy, request, will_release=False)
        refuse(refusal_of_bytes(policy, update.bytes))
        return update

    def _spending(self, policy: Policy, run: str) -> Spending:
        """What privacy has spent in all runs; without a limit it does not matter."""
        return Spending() if policy.max_epsilon is None else self.privacy.spending(run)

    def _check_privacy(self, opened: _OpenRecipe, policy: Policy, request: Request, will_release: bool) -> None:
        """Refuse an update that the limit of all runs does not allow, before it is made or before it leaves."""
        if policy.max_epsilon is not None:
            new = will_release and not self.privacy.holds(request.run, request.part, request.broadcast.round)
            spent = self._spending(policy, request.run).noises
            refuse(refusal_of_privacy(policy, opened.workspace.components, spent, int(new)))

    def _opened(self, text: str, policy: Policy) -> _OpenRecipe:
        """The recipe of a request with this site's own folder, device and encoder; built once."""
        if self._open is None or self._open.text != text:
            self._open = None  # frees the memory of the last recipe before the next one needs it
            origin = "the server's recipe"
            recipe = make_recipe(self._with_local_settings(parse_recipe(text, origin)), origin)
            refuse(refusal_of_plugins(policy, recipe.plugins))
            plan = plan_run(recipe)
            # Units were agreed on for all sites, whatever the files of this site say.
            plan = replace(plan, recipe=with_changes(plan.recipe, {"evaluation": recipe.evaluation}))
            self._open = _OpenRecipe(text, plan.recipe, plan.federation, plan.open_workspace())
        return self._open

    def _with_local_settings(self, table: dict[str, Any]) -> dict[str, Any]:
        """The server's recipe with what the site decides: folder of the data, cache, device, file of the encoder."""
        settings = self.settings
        for key in ("data", "network", "engine"):
            if not isinstance(table.get(key, {}), dict):
                raise PolyclinicError(f"the server's recipe: {key} = {table[key]!r} is not possible: it is a table.")
        data = {k: v for k, v in table.get("data", {}).items() if k != "cache"}
        if read_federation_file(Path(settings.data) / "federation.toml").case_pattern is not None:
            data.pop("case_pattern", None)  # the site's own pattern wins over the server's
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

    def _data(self, opened: _OpenRecipe, part_name: str) -> SiteData:
        """The site's prepared images for a part of the protocol; images of the last part are reused if possible."""
        if part_name not in opened.data:
            part = self._part(opened, part_name)
            items = part.items(opened.federation, self.settings.name)
            if items not in opened.images:
                self.log(f"reading {len(items)} images")
                opened.images = {items: prepare_items(opened.federation, opened.recipe, items)}
            opened.data = {part_name: site_data(self.settings.name, opened.images[items], part)}
        return opened.data[part_name]

    def _part(self, opened: _OpenRecipe, name: str) -> ProtocolPart:
        return site_part(opened.federation, opened.recipe, self.settings.name, name, opened.workspace.method.all_labels)

    def _describe(self, opened: _OpenRecipe, policy: Policy, request: Request) -> Description:
        federation, part = opened.federation, self._part(opened, request.part)
        items = federation.sites[self.settings.name]
        counts = {s: len(part.split.items(federation, self.settings.name, s)) for s in ("train", "val", "test")}
        header = item_header(items[0])
        spaced = header.affine is not None or federation.task.nominal_spacing(len(header.shape)) is not None
        return Description(
            self.settings.name, request.broadcast.round, task_of(federation), counts, spaced,
            self._fingerprint(part.split.to_csv()), installed_versions(),
            refusal=refusal(opened.workspace, policy, self._spending(policy, request.run)) or "",
        )  # fmt: skip

    def _require_same_split(self, opened: _OpenRecipe, part: str, file: Path) -> None:
        """Raise if files or cases changed within a run: an image that was trained on could be tested on later."""
        fingerprint = self._fingerprint(self._part(opened, part).split.to_csv())
        if not file.exists():
            write_text(file, fingerprint)
        elif file.read_text(encoding="utf-8") != fingerprint:
            raise PolyclinicError(
                "the site's images, cases or labels have changed since this run began; restore them, or start a new run"
            )

    def _fingerprint(self, text: str) -> str:
        """HMAC-SHA-256 that tells the server whether a split is still the same; the secret prevents guessing names."""
        secret = self.home / "mark.secret"
        if not secret.exists():
            write_private(secret, secrets.token_bytes(32))
        return hmac.new(secret.read_bytes(), text.encode(), "sha256").hexdigest()

    def _audited(self, request: Request, asked: AskedRecipe, reply: Message) -> Message:
        """Write a reply to the audit log; one that cannot be logged does not leave."""
        about = {"act": request.act, **asked.audit_fields()}
        self._receipt = None
        try:
            self.audit.add(request.run, request.part, *to_tensors(reply), about)
            self._receipt = self.audit.receipt
        except PolyclinicError as error:
            self.log(str(error))
            return Failure(self.settings.name, reply.round, "the site's audit log cannot be written")
        return reply

    def _log_reply(self, request: Request, reply: Message) -> None:
        number = request.broadcast.round + 1
        if isinstance(reply, Failure):
            self.log(f"round {number}: {reply.reason}" if number else f"{request.act}: {reply.reason}")
        elif isinstance(reply, Update):
            self.log(f"round {number}: trained in {reply.seconds:.1f} s, {reply.bytes / 1e6:.2f} MB leave")
        elif isinstance(reply, Evaluation):
            note = f" ({reply.note})" if reply.note else ""
            self.log(f"round {number}: {request.split} scored on {reply.images} images{note}")
        elif isinstance(reply, Description):
            decision = f"will not take part: {reply.refusal}" if reply.refusal else "takes part"
            self.log(f"run {request.run}: {decision}")
