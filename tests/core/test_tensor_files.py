"""Tensors come back bit for bit; a damaged file gets a sentence and never replaces a good one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import atomic_write
from polyclinic.core.tensor_files import load_about, load_tensors, save_tensors

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool)


@given(
    st.dictionaries(
        st.text("abc./_ü", min_size=1, max_size=6),
        st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 3), max_size=3)),
        max_size=4,
    ),
    st.dictionaries(st.text(max_size=4), st.integers() | st.none() | st.text(max_size=4), max_size=3),
)
def test_any_types_and_shapes_come_back(
    tmp_path_factory: pytest.TempPathFactory,
    shapes: dict[str, tuple[torch.dtype, list[int]]],
    about: dict[str, object],
) -> None:
    tensors = {name: (torch.rand(shape) * 3).to(dtype) for name, (dtype, shape) in shapes.items()}
    path = tmp_path_factory.mktemp("tensors") / "t.safetensors"
    save_tensors(path, tensors, about)
    back, back_about = load_tensors(path)
    assert load_about(path) == about
    assert back.keys() == tensors.keys()
    assert back_about == about
    for name, tensor in tensors.items():
        assert back[name].dtype == tensor.dtype
        assert back[name].shape == tensor.shape
        assert torch.equal(back[name], tensor)


def test_views_and_two_names_of_one_storage_are_written_apart(tmp_path: Path) -> None:
    whole = torch.arange(6.0).reshape(2, 3)
    tensors = {"whole": whole, "again": whole, "row": whole[1], "turned": whole.T, "trained": whole.requires_grad_()}
    save_tensors(tmp_path / "t", tensors)
    back, about = load_tensors(tmp_path / "t")
    assert about == {}
    assert back["again"].tolist() == back["whole"].tolist() == back["trained"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert back["row"].tolist() == [3, 4, 5]
    assert back["turned"].tolist() == [[0, 3], [1, 4], [2, 5]]


def test_a_write_that_fails_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    path = tmp_path / "kept.safetensors"
    save_tensors(path, {"a": torch.ones(1)}, {"round": 1})

    def write_half() -> None:
        with atomic_write(path) as temporary:
            temporary.write_bytes(b"half")
            raise OSError(28, "No space left on device")

    with pytest.raises(PolyclinicError, match="No space left"):
        write_half()
    tensors, about = load_tensors(path)
    assert tensors["a"].tolist() == [1]
    assert about == {"round": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["kept.safetensors"]


def test_what_the_system_refuses_is_told_as_for_any_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import safetensors.torch
    from safetensors import SafetensorError

    def full(*_: object, **__: object) -> None:
        raise SafetensorError("Error while serializing: IoError(No space left on device)")

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    with pytest.raises(PolyclinicError, match=r"t: cannot be written .*No space left.*free some space"):
        save_tensors(tmp_path / "t", {"a": torch.ones(1)})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"half", b"\xff" * 64, None])
def test_what_is_no_safetensors_file_gets_a_sentence(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "t.safetensors").write_bytes(content)
    with pytest.raises(PolyclinicError, match=r"t\.safetensors: not a readable safetensors file"):
        load_tensors(tmp_path / "t.safetensors")


def test_half_of_a_file_gets_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    save_tensors(path, {"a": torch.ones(100)})
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(PolyclinicError, match=r"t\.safetensors: not a readable safetensors file"):
        load_tensors(path)


def test_a_file_of_another_program_has_no_plain_data(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"a": torch.ones(1)}, tmp_path / "t")
    assert load_tensors(tmp_path / "t")[1] == {}
    save_file({"a": torch.ones(1)}, tmp_path / "t", metadata={"about": "{"})
    with pytest.raises(PolyclinicError, match="not a readable safetensors file"):
        load_tensors(tmp_path / "t")
