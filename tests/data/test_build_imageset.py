"""Prepared images in memory or from the cache: the same tensors, prepared once, whatever the number of processes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

import nibabel
import numpy as np
import pytest
import torch
from PIL import Image as PILImage

from polyclinic.core.errors import PolyclinicError
from polyclinic.data import cache_entry, site_preparation
from polyclinic.data.build_imageset import Preparation, build_imageset, build_imagesets, is_cached, prepared_bytes
from polyclinic.data.federation import Federation, Item
from polyclinic.data.imageset import ImageSet, Sample
from polyclinic.data.open_federation import open_federation
from polyclinic.data.preprocessing import prepare
from polyclinic.recipe import DataSettings


def pictures(root: Path, *shapes: tuple[int, int]) -> Federation:
    """One site of random pictures; the last has no label."""
    random = np.random.default_rng(0)
    for folder in ("images", "labels"):
        (root / "a" / folder).mkdir(parents=True)
    for number, shape in enumerate(shapes):
        PILImage.fromarray(random.integers(0, 255, (*shape, 3), dtype=np.uint8)).save(
            root / f"a/images/p{number}_s1.png"
        )
        if number < len(shapes) - 1:
            PILImage.fromarray(random.integers(0, 2, shape, dtype=np.uint8)).save(root / f"a/labels/p{number}_s1.png")
    return open_federation(root)


def volumes(root: Path, *shapes: tuple[int, int, int]) -> Federation:
    random = np.random.default_rng(1)
    for folder in ("images", "labels"):
        (root / "a" / folder).mkdir(parents=True)
    affine = np.diag([-1.0, 2.0, 3.0, 1.0])
    for number, shape in enumerate(shapes):
        image = nibabel.Nifti1Image(random.normal(size=shape).astype(np.float32), affine)
        label = nibabel.Nifti1Image(random.integers(0, 2, shape, dtype=np.uint8), affine)
        nibabel.save(image, root / f"a/images/v{number}.nii.gz")
        nibabel.save(label, root / f"a/labels/v{number}.nii.gz")
    (root / "federation.toml").write_text("spatial_dims = 2")
    return open_federation(root)


@pytest.fixture(params=["memory", "read", "mapped"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where prepared images come from: memory, small files that are read, large ones that are mapped."""
    if request.param == "mapped":
        monkeypatch.setattr(cache_entry, "_SMALL", 0)
    return str(request.param)


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Call it, and whoever prepares an image or asks for a header fails."""

    def fail(*_: object) -> None:
        raise AssertionError("an image was read")

    def start() -> None:
        monkeypatch.setattr(site_preparation, "prepare", fail)
        monkeypatch.setattr("polyclinic.data.site_layout.geometry_of", fail)

    return start


def built(federation: Federation, cache: Path | str, processes: int | None = None, **keys: Any) -> ImageSet:
    settings = DataSettings(cache="off" if cache == "off" else str(cache), **keys)
    return build_imagesets({"a": federation.sites["a"]}, Preparation(federation, settings, processes))["a"]


def expected(federation: Federation, **keys: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    made = [one for item in federation.sites["a"] for one in prepare(item, federation, DataSettings(**keys))]
    return [
        (one.image, torch.zeros(one.image.shape[1:], dtype=torch.uint8) if one.label is None else one.label)
        for one in made
    ]


def same(images: ImageSet, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> bool:
    return len(images) == len(pairs) and all(
        torch.equal(images[index][0], image) and torch.equal(images[index][1], label)
        for index, (image, label) in enumerate(pairs)
    )


def entries(cache: Path) -> list[str]:
    return sorted(path.name.partition("-")[0] for path in cache.glob("*.safetensors"))


@pytest.mark.parametrize("processes", [1, 2])
def test_pictures_of_one_size_are_one_tensor(tmp_path: Path, kind: str, processes: int) -> None:
    federation = pictures(tmp_path / "f", (9, 7), (8, 8), (20, 4))
    images = built(federation, "off" if kind == "memory" else tmp_path / "cache", processes, size=(8, 6))
    assert images.uniform
    assert isinstance(images.images, torch.Tensor)
    assert images.images.shape == (3, 3, 8, 6)
    assert same(images, expected(federation, size=(8, 6)))
    assert images.labelled.tolist() == [True, True, False]
    assert images.samples[0] == Sample("a", "p0_s1", "p0", None, None, None)
    pixels, labels = images.batch(torch.tensor([2, 0]))
    assert pixels.dtype == torch.float32
    assert labels.dtype == torch.int64
    assert torch.equal(pixels, images.images[[2, 0]])
    assert torch.equal(labels[1], images[0][1].long())
    assert not labels[0].any()
    assert entries(tmp_path / "cache") == ([] if kind == "memory" else ["images", "labels"])


@pytest.mark.parametrize("processes", [1, 2])
def test_pictures_of_different_sizes_are_a_list(tmp_path: Path, kind: str, processes: int) -> None:
    federation = pictures(tmp_path / "f", (9, 7), (8, 8), (8, 8))
    images = built(federation, "off" if kind == "memory" else tmp_path / "cache", processes)
    assert not images.uniform
    assert same(images, expected(federation))
    assert [image.shape[1:] for image in images.images] == [(9, 7), (8, 8), (8, 8)]
    assert images.batch(torch.tensor([2, 1]))[0].shape == (2, 3, 8, 8)
    with pytest.raises(RuntimeError, match="equal size"):
        images.batch(torch.tensor([0, 1]))


@pytest.mark.parametrize("keys", [{"size": (6, 4)}, {}, {"spacing": (1.0, 1.0, 2.0)}])
def test_volumes_become_slices(tmp_path: Path, kind: str, keys: dict[str, Any]) -> None:
    federation = volumes(tmp_path / "f", (8, 6, 3), (8, 6, 5))
    images = built(federation, "off" if kind == "memory" else tmp_path / "cache", 2, **keys)
    assert images.uniform
    assert same(images, expected(federation, **keys))
    if not keys:
        assert [sample.slice_index for sample in images.samples] == [0, 1, 2, 0, 1, 2, 3, 4]
        assert images.samples[3] == Sample("a", "v1", "v1", 0, (1.0, 2.0), 3.0)


def test_a_second_start_reads_no_image(tmp_path: Path, kind: str, unread: Callable[[], None]) -> None:
    federation = volumes(tmp_path / "f", (8, 6, 3), (4, 6, 5))
    first = built(federation, "off" if kind == "memory" else tmp_path / "cache")
    unread()
    if kind == "memory":
        with pytest.raises(AssertionError, match="an image was read"):
            built(federation, "off")
        return
    again = built(federation, tmp_path / "cache")
    assert same(again, [first[index] for index in range(8)])
    assert again.samples == first.samples
    assert again.labelled.tolist() == first.labelled.tolist()
    with pytest.raises(AssertionError, match="an image was read"):
        built(federation, tmp_path / "cache", size=(8, 8))


def test_a_federation_that_was_moved_and_renamed_is_found(tmp_path: Path, unread: Callable[[], None]) -> None:
    federation = pictures(tmp_path / "f", (8, 8), (8, 8))
    first = built(federation, tmp_path / "cache")
    (tmp_path / "f" / "a").rename(tmp_path / "f" / "b")
    (tmp_path / "f").rename(tmp_path / "g")
    moved = open_federation(tmp_path / "g")
    unread()
    again = build_imageset(moved.sites["b"], moved, DataSettings(cache=str(tmp_path / "cache")))
    assert same(again, [first[0], first[1]])
    assert [sample.site for sample in again.samples] == ["b", "b"]


def test_a_changed_image_is_prepared_again(tmp_path: Path) -> None:
    federation = pictures(tmp_path / "f", (8, 8), (8, 8))
    path = tmp_path / "f/a/images/p0_s1.png"
    built(federation, tmp_path / "cache")
    then = path.stat()
    PILImage.fromarray(np.eye(8, dtype=np.uint8)[..., None].repeat(3, 2) * 200).save(path)
    os.utime(path, ns=(then.st_atime_ns, then.st_mtime_ns))
    again = built(federation, tmp_path / "cache")
    assert torch.equal(again[0][0], torch.eye(8).expand(3, 8, 8))
    assert entries(tmp_path / "cache") == ["images", "images", "labels", "labels"]


def test_other_labels_share_the_images(tmp_path: Path, unread: Callable[[], None]) -> None:
    """And labels that are not named are neither read nor kept."""
    federation, settings = volumes(tmp_path / "f", (8, 6, 3), (8, 6, 5)), DataSettings(cache=str(tmp_path / "cache"))
    items = federation.sites["a"]
    full = build_imageset(items, federation, settings)
    assert items[1].label is not None
    items[1].label.write_bytes(b"must not be read")
    some = (replace(items[0], labelled_slices=(0, 2)), replace(items[1], label=None))
    few = build_imageset(some, federation, settings)
    assert entries(tmp_path / "cache") == ["images", "labels", "labels"]
    assert few.labelled.tolist() == [True, False, True, *[False] * 5]
    assert torch.equal(few[2][1], full[2][1])
    assert not few[1][1].any()
    unread()
    none = build_imageset([replace(item, label=None) for item in items], federation, settings)
    assert entries(tmp_path / "cache") == ["images", "labels", "labels"]
    assert not none.labelled.any()
    assert torch.equal(none[7][0], full[7][0])
    assert not none.batch(torch.arange(8))[1].any()


def test_sites_with_the_same_images_share_them_and_an_empty_one_has_none(tmp_path: Path) -> None:
    federation = pictures(tmp_path / "f", (8, 8), (8, 8))
    settings = DataSettings(cache=str(tmp_path / "cache"))
    items = federation.sites["a"]
    copies = tuple(replace(item, site="b", name=f"copy-{item.name}") for item in items)
    for _ in range(2):
        both = build_imagesets({"a": items, "b": copies, "c": ()}, Preparation(federation, settings))
        assert same(both["b"], [both["a"][0], both["a"][1]])
        assert [sample.name for sample in both["b"].samples] == ["copy-p0_s1", "copy-p1_s1"]
        assert (len(both["c"]), len(both["c"].labelled)) == (0, 0)
    assert entries(tmp_path / "cache") == ["images", "labels"]
    off = build_imagesets({"a": items, "c": ()}, Preparation(federation, replace_cache(settings, "off")))
    assert same(off["a"], [both["a"][0], both["a"][1]])
    assert len(off["c"]) == 0


def replace_cache(settings: DataSettings, cache: str) -> DataSettings:
    return settings.model_copy(update={"cache": cache})


def test_progress_counts_all_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyclinic.data.build_imageset._SITES_AT_ONCE", 1)
    federation, settings = pictures(tmp_path / "f", (8, 8), (8, 8), (8, 8)), DataSettings(cache=str(tmp_path / "c"))
    first, second, third = federation.sites["a"]
    told: list[tuple[int, int]] = []

    def build(sites: dict[str, tuple[Item, ...]]) -> None:
        build_imagesets(sites, Preparation(federation, settings, progress=lambda *numbers: told.append(numbers)))

    build({"a": (first, second), "b": (third,)})
    assert told == [(1, 3), (2, 3), (3, 3)]
    told.clear()
    build({"a": (first, second), "b": (third, first)})
    assert told == [(3, 4), (4, 4)]


@pytest.mark.parametrize("processes", [1, 2])
def test_damaged_files_get_the_sentence_of_the_first_and_leave_nothing(tmp_path: Path, processes: int) -> None:
    federation = pictures(tmp_path / "f", *[(8, 8)] * 9)
    for number in (6, 3):
        (tmp_path / f"f/a/images/p{number}_s1.png").write_bytes(b"damaged")
    for cache in (tmp_path / "cache", "off"):
        with pytest.raises(PolyclinicError, match=r"p3_s1\.png: cannot be read as png"):
            built(federation, cache, processes, size=(8, 8))
    assert not list((tmp_path / "cache").glob("*.safetensors*"))


def test_files_that_change_while_they_are_read_get_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = pictures(tmp_path / "f", (8, 8), (8, 8))

    def changing(item: Item, *rest: Any) -> Any:
        prepared = prepare(item, *rest)
        with item.images[0].open("ab") as file:
            file.write(b"more")
        return prepared

    monkeypatch.setattr(site_preparation, "prepare", changing)
    with pytest.raises(PolyclinicError, match="f/a/images: files changed while they were read; start again"):
        built(federation, tmp_path / "cache", 1)
    assert entries(tmp_path / "cache") == []


def test_without_the_cache_a_site_above_the_limit_gets_a_sentence(tmp_path: Path) -> None:
    federation = pictures(tmp_path / "f", (9, 7), (8, 8), (20, 4))
    small = 3 * 8 * 6 * (3 * 4 + 1) / 10**6
    assert len(built(federation, "off", size=(8, 6), memory_limit_mb=small)) == 3
    with pytest.raises(PolyclinicError, match=r'^data.cache = "off", and the prepared images of site \'a\' need 0 MB'):
        built(federation, "off", size=(8, 6), memory_limit_mb=small * 0.99)
    assert len(built(federation, tmp_path / "cache", size=(8, 6), memory_limit_mb=0)) == 3


@pytest.mark.parametrize("processes", [1, 2])
def test_a_full_disk_is_said_and_memory_does(tmp_path: Path, processes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = pictures(tmp_path / "f", (8, 8), (8, 8))
    pairs, said = expected(federation), list[str]()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)

    def build(**keys: Any) -> ImageSet:
        settings = DataSettings(cache=str(tmp_path / "cache"), **keys)
        preparation = Preparation(federation, settings, processes, say=said.append)
        return build_imagesets({"a": federation.sites["a"]}, preparation)["a"]

    assert same(build(), pairs)
    words = f"{tmp_path / 'cache'}: the cache cannot be used (No space left on device)"
    assert said == [f"warning: {words}; prepared images are kept in memory"]
    assert [path.name for path in (tmp_path / "cache").iterdir()] in ([], ["hashes"])
    with pytest.raises(PolyclinicError) as error:
        build(memory_limit_mb=0)
    assert str(error.value).startswith(f"{words}, and the prepared images of site 'a' need")


def test_a_cache_that_is_too_small_is_said_and_others_stay(tmp_path: Path) -> None:
    federation, said = pictures(tmp_path / "f", (8, 8), (8, 8)), list[str]()
    items = federation.sites["a"]
    build_imageset(items[:1], federation, DataSettings(cache=str(tmp_path / "cache")))
    settings = DataSettings(cache=str(tmp_path / "cache"), cache_limit_mb=1e-3)
    sites = {"a": items[:1], "b": items[1:]}
    both = build_imagesets(sites, Preparation(federation, settings, say=said.append))
    assert same(both["b"], expected(federation)[1:])
    assert "data.cache_limit_mb allows 0.001 MB" in said[0]
    assert same(both["a"], expected(federation)[:1])


@dataclass
class Maker:
    """A process that prepares site a, and says when it begins with an image and what it was told."""

    pid: int
    output: TextIO

    def end(self) -> int:
        self.output.read()  # ends when the last process that could write is gone
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def make_elsewhere(federation: Federation, cache: Path, until: Path) -> Maker:
    """Prepares when the file ``until`` is there."""
    output, own = os.pipe()
    pid = os.fork()
    if pid:
        os.close(own)
        return Maker(pid, os.fdopen(output))

    def slowly(*arguments: Any) -> Any:
        os.write(own, b"prepares\n")
        while not until.exists():
            time.sleep(0.01)
        return prepare(*arguments)

    def say(text: str) -> None:
        os.write(own, text.encode() + b"\n")

    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        site_preparation.prepare = slowly
        preparation = Preparation(federation, DataSettings(cache=str(cache)), 2, say=say)
        say(str(build_imagesets(federation.sites, preparation)["a"].labelled.tolist()))
        code = 0
    finally:
        os._exit(code)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_who_is_stopped_in_the_middle_leaves_no_entry_and_no_process(how: signal.Signals, tmp_path: Path) -> None:
    federation = pictures(tmp_path / "f", *[(8, 8)] * 4)
    maker = make_elsewhere(federation, tmp_path / "cache", tmp_path / "never")
    assert [maker.output.readline() for _ in range(2)] == ["prepares\n"] * 2
    os.kill(maker.pid, how)
    assert maker.end() != 0
    assert entries(tmp_path / "cache") == []
    assert not is_cached(federation.sites["a"], federation, DataSettings(cache=str(tmp_path / "cache")))
    if how is signal.SIGINT:
        assert not list((tmp_path / "cache").glob(".*"))
    assert same(built(federation, tmp_path / "cache"), expected(federation))
    assert not list((tmp_path / "cache").glob(".*"))


def test_two_at_once_make_one_entry(tmp_path: Path) -> None:
    federation = pictures(tmp_path / "f", *[(8, 8)] * 4)
    first = make_elsewhere(federation, tmp_path / "cache", tmp_path / "go")
    assert first.output.readline() == "prepares\n"
    second = make_elsewhere(federation, tmp_path / "cache", tmp_path / "go")
    assert second.output.readline() == "waiting for another process that prepares the same images\n"
    (tmp_path / "go").touch()
    assert [first.output.readline() for _ in range(4)] == [*["prepares\n"] * 3, "[True, True, True, False]\n"]
    assert second.output.readline() == "[True, True, True, False]\n"
    assert first.end() == second.end() == 0
    assert entries(tmp_path / "cache") == ["images", "labels"]


def test_entries_that_vanish_are_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = pictures(tmp_path / "f", (8, 8), (8, 8))
    from polyclinic.data.prepared_cache import PreparedCache

    real, left = PreparedCache.add, [2]

    def add(self: PreparedCache, names: list[str]) -> None:
        real(self, names)
        if left[0]:
            left[0] -= 1
            for path in self.folder.glob("*.safetensors"):
                path.unlink()

    monkeypatch.setattr(PreparedCache, "add", add)
    assert same(built(federation, tmp_path / "cache"), expected(federation))
    left[0] = 99
    with pytest.raises(PolyclinicError, match=r"raise data\.cache_limit_mb"):
        built(federation, tmp_path / "cache", size=(4, 4))


def test_the_size_of_prepared_images_is_known_before_one_is_read(tiny_federation: Path, tmp_path: Path) -> None:
    federation = open_federation(tiny_federation)
    items = federation.sites["north"]
    for keys in ({"size": (32, 24)}, {}):
        settings = DataSettings(cache=str(tmp_path), **keys)
        assert not is_cached(items, federation, settings)
        images = build_imageset(items, federation, settings)
        pairs = [images.batch(torch.tensor([row])) for row in range(5)]
        total = sum(image.numel() * 4 + label.numel() for image, label in pairs)
        assert prepared_bytes(items, federation, settings) == (total, total // 5)
        assert is_cached(items, federation, settings)
        assert not is_cached(items, federation, replace_cache(settings, "off"))
    assert prepared_bytes((), federation, DataSettings()) == (0, 0)
