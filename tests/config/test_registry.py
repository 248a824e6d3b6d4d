"""Names of positions and merges, and how a class registers under one."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

import heed
from heed.config import MERGES, POSITIONS, ModelConfig
from heed.config.registry import REGISTRIES, Registry
from heed.errors import HeedError
from heed.nn.merges import Merge
from heed.nn.positions import Position


@pytest.fixture
def own_registries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Classes registered in a test are gone after it."""
    for registry in REGISTRIES:
        monkeypatch.setattr(registry, "classes", dict(registry.classes))


@pytest.mark.parametrize("registry", REGISTRIES, ids=lambda one: one.kind)
def test_the_built_in_names_are_declared_and_registered(registry: Registry) -> None:
    assert list(registry.declared) == list(registry.names())
    assert set(registry.declared) == set(registry.classes)
    for name in registry:
        assert registry[name].name == name
        assert registry.describe(name)
        assert name in registry


def test_the_descriptions_of_recipe_keys_list_the_names() -> None:
    for key, registry in (("position", POSITIONS), ("merge", MERGES)):
        description = ModelConfig.model_fields[key].description or ""
        assert all(re.search(rf"\b{name}\b", description) for name in registry.names())


def test_names_need_no_torch() -> None:
    code = (
        "import sys, heed; from heed.config import POSITIONS, ModelConfig; heed.register; "
        "assert 'rope' in POSITIONS and ModelConfig(position='t5').position == 't5'; "
        "assert 'torch' not in sys.modules and 'heed.nn' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.usefixtures("own_registries")
def test_a_class_registers_by_its_base() -> None:
    @heed.register
    class Decay(Position):
        """Falls with distance.

        And more about it.
        """

        name = "decay"

    @MERGES.register
    class Mean(Merge):
        """The mean of the heads."""

        name = "mean"

    assert POSITIONS["decay"] is Decay
    assert MERGES["mean"] is Mean
    assert POSITIONS.names()[-1] == "decay"
    assert POSITIONS.describe("decay") == "Falls with distance."
    assert ModelConfig(position="decay", merge="mean").merge == "mean"
    assert "decay" not in MERGES


@pytest.mark.usefixtures("own_registries")
def test_a_taken_name_is_an_error() -> None:
    with pytest.raises(HeedError, match="position 'rope' already"):
        heed.register(type("Rope", (Position,), {"name": "rope"}))
    heed.register(type("Decay", (Position,), {"name": "decay"}))
    with pytest.raises(HeedError, match="position 'decay' already"):
        heed.register(type("Other", (Position,), {"name": "decay"}))


@pytest.mark.usefixtures("own_registries")
@pytest.mark.parametrize("name", [{}, {"name": ""}, {"name": 3}, {"name": "two words"}])
def test_a_class_without_a_name_is_an_error(name: dict[str, object]) -> None:
    with pytest.raises(HeedError, match="no usable name"):
        heed.register(type("Nameless", (Position,), name))


def test_another_class_is_an_error() -> None:
    with pytest.raises(HeedError, match="neither a position nor a merge"):
        heed.register(dict)
    with pytest.raises(HeedError, match="does not inherit from Merge"):
        MERGES.register(Position)


@pytest.mark.usefixtures("own_registries")
def test_an_undeclared_built_in_is_an_error() -> None:
    own = {"name": "eighth", "__module__": POSITIONS.module}
    with pytest.raises(HeedError, match="not declared") as error:
        POSITIONS.register(type("Eighth", (Position,), own))
    assert "heed/config/registry.py" in str(error.value)
