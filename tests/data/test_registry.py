"""The table of data sets: complete, described, and quick to list."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from fedpeer.config.choice import ChoiceError, bind_settings, parse_choice
from fedpeer.data import registry
from fedpeer.data.dataset import DataError
from fedpeer.data.registry import DATASETS, SOURCES, describe_dataset, prepare_dataset


def test_each_data_set_is_described(folder: Path) -> None:
    assert DATASETS.keys() == SOURCES.keys()
    for name, function in DATASETS.items():
        found = describe_dataset(name)
        others = {
            "extra": ("digits", "watch", "flights", "speeches", "associative-digits"),
            "made here": ("associative",),
            "by hand": ("femnist", "mnist-by-writer"),
        }
        obtained = next((how for how, names in others.items() if name in names), "download")
        assert (found.name, found.obtained) == (name, obtained)
        assert found.here == SOURCES[name].here
        for text in (found.summary, found.source, found.licence, found.size):
            assert text
            assert len(text) < 130
        assert found.summary == inspect.getdoc(function).splitlines()[0]  # type: ignore[union-attr]
        for parameter in inspect.signature(function).parameters.values():
            assert parameter.kind is inspect.Parameter.KEYWORD_ONLY


def test_a_file_that_is_there_shows(folder: Path) -> None:
    assert not describe_dataset("landmine").here
    (folder / "landmine").mkdir()
    (folder / "landmine/LandmineData.mat").write_bytes(b"")
    assert describe_dataset("landmine").here
    assert prepare_dataset("landmine") == [folder / "landmine/LandmineData.mat"]


def test_a_package_without_the_files_beside_it_is_not_all(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry.store.importlib.util, "find_spec", lambda name: name)  # type: ignore[attr-defined]
    assert not describe_dataset("speeches").here
    (folder / "shakespeare").mkdir()
    (folder / "shakespeare/raw_data.txt").write_bytes(b"")
    assert describe_dataset("speeches").here


def test_all_real_ones_are_here(real: Path) -> None:
    absent = {name for name in DATASETS if not describe_dataset(name).here}
    assert absent <= {"femnist", "hapt", "gleam", "watch", "flights", "speeches"}


def test_settings_follow_the_grammar_of_choices() -> None:
    assert bind_settings(parse_choice("cifar100:fine"), DATASETS["cifar100"]) == {"labels": "fine"}
    assert bind_settings(parse_choice("mnist:image"), DATASETS["mnist"]) == {"shape": "image"}
    assert bind_settings(parse_choice("femnist:digits,shape=image"), DATASETS["femnist"]) == {
        "variant": "digits",
        "shape": "image",
    }
    assert bind_settings(parse_choice("parkinsons:total_UPDRS"), DATASETS["parkinsons"]) == {"target": "total_UPDRS"}
    assert bind_settings(parse_choice("shakespeare:none,samples=50"), DATASETS["shakespeare"]) == {
        "users": None,
        "samples": 50,
    }
    assert bind_settings(parse_choice("watch:50"), DATASETS["watch"]) == {"stride": 50}
    assert bind_settings(parse_choice("har:sitting"), DATASETS["har"]) == {"positive": "sitting"}
    with pytest.raises(ChoiceError, match="takes no value"):
        bind_settings(parse_choice("landmine:3"), DATASETS["landmine"])


def test_preparing_what_comes_with_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    assert prepare_dataset("digits") == []
    monkeypatch.setattr(registry.store.importlib.util, "find_spec", lambda name: None)  # type: ignore[attr-defined]
    assert not describe_dataset("watch").here
    with pytest.raises(DataError, match=r"fedpeer\[watch\]"):
        prepare_dataset("watch")


def test_listing_imports_nothing_heavy() -> None:
    program = (
        "import sys; from fedpeer.data.registry import DATASETS, describe_dataset;"
        "[describe_dataset(name) for name in DATASETS];"
        "print(*{'torch', 'sklearn', 'scipy', 'pooch', 'requests', 'rich', 'seglearn'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
