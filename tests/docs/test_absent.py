"""No page says that fedpeer lacks a name that a registry has, or that such a name will come."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedpeer.algorithms.registry import ALGORITHMS
from fedpeer.config.registries import CHOICES, FORMS, OPTIMIZERS, PACKERS, registry
from fedpeer.config.settings import FederationSettings, RunOptions
from fedpeer.runs.summary import spoken

from .pages import PAGES, ROOT, named

#: Words of a sentence that denies something.
DENIED = re.compile(
    r"\bnot yet\b|\bnot (?:implemented|supported|built|available|possible)\b|\bunsupported\b|\bcannot be used\b"
    r"|\bthere (?:is|are) no\b|\bmissing\b|\babsent\b|\blacks?\b",
    re.IGNORECASE,
)
#: Words of a sentence that announces something; a page describes what is there, and CHANGELOG what was added.
ANNOUNCED = re.compile(
    r"\bcomes? next\b|\bnext (?:release|version|step)\b|\bplanned\b|\bcoming soon\b|\bfuture (?:release|version)"
    r"|\bwill be (?:added|built|supported)\b",
    re.IGNORECASE,
)
#: Sentences with such words that announce nothing.
OF_OTHER_THINGS = ("to which the others come next", "it counts its training for the round to which they come next")


def known() -> set[str]:
    """Return every name that a user can write, and the names of algorithms in sentences."""
    choices = {name for path in CHOICES for name in registry(path)[1]} | {*FORMS, *PACKERS, *OPTIMIZERS}
    engines = set(RunOptions.model_json_schema()["properties"]["engine"]["enum"])
    sections = {f"{section}.{key}" for section, key in settings_of(FederationSettings)}
    return choices | engines | sections | {spoken(name) for name in ALGORITHMS}


def settings_of(model: type[FederationSettings]) -> Iterator[tuple[str, str]]:
    schema = model.model_json_schema()
    for section, field in schema["properties"].items():
        definition = schema["$defs"].get(str(field.get("$ref", "")).rpartition("/")[2], {})
        yield from ((section, key) for key in definition.get("properties", {}))


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a page, without its code blocks."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    for paragraph in re.split(r"\n\s*\n|\n(?=[-|#])", prose):
        yield from re.split(r"(?<=[.;:])\s+", paragraph.replace("\n", " "))


def untrue(text: str) -> list[str]:
    """Return the sentences that deny something that fedpeer has, or announce anything."""
    names = known()
    found = []
    for sentence in sentences(text):
        written = [each.partition(":")[0].partition(",")[0] for each in re.findall(r"`([^`]+)`", sentence)]
        spoke = [name for name in names if name[:1].isupper() and re.search(rf"\b{re.escape(name)}\b", sentence)]
        denied = DENIED.search(sentence) and (names.intersection(written) or spoke)
        beside = any(part in sentence for part in OF_OTHER_THINGS)
        if denied or (ANNOUNCED.search(sentence) and not beside):
            found.append(sentence)
    return found


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_no_page_denies_or_announces_what_there_is(page: Path) -> None:
    assert untrue(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "sentence",
    [
        "The algorithm `mocha` is not yet there.",
        "Server-based algorithms with an elected coordinator come next.",
        "FedAvg is not supported by real peers.",
        "There is no `learning.outer` so far.",
        "The engine `ray` is missing.",
    ],
)
def test_such_a_sentence_is_noticed(sentence: str) -> None:
    assert untrue(f"Peers learn.\n\n{sentence} They average.") == [sentence]


def test_the_page_names_every_choice_that_may_be_ones_own_code() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    section = text[text.index("choices may be your own code") : text.index("<!--")]
    paths = (*CHOICES, ("learning", "optimizer"), ("simulation", "metrics"))
    own = [".".join(map(str, path)) for path in paths if "python" in registry(path)[1]]
    assert len(own) == 6
    assert [key for key in own if f"`{key}`" not in section] == []
