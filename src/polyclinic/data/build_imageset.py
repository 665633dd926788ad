"""Prepared images of sites: mapped from the cache, where what is missing is made first, or in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.wording import MB
from polyclinic.data.cache_entry import CacheUnusableError, Entry, FileTarget, MemoryTarget
from polyclinic.data.cache_keys import cache_keys
from polyclinic.data.federation import Federation, Item
from polyclinic.data.imageset import ImageSet
from polyclinic.data.prepared_cache import PreparedCache, cache_of
from polyclinic.data.site_layout import Grid, expected_grids, stored_grids
from polyclinic.data.site_preparation import NamedSite, Preparation, entry_layouts, prepare_into
from polyclinic.data.stored_images import imageset_of
from polyclinic.recipe import DataSettings

__all__ = ["Preparation", "build_imageset", "build_imagesets", "is_cached", "prepared_bytes"]

_SITES_AT_ONCE = 100  # whose files are open while they are made
_ATTEMPTS = 5  # where other processes remove entries as soon as they are made


def build_imageset(items: Sequence[Item], federation: Federation, settings: DataSettings) -> ImageSet:
    """The prepared images of one site."""
    return build_imagesets({"": items}, Preparation(federation, settings))[""]


def build_imagesets(sites: Mapping[str, Sequence[Item]], preparation: Preparation) -> dict[str, ImageSet]:
    """The prepared images of sites by name, mapped from the cache, where what is missing is made first.

    With ``data.cache = "off"``, and where the cache cannot be written, they are in memory, if no site is above
    ``data.memory_limit_mb``. The tensors are the same in any case, whatever the number of processes.
    """
    cache = cache_of(preparation.settings)
    names, total, reached = list(sites), sum(map(len, sites.values())), 0
    built: dict[str, ImageSet] = {}
    for start in range(0, len(names), _SITES_AT_ONCE):
        chosen = {name: tuple(sites[name]) for name in names[start : start + _SITES_AT_ONCE]}
        reached += sum(map(len, chosen.values()))

        def progress(done: int, count: int, reached: int = reached) -> None:
            preparation.progress(reached - count + done, total)

        part = replace(preparation, progress=progress)
        built |= _in_memory(chosen, part) if cache is None else _from_cache(chosen, part, cache)
    return built


def prepared_bytes(items: Sequence[Item], federation: Federation, settings: DataSettings) -> tuple[int, int]:
    """Bytes of all prepared images with their labels, and of the largest one, from headers alone."""
    grids = expected_grids(items, federation, settings)
    sizes = [grid.row_bytes(federation.task.channels) for grid in grids]
    return sum(grid.rows * size for grid, size in zip(grids, sizes, strict=True)), max(sizes, default=0)


def is_cached(items: Sequence[Item], federation: Federation, settings: DataSettings) -> bool:
    """Whether the cache holds these images and labels, prepared."""
    cache = cache_of(settings)
    return cache is not None and all(map(cache.holds, _named(items, federation, settings, cache).entries))


def _named(items: Sequence[Item], federation: Federation, settings: DataSettings, cache: PreparedCache) -> NamedSite:
    if not items:
        return NamedSite((), "", "")
    keys = cache_keys(items, federation, settings, cache.hashes)
    return NamedSite(tuple(items), f"images-{keys.images}", f"labels-{keys.labels}" if keys.labels else "")


def _from_cache(
    chosen: Mapping[str, tuple[Item, ...]], preparation: Preparation, cache: PreparedCache
) -> dict[str, ImageSet]:
    federation, settings = preparation.federation, preparation.settings
    sites = {name: _named(items, federation, settings, cache) for name, items in chosen.items()}
    entries: dict[str, Entry] = {}
    for _ in range(_ATTEMPTS):
        try:
            for name in {name for site in sites.values() for name in site.entries} - entries.keys():
                entry = cache.find(name)
                entries |= {} if entry is None else {name: entry}
            missing = [site for site in sites.values() if not entries.keys() >= set(site.entries)]
            if not missing:
                return _opened(sites, entries, settings)
            _fill(cache, missing, entries, preparation)
        except CacheUnusableError as error:
            ready = {name: site for name, site in sites.items() if entries.keys() >= set(site.entries)}
            lacking = {name: items for name, items in chosen.items() if name not in ready}
            why = f"{cache.folder}: the cache cannot be used ({error})"
            preparation.say(f"warning: {why}; prepared images are kept in memory")
            return _opened(ready, entries, settings) | _in_memory(lacking, preparation, why)
    raise PolyclinicError(f"{cache.folder}: other processes remove what is prepared here; raise data.cache_limit_mb.")


def _opened(
    sites: Mapping[str, NamedSite], entries: Mapping[str, Entry], settings: DataSettings
) -> dict[str, ImageSet]:
    return {
        name: imageset_of(site.items, entries.get(site.images), entries.get(site.labels), settings)
        for name, site in sites.items()
    }


def _fill(
    cache: PreparedCache, sites: Sequence[NamedSite], entries: Mapping[str, Entry], preparation: Preparation
) -> None:
    """Make the entries that are missing; afterwards they are there, made here or by another process."""
    federation, settings = preparation.federation, preparation.settings
    wanted = {name for site in sites for name in site.entries} - entries.keys()
    with cache.making(sorted(wanted), preparation.say) as opened:
        grids = [_grids(site, entries, preparation) for site in sites]
        layouts = entry_layouts(sites, grids, opened, federation)
        cache.make_room(sum(layout.layout.file_bytes for layout in layouts.values()))
        targets = {name: FileTarget(opened[name], layout.layout) for name, layout in layouts.items()}
        indices = prepare_into(targets, layouts, sites, grids, preparation)
        for site in sites:
            if _named(site.items, federation, settings, cache) != site:
                folder = site.items[0].images[0].parent
                raise PolyclinicError(f"{folder}: files changed while they were read; start again when they rest.")
        for name, target in targets.items():
            target.finish(indices[name])
        cache.add(list(targets))


def _grids(site: NamedSite, entries: Mapping[str, Entry], preparation: Preparation) -> list[Grid]:
    if site.images in entries:
        return stored_grids(entries[site.images])
    return expected_grids(site.items, preparation.federation, preparation.settings)


def _in_memory(
    chosen: Mapping[str, tuple[Item, ...]], preparation: Preparation, why: str = 'data.cache = "off"'
) -> dict[str, ImageSet]:
    federation, settings = preparation.federation, preparation.settings
    sites = {
        name: NamedSite(items, f"images {name}", f"labels {name}" if any(item.label for item in items) else "")
        for name, items in chosen.items()
        if items
    }
    grids = [expected_grids(site.items, federation, settings) for site in sites.values()]
    for name, own in zip(sites, grids, strict=True):
        needed = sum(grid.rows * grid.row_bytes(federation.task.channels) for grid in own)
        if needed > settings.memory_limit_mb * MB:
            site = f"site '{name}'" if name else "the site"
            raise PolyclinicError(
                f"{why}, and the prepared images of {site} need {needed / MB:.0f} MB of memory, more than "
                f"data.memory_limit_mb = {settings.memory_limit_mb:g}; give the cache room (data.cache, "
                "data.cache_limit_mb), or raise data.memory_limit_mb."
            )
    named = list(sites.values())
    layouts = entry_layouts(named, grids, {name for site in named for name in site.entries}, federation)
    targets = {name: MemoryTarget(layout.layout) for name, layout in layouts.items()}
    indices = prepare_into(targets, layouts, named, grids, preparation)
    entries = {name: target.entry(indices[name]) for name, target in targets.items()}
    nothing = {name: NamedSite((), "", "") for name in chosen if name not in sites}
    return _opened(sites | nothing, entries, settings)
