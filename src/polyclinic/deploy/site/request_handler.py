"""The request handler of a site: checks a request against the policy, does it, and logs the answer before it leaves."""

from __future__ import annotations

import hmac
import secrets
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import write_private, write_text
from polyclinic.core.version import installed_versions
from polyclinic.core.wording import MB, printable_line
from polyclinic.data.build_imageset import is_cached, prepared_bytes
from polyclinic.data.federation import Federation, Item, item_header
from polyclinic.data.imageset import ImageSet, Sample
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
    too_few_drawn,
)
from polyclinic.deploy.site.case_sets import CaseSets, scored_samples
from polyclinic.deploy.site.disk_limits import tidy_home
from polyclinic.deploy.site.hidden_names import without_names
from polyclinic.deploy.site.local_recipe import with_local_settings
from polyclinic.deploy.site.privacy_ledger import PrivacyLedger, Spending
from polyclinic.deploy.site.recipe_checks import refusal_before_data
from polyclinic.deploy.site.run_recipe import RunRecipe
from polyclinic.deploy.site.settings import SiteSettings
from polyclinic.deploy.site.work_limits import refusal_of_images, refusal_of_training
from polyclinic.evaluation.protocols import ProtocolPart, site_part, split_files
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
    refusal_of_privacy,
    refusal_of_recipe,
)
from polyclinic.federation.site_store import SiteStore
from polyclinic.federation.workspace import Workspace
from polyclinic.recipe import Recipe
from polyclinic.recipe.changes import with_changes
from polyclinic.recipe.files import make_recipe, parse_recipe
from polyclinic.recipe.fingerprint import LONGEST_RECIPE, AskedRecipe, read_asked
from polyclinic.runs.part_scoring import require_spacing
from polyclinic.runs.plan import plan_run, prepare_items, require_training_data, site_data


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

    def __init__(
        self, settings: SiteSettings, log: Callable[[str], None] = lambda _: None, processes: int | None = None
    ) -> None:
        self.settings, self.log, self.processes = settings, log, processes
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
            self.log(printable_line(str(error)))
            asked = read_asked(about.get("recipe") if isinstance(about, Mapping) else None)
            failure = Failure(self.settings.name, -1, printable_line(str(error)))
            reply = self._audited(Request("", "", "", ""), asked, failure)  # type: ignore[arg-type]
        tensors, plain = to_tensors(reply)
        return encode(tensors), with_receipt(plain, self._receipt) if self._receipt else plain

    def answer(self, request: Request) -> Message:
        """The reply to a request; an error at the site becomes a failure with one sentence."""
        number, name = request.broadcast.round, self.settings.name
        asked = self._asked(request.recipe)
        try:
            reply = self._work(request, asked)
        except RefusedError as reason:
            reply = Failure(name, number, printable_line(f"refused: {reason}"))
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
        return printable_line(without_names(text, self.settings, self.log))

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
        refuse(tidy_home(self.home, policy, request.run, self.log))
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
        part = self._part(opened, request.part, policy)
        self._require_same_split(part, run / request.part / "split.mark")
        data = self._data(opened, part, policy, request.run)
        # The server of sites elsewhere has a round's checkpoint on disk before it asks for the next.
        site = Site(data, SiteStore(run / request.part, newest=3))
        if request.act == "evaluate":
            require_spacing(data, opened.recipe)
            scores = site.evaluate(opened.workspace, request.broadcast, request.split, request.detailed)
            samples = scored_samples(opened.workspace, data, request.split)
            scores = limited(policy, scores, len({sample.case for sample in samples[""]}))
            return self._for_new_cases(policy, scores, samples)
        require_training_data(data, opened.workspace)
        refuse(too_few(opened.workspace, data, policy))
        refuse(refusal_of_training(policy, opened.workspace, data))
        self._check_privacy(opened, policy, request, will_release=True)
        sets = self._case_sets()
        # A site with a minimum of 1 lets single cases out: it compares nothing, and remembers nothing.
        compares = policy.minimum_images > 1
        used = sets.of_training(opened.workspace, data, request.broadcast.round) if compares else {}
        refuse(too_few_drawn(opened.workspace, data, policy, request.broadcast.round))
        sets.check(used, policy.minimum_images)
        update = site.train(opened.workspace, request.broadcast)
        if privacy_of(opened.workspace.components) is not None:
            ledger = site.store.ledgers().get("privacy", {})
            self.privacy.enter(request.run, request.part, update.round, asked.sha256, ledger)
        # A repeated round gives the update of before and spends nothing; only now does the ledger tell.
        self._check_privacy(opened, policy, request, will_release=False)
        refuse(refusal_of_bytes(policy, update.bytes))
        sets.remember(used)
        return update

    def _case_sets(self) -> CaseSets:
        return CaseSets(self.home / "case_sets.json", self._secret())

    def _for_new_cases(self, policy: Policy, scores: Evaluation, samples: Mapping[str, list[Sample]]) -> Evaluation:
        """Scores as they may leave, if their cases are those of an earlier answer or enough others."""
        if not scores.images or policy.minimum_images == 1:  # all is held back, or single cases may leave
            return scores
        sets = self._case_sets()
        used = sets.of_scores(samples)
        # Where values of single cases may leave, subtracting means tells nothing more.
        sets.check(used, policy.minimum_images if policy.per_case_metrics == "no" else 1)
        sets.remember(used)
        return scores

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
            if len(text) > LONGEST_RECIPE:
                raise PolyclinicError(f"{origin}: has {len(text)} characters, a site reads up to {LONGEST_RECIPE}.")
            recipe = make_recipe(with_local_settings(parse_recipe(text, origin), self.settings, self.log), origin)
            refuse(refusal_before_data(policy, recipe))
            if self.settings.cache is None:
                recipe = with_changes(recipe, {"data.cache_limit_mb": policy.max_home_gb * 1e9 / MB})
            plan = plan_run(recipe)
            # Units were agreed on for all sites, whatever the files of this site say.
            plan = replace(plan, recipe=with_changes(plan.recipe, {"evaluation": recipe.evaluation}))
            self._open = _OpenRecipe(text, plan.recipe, plan.federation, plan.open_workspace())
        else:
            refuse(refusal_before_data(policy, self._open.recipe))
        return self._open

    def _data(self, opened: _OpenRecipe, part: ProtocolPart, policy: Policy, run: str) -> SiteData:
        """The site's prepared images for a part of the protocol; images of the last part are reused if possible."""
        key = self._fingerprint("\n".join([run, part.name, *split_files([part]).values()]))
        if key not in opened.data:
            items = part.items(opened.federation, self.settings.name)
            if items not in opened.images:
                recipe = self._with_room(opened, items, policy, run)
                self.log(f"reading {len(items)} images")
                images = prepare_items(opened.federation, recipe, items, self.processes, self.log)
                opened.images = {items: images}
            folder = self.home / "runs" / run / part.name
            opened.data = {key: site_data(self.settings.name, opened.images[items], part, folder, fixed=True)}
        return opened.data[key]

    def _with_room(self, opened: _OpenRecipe, items: tuple[Item, ...], policy: Policy, run: str) -> Recipe:
        """The recipe, without the cache if the home has no room for it; refuses what fills the memory or the disk.

        No image is read before.
        """
        recipe, federation = opened.recipe, opened.federation
        total, largest = prepared_bytes(items, federation, recipe.data)
        fits = total <= recipe.data.memory_limit_mb * MB
        if recipe.data.cache != "off":
            refuse(refusal_of_images(policy, largest))
            reason = None
            if self.settings.cache is None and not is_cached(items, federation, recipe.data):
                reason = tidy_home(self.home, policy, run, self.log, total, spare_runs=fits)
            if reason is None:
                return recipe
            refuse(None if fits else reason)
            self.log(f"prepared images stay in memory: {reason}")
        refuse(refusal_of_images(policy, total))
        return with_changes(recipe, {"data.cache": "off"})

    def _part(self, opened: _OpenRecipe, name: str, policy: Policy) -> ProtocolPart:
        """The part of the protocol with its split and labels, drawn by the seed that the policy names."""
        recipe = opened.recipe
        if policy.split == "own":
            seed = int(self._fingerprint("split")[:15], 16)
            # Without the server's seed of labels: with it a server could ask for one set of labels after another.
            recipe = with_changes(recipe, {"seed": seed, "data.label_seed": None, "data.split_from": "auto"})
        return site_part(opened.federation, recipe, self.settings.name, name, opened.workspace.method.all_labels)

    def _describe(self, opened: _OpenRecipe, policy: Policy, request: Request) -> Description:
        federation, part = opened.federation, self._part(opened, request.part, policy)
        items = federation.sites[self.settings.name]
        counts = {s: len(part.split.items(federation, self.settings.name, s)) for s in ("train", "val", "test")}
        header = item_header(items[0])
        spaced = header.affine is not None or federation.task.nominal_spacing(len(header.shape)) is not None
        return Description(
            self.settings.name, request.broadcast.round, task_of(federation), counts, spaced,
            self._fingerprint(part.split.to_csv()), installed_versions(),
            refusal=refusal(opened.workspace, policy, self._spending(policy, request.run)) or "",
        )  # fmt: skip

    def _require_same_split(self, part: ProtocolPart, file: Path) -> None:
        """Raise if files or cases changed within a run: an image that was trained on could be tested on later."""
        fingerprint = self._fingerprint(part.split.to_csv())
        if not file.exists():
            write_text(file, fingerprint)
        elif file.read_text(encoding="utf-8") != fingerprint:
            raise PolyclinicError(
                "the site's images, cases or labels have changed since this run began; restore them, or start a new run"
            )

    def _fingerprint(self, text: str) -> str:
        """HMAC-SHA-256 that tells the server whether a split is still the same; the secret prevents guessing names."""
        return hmac.new(self._secret(), text.encode(), "sha256").hexdigest()

    def _secret(self) -> bytes:
        file = self.home / "mark.secret"
        if not file.exists():
            write_private(file, secrets.token_bytes(32))
        return file.read_bytes()

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
