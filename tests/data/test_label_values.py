"""Values of label files that several to one become classes."""

from __future__ import annotations

import numpy as np
import pytest

from polyclinic.core.errors import PolyclinicError
from polyclinic.data.label_values import Values, label_values

CLASSES = ("background", "oedema", "core")


@pytest.mark.parametrize(
    ("table", "expected", "unknown"),
    [
        ({"oedema": (2,), "core": (1, 4)}, [0, 2, 1, 0, 2, 0], [3, 7]),
        ({"oedema": (2,), "core": "nonzero"}, [0, 2, 1, 2, 2, 2], []),
        ({"core": (1, 2, 4), "background": (0, 3)}, [0, 2, 2, 0, 2, 0], [7]),
    ],
)
@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float64])
def test_each_value_becomes_its_class(
    table: dict[str, Values], expected: list[int], unknown: list[int], dtype: type
) -> None:
    values = label_values("federation.toml: [labels]", table, CLASSES)
    assert values is not None
    classes, strangers = values.classes_of(np.array([[0, 1, 2], [3, 4, 7]], dtype))
    assert classes.dtype == np.uint8
    assert classes.flatten().tolist() == expected
    assert strangers == unknown


def test_no_table_leaves_values_as_they_are() -> None:
    assert label_values("federation.toml: [labels]", {}, CLASSES) is None


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"odema": (1,)}, "gives values to 'odema'.*oedema"),
        ({"oedema": (1, 2), "core": (2,)}, "gives the value 2 to 'oedema' and 'core'"),
        ({"core": (0, 1)}, "gives the value 0 to 'background' and 'core'"),
        ({"core": "nonzero", "oedema": "nonzero"}, "\"nonzero\" for 'core' and 'oedema'"),
    ],
)
def test_a_wrong_table_gets_a_sentence(table: dict[str, Values], message: str) -> None:
    with pytest.raises(PolyclinicError, match=rf"federation\.toml: \[labels\] .*{message}"):
        label_values("federation.toml: [labels]", table, CLASSES)
