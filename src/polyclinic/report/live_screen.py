"""The live view of a run for people: from the plain data of ``live.json`` to a screen, or to lines.

What sites and servers say is shown, never obeyed: their texts lose control characters and are not markup.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from polyclinic.federation.stuck import PAGE, stuck_briefly
from polyclinic.report.tables import value_text

STALE = 300.0  # seconds without news, in rounds that are not longer than that
_FEW = 6
_COLOURS = {
    "waiting": "dim", "resting": "dim", "left out": "dim", "asked": "cyan", "ready": "green", "training": "cyan",
    "scoring": "blue", "done": "green", "late": "yellow", "away": "magenta", "refused": "red", "failed": "red",
}  # fmt: skip


def screen(view: Mapping[str, Any], now: float, note: str = "") -> RenderableType:
    """The whole view. ``now`` is the time by the clock that wrote it, ``note`` what the watcher adds."""
    parts: list[RenderableType] = [Text(title(view), style="bold"), _progress(view, now), Text(_scores(view))]
    if view.get("sites"):
        parts += [Text(), _sites(view, _clock(view, now))]
    lines = [plain(line) for line in view.get("lines", [])]
    if lines:
        parts += [Text(), *(Text(line, style="dim") for line in lines)]
    said = [Text(text, style=style) for text, style in _remarks(view, now, note)]
    return Group(*parts, *([Text()] if said else []), *said)


def title(view: Mapping[str, Any]) -> str:
    """What runs."""
    part = view.get("part")
    where = "" if part in ("all", "", None) else f", part {part}"
    return plain(f"{view.get('method')} on {view.get('federation')}, engine {view.get('engine')}{where}")


def state(view: Mapping[str, Any]) -> str:
    """The view in a line that changes when something has happened, and not with the time."""
    sites, groups = view.get("sites", {}), dict[str, list[str]]()
    for site, entry in sites.items():
        groups.setdefault(str(entry.get("status")), []).append(_name(site))
    who = "; ".join(
        f"{plain(status)}: {', '.join(names) if len(sites) <= _FEW else len(names)}" for status, names in groups.items()
    )
    scores = f", {_scores(view)}" if view.get("dice") is not None else ""
    stuck = stuck_state(view)
    return f"{_rounds(view)}{scores}{'; ' if stuck else ''}{stuck}{'; ' if who else ''}{who}"


def news(before: tuple[Mapping[str, Any], float, str] | None, after: tuple[Mapping[str, Any], float, str]) -> list[str]:
    """What there is to say now that was not so before; each of the two is what ``screen`` gets."""
    (view, now, note), (old, then, noted) = after, before or ({}, 0.0, "")
    lines = [title(view)] if not old or title(view) != title(old) else []
    said, fresh = view.get("lines", []), view.get("said", 0) - old.get("said", 0)
    fresh = fresh if fresh >= 0 else view.get("said", 0)  # the run was started anew
    lines += [plain(line) for line in said[-fresh:]] if fresh else []
    lines += [state(view)] if not old or state(view) != state(old) else []
    remarks = [note if note != noted else "", silence(view, now) if not old or not silence(old, then) else ""]
    remarks += [view.get("note", "") if not old else "", result(view, now)]
    return lines + [plain(text) for text in remarks if text]


def result(view: Mapping[str, Any], now: float) -> str:
    """How the run ended: the average of the summary, in the units of the tables, or why it stopped."""
    if not view.get("finished"):
        if not view.get("stopped"):
            return ""
        words, ago = plain(view["stopped"]), duration(now - view.get("updated", now))
        return f"Stopped {ago} ago: {words}{'' if '--resume' in words else ' (go on with --resume)'}"
    average = {name: value for name, value in (view.get("average") or {}).items() if "/" not in name}
    shown = ", ".join(f"{plain(name)} {value_text(value, None, name)}" for name, value in average.items())
    return f"Finished; average over sites (overlaps in %): {shown or 'none'}"


def stuck_state(view: Mapping[str, Any]) -> str:
    """What finds nothing for long, in a few words; empty where nothing does."""
    return stuck_briefly(view.get("stuck"), _stuck_sites(view))


def stuck_remark(view: Mapping[str, Any]) -> str:
    """The same as a sentence with its rounds, and where to read on."""
    if view.get("stuck"):
        return f"stuck: nothing found in the last {view['stuck']:g} validated rounds; see {PAGE}"
    sites = ", ".join(f"{site} (last {count:g} validated rounds)" for site, count in _stuck_sites(view).items())
    return f"stuck: nothing found at {sites}, while other sites found something; see {PAGE}" if sites else ""


def silence(view: Mapping[str, Any], now: float) -> str:
    """A sentence when there was no news for long; rounds that take longer than that get the time of two."""
    quiet = now - view.get("updated", now)
    over = view.get("finished") or view.get("stopped")
    if over or quiet < max(STALE, 2 * (view.get("seconds") or 0.0)):
        return ""
    return f"no news for {duration(quiet)}; is the server still running?"


def duration(seconds: float) -> str:
    """A time for people: 42 s, 1 min 20 s, 5 min, 3 h 5 min, 2 d 4 h."""
    whole = max(0, round(seconds))
    minutes, hours = whole // 60, whole // 3600
    if whole < 60:
        return f"{whole} s"
    if whole < 300:
        return f"{minutes} min {whole % 60} s"
    if hours < 1:
        return f"{minutes} min"
    return f"{hours} h {minutes % 60} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def plain(text: object) -> str:
    """Text of others, without what could move the cursor or change the terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in str(text))


def _clock(view: Mapping[str, Any], now: float) -> float:
    """For a run that is over, time stands still."""
    over = view.get("finished") or view.get("stopped")
    return float(view.get("updated", now)) if over else now


def _progress(view: Mapping[str, Any], now: float) -> Table:
    rounds, done = view.get("rounds") or 0, view.get("round") or 0
    clock = _clock(view, now)
    words = [_rounds(view), f"elapsed {duration(clock - view.get('started', clock))}"]
    if view.get("seconds"):
        words.append(f"last round {duration(view['seconds'])}")
    grid = Table.grid(padding=(0, 1))
    bar = ProgressBar(total=rounds or 1, completed=min(done, rounds), width=20, complete_style="green")
    grid.add_row(bar, ", ".join(words))
    return grid


def _rounds(view: Mapping[str, Any]) -> str:
    return f"round {view.get('round', 0)}/{view.get('rounds', 0)} done" if view.get("rounds") else "not started"


def _scores(view: Mapping[str, Any]) -> str:
    if view.get("dice") is None:
        return "no validation yet"
    text = f"validation Dice {view['dice']:.3f}"
    if view.get("best_round") is not None:
        dice = "" if view.get("best_dice") is None else f"{view['best_dice']:.3f} "
        text += f" (best {dice}in round {view['best_round']})"
    return text


def _sites(view: Mapping[str, Any], clock: float) -> Table:
    """A row a site."""
    sites: Mapping[str, Mapping[str, Any]] = view["sites"]
    troubled = any(entry.get("reason") for entry in sites.values())
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("site", overflow="fold")
    table.add_column("status", no_wrap=True)
    for name in ("loss", "Dice", "MB up", "MB down"):
        table.add_column(name, justify="right", no_wrap=True)
    if troubled:
        table.add_column("last problem", overflow="fold", ratio=1)
    for site, entry in sites.items():
        since = None if view.get("finished") else entry.get("since")
        row = [
            Text(_name(site)),
            _status(entry.get("status", "?"), since, clock),
            _number(entry.get("loss")),
            _number(entry.get("dice")),
        ]
        row += [_megabytes(entry.get(way)) for way in ("bytes_up", "bytes_down")]
        table.add_row(*row, *([Text(plain(entry.get("reason", "")))] if troubled else []))
    return table


def _status(status: str, since: float | None, clock: float) -> Text:
    text = Text(plain(status), style=_COLOURS.get(status, ""))
    return text if since is None else text.append(f" {duration(clock - since)}", style="dim")


def _number(value: float | None) -> Text:
    return Text("-" if value is None else f"{value:.3f}")


def _megabytes(count: float | None) -> Text:
    return Text(f"{(count or 0) / 1e6:.2f}")


def _name(site: str) -> str:
    """What stands for no single site (``@pooled``) carries a mark that is not for people."""
    return plain(site).removeprefix("@")


def _stuck_sites(view: Mapping[str, Any]) -> dict[str, float]:
    return {_name(site): entry["stuck"] for site, entry in view.get("sites", {}).items() if entry.get("stuck")}


def _remarks(view: Mapping[str, Any], now: float, note: str) -> list[tuple[str, str]]:
    """What stands below everything, each with its colour."""
    quiet, end = silence(view, now), result(view, now)
    found = [(plain(view.get("note", "")), "dim"), (plain(note), "yellow"), (quiet, "yellow")]
    found += [(stuck_remark(view), "yellow"), (end, "green" if view.get("finished") else "red")]
    return [(text, colour) for text, colour in found if text]
