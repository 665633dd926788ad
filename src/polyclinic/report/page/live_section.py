"""What goes on now, at the top of a page that is watched: the sites of a run, or the runs of a grid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from polyclinic.core.wording import counted
from polyclinic.report.live_screen import duration, plain, result, silence, stuck_remark, stuck_state, title
from polyclinic.report.page.document import render
from polyclinic.report.page.results import Results, RunRecord
from polyclinic.report.stuck_runs import stuck_status

_SITES = ["site", "status", "loss", "Dice", "MB up", "MB down"]
_RUNS = ["run", "status", "round", "validation Dice"]


def run_html(view: Mapping[str, Any], now: float, note: str = "") -> str:
    """One run: its rounds, and what each site does. ``now`` is the time by the clock that wrote the view."""
    over = bool(view.get("finished") or view.get("stopped"))
    clock = float(view.get("updated", now)) if over else now
    sites: Mapping[str, Mapping[str, Any]] = view.get("sites", {})
    troubled = any(entry.get("reason") for entry in sites.values())
    rows = []
    for site, entry in sites.items():
        since = None if over else entry.get("since")
        status = plain(entry.get("status", "?")) + (f" {duration(clock - since)}" if since is not None else "")
        numbers = [_number(entry.get("loss")), _number(entry.get("dice"))]
        numbers += [f"{(entry.get(way) or 0) / 1e6:.2f}" for way in ("bytes_up", "bytes_down")]
        rows.append([plain(site).removeprefix("@"), status, *numbers, *([plain(entry.get("reason", ""))] * troubled)])
    done, rounds = view.get("round") or 0, view.get("rounds") or 0
    words = [f"round {done} of {rounds} done" if rounds else "not started"]
    words.append(f"{'took' if over else 'for'} {duration(clock - view.get('started', clock))}")
    if view.get("dice") is not None:
        words.append(f"validation Dice {view['dice']:.3f}")
    remarks = [plain(view.get("note", "")), plain(note), silence(view, now), stuck_remark(view), result(view, now)]
    header = [*_SITES, *(["last problem"] * troubled)]
    return render(
        "live.html", title=title(view), state=", ".join(words), done=min(done, rounds), total=max(rounds, 1),
        header=header, rows=rows, remarks=[text for text in remarks if text],
    )  # fmt: skip


def grid_html(results: Results) -> str:
    """A comparison or a study: how far each run is."""
    runs = [(grid.title, run) for grid in results.grids for run in grid.runs]
    rows, done, total = [], 0.0, 0.0
    for where, run in runs:
        status, rounds, share, dice = _progress(run)
        rows.append([f"{where + ', ' if where else ''}{run.method} seed {run.seed}", status, rounds, dice])
        done, total = done + share, total + 1
    finished = sum(run.summary is not None for _, run in runs)
    state = f"{finished} of {counted(len(runs), 'run')} finished"
    remarks = ["All runs are finished."] if finished == len(runs) else []
    return render(
        "live.html", title=f"{results.kind} in {results.folder.resolve().name}", state=state, done=round(done, 3),
        total=total, header=_RUNS, rows=rows, remarks=remarks,
    )  # fmt: skip


def _progress(run: RunRecord) -> tuple[str, str, float, str]:
    """Status, rounds, the share that is done, and the newest validation Dice."""
    view = {} if run.summary is not None else run.table("live.json")
    last = run.events[-1]["validation"]["dice"] if run.events else None
    dice = _number(last)
    if run.summary is not None:
        return _joined("finished", stuck_status(run.summary)), str(run.summary["rounds"]), 1.0, dice
    if not view:
        return "waiting", "", 0.0, ""
    number, rounds = int(view.get("round") or 0), int(view.get("rounds") or 0)
    status = f"stopped: {plain(view['stopped'])}" if view.get("stopped") else "running"
    return _joined(status, stuck_state(view)), f"{number} of {rounds}", number / rounds if rounds else 0.0, dice


def _joined(status: str, stuck: str) -> str:
    return f"{status}, {stuck}" if stuck else status


def _number(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, int | float) else "-"
