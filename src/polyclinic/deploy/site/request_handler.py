"""The request handler of a site: checks a request against the policy, does it, and logs the answer before it leaves."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import write_text
from polyclinic.core.version import installed_versions
from polyclinic.core.wording import printable_line
from polyclinic.data.federation import item_header
from polyclinic.data.imageset import Sample
from polyclinic.deploy.keys.signatures import KeyFile
from polyclinic.deploy.site.admission import (
    RefusedError,
    refusal,
    refuse,
    require_model,
    require_round,
    require_task,
    task_of,
    too_few,
    too_few_drawn,
)
from polyclinic.deploy.site.case_sets import CaseSets, scored_samples
from polyclinic.deploy.site.disk_limits import tidy_home
from polyclinic.deploy.site.hidden_names import without_names
from polyclinic.deploy.site.opened_recipe import OpenedRecipe
from polyclinic.deploy.site.privacy_ledger import PrivacyLedger, Spending
from polyclinic.deploy.site.recipe_checks import refusal_before_data
from polyclinic.deploy.site.run_recipe import RunRecipe
from polyclinic.deploy.site.settings import SiteSettings
from polyclinic.deploy.site.site_secret import SiteSecret
from polyclinic.deploy.site.work_limits import refusal_of_training
from polyclinic.evaluation.protocols import ProtocolPart
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
from polyclinic.recipe.fingerprint import AskedRecipe, read_asked
from polyclinic.runs.part_scoring import require_spacing
from polyclinic.runs.plan import require_training_data


class RequestHandler:
    """Answers requests one after another; the recipe's network and images stay in memory between them."""

    def __init__(
        self, settings: SiteSettings, log: Callable[[str], None] = lambda _: None, processes: int | None = None
    ) -> None:
        self.settings, self.log, self.processes = settings, log, processes
        self.home = Path(settings.home)
        self.secret = SiteSecret(self.home)
        signer = KeyFile(Path(settings.key)) if settings.key else None
        self.audit = AuditLog(self.home / "audit.jsonl", signer)
        self.privacy = PrivacyLedger(self.home)
        self._open: OpenedRecipe | None = None
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
        require_model(opened.workspace, request.broadcast, trains=request.act == "train")
        require_round(opened.recipe, request.broadcast)
        run_recipe.remember(asked)
        run = self.home / "runs" / request.run
        part = opened.part(request.part, policy)
        self._require_same_split(part, run / request.part / "split.mark")
        data = opened.data(part, policy, request.run)
        # The server of sites elsewhere has a round's checkpoint on disk before it asks for the next.
        site = Site(data, SiteStore(run / request.part, newest=3), policy.minimum_images)
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
        pictures = sets.of_pictures(opened.workspace, data) if compares else []
        refuse(too_few_drawn(opened.workspace, data, policy, request.broadcast.round))
        sets.check(used, policy.minimum_images)
        sets.check_pictures(pictures)
        if compares:
            sets.check_next_round(opened.workspace, data, used, request.broadcast.round, policy.minimum_images)
        update = site.train(opened.workspace, request.broadcast)
        if privacy_of(opened.workspace.components) is not None:
            ledger = site.store.ledgers().get("privacy", {})
            self.privacy.enter(request.run, request.part, update.round, asked.sha256, ledger)
        # A repeated round gives the update of before and spends nothing; only now does the ledger tell.
        self._check_privacy(opened, policy, request, will_release=False)
        refuse(refusal_of_bytes(policy, update.bytes))
        sets.remember(used, pictures)
        return update

    def _case_sets(self) -> CaseSets:
        return CaseSets(self.home / "case_sets.json", self.secret.key())

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

    def _check_privacy(self, opened: OpenedRecipe, policy: Policy, request: Request, will_release: bool) -> None:
        """Refuse an update that the limit of all runs does not allow, before it is made or before it leaves."""
        if policy.max_epsilon is not None:
            new = will_release and not self.privacy.holds(request.run, request.part, request.broadcast.round)
            spent = self._spending(policy, request.run).noises
            refuse(refusal_of_privacy(policy, opened.workspace.components, spent, int(new)))

    def _opened(self, text: str, policy: Policy) -> OpenedRecipe:
        """The recipe of a request with this site's own folder, device and encoder; built once."""
        if self._open is None or self._open.text != text:
            self._open = None  # frees the memory of the last recipe before the next one needs it
            self._open = OpenedRecipe.open(text, policy, self.settings, self.log, self.processes)
        else:
            refuse(refusal_before_data(policy, self._open.recipe))
        return self._open

    def _describe(self, opened: OpenedRecipe, policy: Policy, request: Request) -> Description:
        federation, part = opened.federation, opened.part(request.part, policy)
        items = federation.sites[self.settings.name]
        counts = {s: len(part.split.items(federation, self.settings.name, s)) for s in ("train", "val", "test")}
        header = item_header(items[0])
        spaced = header.affine is not None or federation.task.nominal_spacing(len(header.shape)) is not None
        return Description(
            self.settings.name, request.broadcast.round, task_of(federation), counts, spaced,
            self.secret.fingerprint(part.split.to_csv()), installed_versions(),
            refusal=refusal(opened.workspace, policy, self._spending(policy, request.run)) or "",
        )  # fmt: skip

    def _require_same_split(self, part: ProtocolPart, file: Path) -> None:
        """Raise if files or cases changed within a run: an image that was trained on could be tested on later."""
        fingerprint = self.secret.fingerprint(part.split.to_csv())
        if not file.exists():
            write_text(file, fingerprint)
        elif file.read_text(encoding="utf-8") != fingerprint:
            raise PolyclinicError(
                "the site's images, cases or labels have changed since this run began; restore them, or start a new run"
            )

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
