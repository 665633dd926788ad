from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from polyclinic.components.toolbox.prototypes.finch import Partition, cluster_by_class, cluster_means, finch

Rows = list[list[float]]


def cosine(a: list[float], b: list[float]) -> float:
    lengths = math.sqrt(sum(x * x for x in a)) * math.sqrt(sum(x * x for x in b))
    return round(sum(x * y for x, y in zip(a, b, strict=True)) / lengths, 10) if lengths else 0.0


def naive_components(rows: Rows) -> list[int]:
    """Sarfraz et al. eq. 1: all three link conditions in an adjacency matrix, then flood fill."""
    count = len(rows)
    first = [
        max((j for j in range(count) if j != i), key=lambda j, i=i: (cosine(rows[i], rows[j]), -j), default=i)
        for i in range(count)
    ]
    linked = [
        [first[i] == j or first[j] == i or first[i] == first[j] for j in range(count)] for i in range(count)
    ]  # fmt: skip
    cluster = [-1] * count
    for start in range(count):
        if cluster[start] >= 0:
            continue
        number, waiting = max(cluster) + 1, [start]
        while waiting:
            one = waiting.pop()
            if cluster[one] < 0:
                cluster[one] = number
                waiting += [j for j in range(count) if linked[one][j]]
    return cluster


def naive_finch(rows: Rows) -> list[list[int]]:
    """Recursion on the means of the original rows; everything in one cluster counts only if it comes first."""
    partitions = [naive_components(rows)]
    while max(partitions[-1]) > 0:
        before = partitions[-1]
        members = [[row for row, c in zip(rows, before, strict=True) if c == k] for k in range(max(before) + 1)]
        means = [[sum(column) / len(part) for column in zip(*part, strict=True)] for part in members]
        merged = naive_components(means)
        if max(merged) == 0:
            break
        partitions.append([merged[c] for c in before])
    return partitions


def canonical(partition: Tensor | list[int]) -> list[int]:
    """Clusters numbered by first appearance."""
    numbers: dict[int, int] = {}
    return [numbers.setdefault(int(c), len(numbers)) for c in partition]


def assert_agrees(rows: Rows) -> None:
    found = finch(torch.tensor(rows, dtype=torch.float64))
    assert [canonical(p) for p in found] == [canonical(p) for p in naive_finch(rows)]
    for partition in found:
        assert partition.dtype == torch.int64
        assert partition.unique().tolist() == list(range(int(partition.max()) + 1))


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 40), st.integers(2, 5), st.integers(0, 10**6))
def test_every_partition_agrees_with_brute_force(count: int, channels: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    assert_agrees(torch.randn(count, channels, generator=generator, dtype=torch.float64).tolist())


@settings(deadline=None, max_examples=25)
@given(st.data(), st.integers(1, 12), st.integers(1, 3))
def test_ties_duplicates_and_zeros_agree_with_brute_force(data: st.DataObject, count: int, channels: int) -> None:
    row = st.lists(st.integers(-1, 2).map(float), min_size=channels, max_size=channels)
    assert_agrees(data.draw(st.lists(row, min_size=count, max_size=count)))


def test_several_levels_agree_with_brute_force() -> None:
    """Directions in pairs of pairs of pairs: three partitions, so that the recursion is walked through."""
    angles = [a + b + c for a in (0.0, 1.5, 3.2) for b in (0.0, 0.2) for c in (0.0, 0.01, 0.03, 0.038)]
    rows = [[math.cos(a), math.sin(a)] for a in angles]
    assert_agrees(rows)
    assert [int(p.max()) + 1 for p in finch(torch.tensor(rows))] == [12, 6, 3]


def test_means_are_of_the_original_rows_not_of_the_means_before() -> None:
    """A case with clusters of unequal size, where clustering the means of means gives another third partition."""
    rows = torch.randn(60, 3, generator=torch.Generator().manual_seed(13), dtype=torch.float64)
    assert_agrees(rows.tolist())
    fine, middle, coarse = finch(rows)
    means = cluster_means(rows, fine)
    step = finch(means)[0]
    assert canonical(step[fine]) == canonical(middle)
    assert canonical(finch(cluster_means(means, step))[0][step[fine]]) != canonical(coarse)
    naive = torch.stack([rows[coarse == k].mean(0) for k in coarse.unique()])
    torch.testing.assert_close(cluster_means(rows, coarse), naive)


def test_no_row_is_a_sentence_and_one_row_is_one_cluster() -> None:
    with pytest.raises(ValueError, match="no rows"):
        finch(torch.empty(0, 3))
    for rows in (torch.ones(1, 3), torch.zeros(1, 3)):
        assert [p.tolist() for p in finch(rows)] == [[0]]


@pytest.mark.parametrize("second", [[1.0, 0.0], [0.9, 0.1], [-1.0, 0.0], [0.0, 0.0]])
def test_two_rows_are_always_one_cluster(second: list[float]) -> None:
    """Each is the other's first neighbour, however far. All in one is kept, being the first partition."""
    assert [p.tolist() for p in finch(torch.tensor([[1.0, 0.0], second]))] == [[0, 0]]


def test_equal_rows_are_one_cluster_and_a_tie_goes_to_the_lowest_index() -> None:
    assert [p.tolist() for p in finch(torch.full((7, 5), 0.1))] == [[0] * 7]
    assert [p.tolist() for p in finch(torch.zeros(4, 2))] == [[0] * 4]
    # Row 4 is equally near to the pairs (0, 1) and (2, 3); the lowest index is row 0.
    rows = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [1.0, 1.0]])
    assert canonical(finch(rows)[0]) == [0, 0, 1, 1, 0]
    swapped = rows[torch.tensor([2, 3, 0, 1, 4])]
    assert canonical(finch(swapped)[0]) == [0, 0, 1, 1, 0]


@pytest.mark.parametrize("channels", [7, 33, 256])
def test_copies_of_a_row_stay_together_among_many_rows(channels: int) -> None:
    """Similarities of equal rows may differ in the last bit, and copies must not fall into pairs by that."""
    generator = torch.Generator().manual_seed(channels)
    order = torch.randperm(300, generator=generator)
    rows = torch.randn(50, channels, generator=generator).repeat(6, 1)[order]
    assert canonical(finch(rows)[0]) == canonical(order % 50)


def test_a_row_of_zeros_joins_the_first_row() -> None:
    rows = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0], [0.0, 0.0]])
    assert canonical(finch(rows)[0]) == [0, 0, 1, 1, 0]


@pytest.mark.parametrize("size", [3, 20])
def test_two_blobs_are_never_mixed_by_the_first_partition(size: int) -> None:
    """Three rows are always connected, so that two blobs of three are exactly the two clusters."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]).repeat_interleave(size, 0)
    rows = centres + 0.05 * torch.randn(2 * size, 3, generator=generator)
    partitions = finch(rows)
    assert not set(partitions[0][:size].tolist()) & set(partitions[0][size:].tolist())
    if size == 3:
        assert [canonical(p) for p in partitions] == [[0, 0, 0, 1, 1, 1]]
    scaled = rows * torch.rand(2 * size, 1, generator=generator).add(0.5)
    assert canonical(finch(scaled)[0]) == canonical(partitions[0])


@settings(deadline=None, max_examples=25)
@given(st.integers(2, 40), st.integers(0, 10**6))
def test_a_permutation_of_the_rows_permutes_the_partitions(count: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(count, 3, generator=generator, dtype=torch.float64)
    order = torch.randperm(count, generator=generator)
    plain, permuted = finch(rows), finch(rows[order])
    assert [canonical(p[order]) for p in plain] == [canonical(p) for p in permuted]


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 60), st.integers(0, 10**6))
def test_partitions_are_nested_and_at_least_halve(count: int, seed: int) -> None:
    partitions = finch(torch.randn(count, 4, generator=torch.Generator().manual_seed(seed)))
    sizes = [count, *(int(p.max()) + 1 for p in partitions)]
    assert count == 1 or all(2 * after <= before for before, after in pairwise(sizes))
    assert all(size > 1 for size in sizes[2:])
    for fine, coarse in pairwise(partitions):
        pairs = {(int(f), int(c)) for f, c in zip(fine, coarse, strict=True)}
        assert len(pairs) == int(fine.max()) + 1


# ---- within classes --------------------------------------------------------------------------------------------------


def vectors_and_classes(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Classes 0, 2 and 5 of six, mixed up; class 5 has one row."""
    generator = torch.Generator().manual_seed(seed)
    classes = torch.tensor([0] * 14 + [2] * 12 + [5])[torch.randperm(27, generator=generator)]
    return torch.randn(27, 3, generator=generator), classes


@pytest.mark.parametrize("partition", ["last", "first"])
def test_clusters_by_class_are_the_means_of_the_naive_partitions(partition: Partition) -> None:
    vectors, classes = vectors_and_classes()
    means, owners = [], []
    for one in (0, 2, 5):
        rows = vectors[classes == one]
        partitions = naive_finch(rows.double().tolist())
        chosen = partitions[-1 if partition == "last" else 0]
        for cluster in range(max(chosen) + 1):
            means.append(rows[[i for i, c in enumerate(chosen) if c == cluster]].mean(0))
            owners.append(one)
    found, found_classes = cluster_by_class(vectors, classes, partition)
    assert found_classes.tolist() == owners
    assert found_classes.dtype == torch.int64
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, torch.stack(means))


def test_fine_and_coarse_partitions_differ_here() -> None:
    """Guards the test above."""
    vectors, classes = vectors_and_classes()
    fine, coarse = (len(cluster_by_class(vectors, classes, p)[0]) for p in ("first", "last"))
    assert fine > coarse == len(cluster_by_class(vectors, classes)[0])


def test_no_vectors_give_no_clusters() -> None:
    means, owners = cluster_by_class(torch.empty(0, 4), torch.empty(0, dtype=torch.int64))
    assert means.shape == (0, 4)
    assert owners.shape == (0,)
    assert owners.dtype == torch.int64
