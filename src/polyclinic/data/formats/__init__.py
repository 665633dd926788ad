"""One image file: its header, cheaply, and its voxels, by the format that its suffix stands for."""

from __future__ import annotations

from polyclinic.data.formats.registry import (
    FORMATS,
    SUFFIXES,
    Format,
    Header,
    import_formats,
    is_picture,
    read_array,
    read_header,
    register_format,
    spacing_of,
    stem_of,
    suffix_of,
)

__all__ = [
    "FORMATS",
    "SUFFIXES",
    "Format",
    "Header",
    "is_picture",
    "read_array",
    "read_header",
    "register_format",
    "spacing_of",
    "stem_of",
    "suffix_of",
]

import_formats()
