"""``manifest.csv``: which case (patient) an image belongs to, and which split."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from polyclinic.core.errors import PolyclinicError, suggestion
from polyclinic.data.formats import stem_of
from polyclinic.data.layouts import ImageFiles

SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class ManifestRow:
    """What the manifest says of one image; None where it says nothing."""

    case: str | None
    split: str | None


def read_manifest(
    path: Path, sites: Mapping[str, Sequence[ImageFiles]], left_out: Sequence[str] = ()
) -> dict[tuple[str, str], ManifestRow]:
    """Read the rows by ``(site, image name)``; rows of sites that are ``left_out`` are skipped.

    ``image`` is a stem or a file name. Columns other than site, image, case and split are ignored.
    """
    rows: dict[tuple[str, str], ManifestRow] = {}
    names = {site: _names(images) for site, images in sites.items()}
    for number, row in _table(path):
        site, image = row["site"], row["image"]
        if site in left_out:
            continue
        if site not in names:
            raise PolyclinicError(
                f"{path}: row {number} names the site '{site}', which has no "
                f"folder{suggestion(site, names) or '; correct or remove the row.'}"
            )
        name = names[site].get(Path(image).name)
        if name is None:
            raise PolyclinicError(
                f"{path}: row {number} names the image '{image}', which site '{site}' does not have; "
                "correct or remove the row."
            )
        if (site, name) in rows:
            raise PolyclinicError(
                f"{path}: row {number} names the image '{image}' of site '{site}' a second time; keep one row."
            )
        split = row.get("split") or None
        if split not in (None, *SPLITS):
            raise PolyclinicError(f"{path}: row {number} has the split '{split}', but expected train, val or test.")
        rows[site, name] = ManifestRow(row.get("case") or None, split)
    return rows


def _names(images: Sequence[ImageFiles]) -> dict[str, str]:
    """Every spelling of an image, to its name."""
    spellings: dict[str, str] = {}
    for entry in images:
        for path in entry.images:
            spellings[path.name] = entry.name
            spellings[stem_of(path)] = entry.name
    return spellings | {entry.name: entry.name for entry in images}


def _table(path: Path) -> list[tuple[int, dict[str, str]]]:
    """The rows with their line numbers, cells stripped."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise PolyclinicError(f"{path}: cannot be read as UTF-8 text ({error}); save it as CSV in UTF-8.") from error
    header = text.partition("\n")[0]
    # Spreadsheets in half of Europe write semicolons.
    reader = csv.DictReader(
        io.StringIO(text, newline=""), delimiter=";" if ";" in header and "," not in header else ","
    )
    columns = [(name or "").strip() for name in reader.fieldnames or []]
    for needed in ("site", "image"):
        if needed not in columns:
            raise PolyclinicError(
                f"{path}: has no column '{needed}'; the first line should be 'site,image,case,split'."
            )
    reader.fieldnames = columns
    table = []
    for row in reader:
        cells = {
            name: (value or "").strip()
            for name, value in row.items()
            if isinstance(name, str) and not isinstance(value, list)
        }
        table.append((reader.line_num, cells))
    return table
