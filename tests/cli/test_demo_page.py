"""The page of the demonstration: its data, the questions it may ask, the named rejections, and how it is served."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from functools import partial
from typing import Any

import aiohttp
import numpy as np
import pytest
from aiohttp.test_utils import TestClient, TestServer

from fedpeer.experiments.associative import demonstration
from fedpeer.experiments.associative.demonstration import METHODS
from fedpeer.experiments.associative.page import server
from fedpeer.experiments.associative.page.server import (
    QUESTION_BYTES_MAX,
    QuestionError,
    address,
    application,
    bind_page,
    serve_page,
)
from fedpeer.experiments.associative.questions import Question, answer_to, answered, question_in, tellable
from fedpeer.experiments.associative.shown import Shown
from tests.cli.conftest import Fedpeer
from tests.experiments import recalls
from tests.experiments.recalls import AVERAGED, HIDDEN, STRANGE, A, B, C

GIVEN = STRANGE.half.reshape(-1).astype(int).tolist()
GOOD = {"peer": "peer1", "methods": ["local"], "given": GIVEN}
PATHS = ("/", "/play.css", "/play.js", "/page.css", "/draw.js", "/demo.json")


@pytest.fixture(scope="module")
def shown() -> Shown:
    return recalls.shown()


@asynccontextmanager
async def visitor(shown: Shown) -> AsyncIterator[TestClient[Any, Any]]:
    async with TestClient(
        TestServer(application(tellable(shown, 3), partial(answer_to, recall=shown.recall)))
    ) as client:
        yield client


# -------------------------------------------------------------------------------------------------------------- pure


def test_the_page_is_told_who_there_is_and_what_they_learnt(shown: Shown) -> None:
    told = tellable(shown, 3)
    assert (told["rows"], told["columns"], told["images"]) == (5, 10, False)
    assert [method["id"] for method in told["methods"]] == list(METHODS)
    assert [each["id"] for each in told["peers"]] == list(recalls.PEERS)
    relations = [[(each["name"], each["relation"]) for each in peer["patterns"]] for peer in told["peers"][:3]]
    assert relations == [
        [("A′", "otherwise"), ("B", "learnt"), ("C", "learnt")],
        [("A", "never"), ("B", "learnt"), ("C", "learnt")],
        [("A", "learnt"), ("B", "learnt"), ("C", "learnt")],
    ]
    assert np.flatnonzero(told["peers"][1]["patterns"][1]["half"]).tolist() == [20, 21, 22, 23, 24]
    assert told["start"] == {"peer": "peer1", "given": GIVEN}
    assert f"shares {AVERAGED}" in " ".join(told["facts"])
    assert told["scores"]["rows"][2][:2] == ["partial averaging", "100.0 %"]
    assert told["scores"]["best"] == 2
    assert "does neither" in told["lesson"]
    json.dumps(told, allow_nan=False)


def test_an_answer_has_both_layers_and_what_is_said_of_them(shown: Shown) -> None:
    recall = shown.recall
    found = answered(recall, Question("peer1", METHODS, STRANGE.half))
    assert list(found) == list(METHODS)
    for method, each in found.items():
        slow = recall.ask(method, "peer1", STRANGE.half)
        assert each["hidden"] == slow.hidden_H.tolist()
        assert each["answer"] == slow.answer.reshape(-1).tolist()
        assert each["expected"] == STRANGE.whole.reshape(-1).tolist()
    assert {method: sum(each["averaged"]) for method, each in found.items()} == {
        "local": 0,
        "full-averaging": HIDDEN,
        "partial-averaging": AVERAGED,
    }
    local, full = found["local"], found["full-averaging"]
    assert (local["passes"], local["verdict"]) == (True, ["all right"])
    assert (full["passes"], full["verdict"]) == (False, ["fails", "5 missing", "5 too much"])
    assert "as the majority does" in full["says"]


def test_where_nothing_is_expected_there_is_no_verdict(shown: Shown) -> None:
    found = answered(shown.recall, Question("peer2", ("local",), A.half | C.half))["local"]
    assert (found["expected"], found["passes"], found["verdict"]) == (None, None, None)
    assert "not part of a pattern" in found["says"]


def test_a_question_is_read(shown: Shown) -> None:
    body = {"peer": "peer2", "methods": ["full-averaging", "local", "local"], "given": B.half.reshape(-1).astype(int)}
    found = question_in(json.dumps(body, default=np.ndarray.tolist).encode(), shown.recall)
    assert (found.peer, found.methods) == ("peer2", ("full-averaging", "local"))
    assert np.array_equal(found.given, B.half)


WRONG: dict[str, tuple[str, Any]] = {
    "no JSON": ("not_json", "{"),
    "no text": ("not_json", "\udcff"),
    "nested deeply": ("not_json", "[" * 100_000),
    "a list": ("not_a_question", []),
    "more": ("not_a_question", GOOD | {"more": 1}),
    "less": ("not_a_question", {"peer": "peer1", "methods": ["local"]}),
    "a stranger": ("unknown_peer", GOOD | {"peer": "peer9"}),
    "a peer that is a number": ("unknown_peer", GOOD | {"peer": 1}),
    "another method": ("unknown_method", GOOD | {"methods": ["local", "gossip"]}),
    "a method that is a list": ("unknown_method", GOOD | {"methods": [["local"]]}),
    "no method": ("no_methods", GOOD | {"methods": []}),
    "methods in one word": ("no_methods", GOOD | {"methods": "local"}),
    "too few cells": ("wrong_length", GOOD | {"given": GIVEN[1:]}),
    "too many cells": ("wrong_length", GOOD | {"given": [*GIVEN, 0]}),
    "cells in one word": ("wrong_length", GOOD | {"given": "0" * 50}),
    "a cell of two": ("not_0_or_1", GOOD | {"given": [2, *GIVEN[1:]]}),
    "a half cell": ("not_0_or_1", GOOD | {"given": [0.5, *GIVEN[1:]]}),
    "a cell that is true": ("not_0_or_1", GOOD | {"given": [True, *GIVEN[1:]]}),
    "a cell that is null": ("not_0_or_1", GOOD | {"given": [None, *GIVEN[1:]]}),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_question_is_refused_by_name(shown: Shown, case: str) -> None:
    name, body = WRONG[case]
    text = body if isinstance(body, str) else json.dumps(body)
    with pytest.raises(QuestionError) as refusal:
        question_in(text.encode(errors="surrogateescape"), shown.recall)
    assert refusal.value.name == name
    assert str(refusal.value).endswith(".")
    assert len(str(refusal.value)) < 160


def test_a_refusal_does_not_repeat_all_that_it_was_told(shown: Shown) -> None:
    with pytest.raises(QuestionError, match=r"There is no peer \"xxx.*\.\.\.; there are peer1, peer2, peer3, peer4\."):
        question_in(json.dumps(GOOD | {"peer": "x" * 2000}).encode(), shown.recall)


# ------------------------------------------------------------------------------------------------------------ server


@pytest.mark.asyncio
async def test_the_page_and_its_files_are_served_hardened(shown: Shown) -> None:
    async with visitor(shown) as client:
        for path in PATHS:
            answer = await client.get(path)
            assert answer.status == 200, path
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
            assert answer.headers["Cache-Control"] == "no-store"
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.headers["Server"] == "fedpeer"
            assert "http://" not in (text := await answer.text()).replace("http://www.w3.org/2000/svg", ""), path
            assert "https://" not in text, "nothing from elsewhere"
        assert (await client.get("/status.json")).status == 404


@pytest.mark.asyncio
async def test_a_question_is_answered(shown: Shown) -> None:
    async with visitor(shown) as client:
        answer = await client.post("/ask", json=GOOD)
        assert answer.status == 200
        assert await answer.json() == answered(shown.recall, Question("peer1", ("local",), STRANGE.half))
        assert answer.headers["Cache-Control"] == "no-store"


@pytest.mark.asyncio
async def test_wrong_requests_are_refused_and_the_next_one_is_answered(shown: Shown) -> None:
    async with visitor(shown) as client:
        for status, name, request in (
            (400, "wrong_length", {"json": GOOD | {"given": []}}),
            (413, "too_long", {"json": GOOD | {"peer": "x" * QUESTION_BYTES_MAX}}),
            (415, "not_json", {"data": json.dumps(GOOD), "headers": {"Content-Type": "text/plain"}}),
        ):
            answer = await client.post("/ask", **request)
            assert answer.status == status
            assert (await answer.json())["error"] == name
            assert "Content-Security-Policy" in answer.headers
        assert (await client.get("/ask")).status == 405
        assert (await client.post("/ask", json=GOOD)).status == 200


@pytest.mark.asyncio
async def test_only_names_of_this_machine_are_answered(shown: Shown) -> None:
    async with visitor(shown) as client:
        for host, status in (("localhost:1", 200), ("127.0.0.1", 200), ("evil.example", 421), ("10.0.0.1", 421)):
            assert (await client.get("/demo.json", headers={"Host": host})).status == status, host


def _somebody(number: int, frame: object) -> None:
    """Do nothing, as a signal handler that was installed before."""


@pytest.mark.asyncio
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
async def test_it_ends_by_a_signal_and_leaves_port_and_signals(number: signal.Signals) -> None:
    ready, usual = asyncio.Event(), signal.signal(signal.SIGTERM, _somebody)
    with closing(bind_page(0)) as listening:
        url = address(listening)
        served = asyncio.create_task(serve_page({}, lambda _: {}, listening, ready.set))
        await ready.wait()
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            assert answer.status == 200
        os.kill(os.getpid(), number)
        async with asyncio.timeout(20):
            await served
    assert signal.signal(signal.SIGTERM, usual) == _somebody
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.get(url)


def test_the_command_serves_what_was_played_and_says_where(
    shown: Shown, fedpeer: Fedpeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    async def serve_once(told: Any, answer: Any, listening: Any, ready: Any) -> None:
        assert told == tellable(shown, 4)
        assert answer(json.dumps(GOOD).encode()) == answered(shown.recall, Question("peer1", ("local",), STRANGE.half))
        opened.append(address(listening))
        ready()

    monkeypatch.setattr(demonstration, "demonstrate", lambda *_, **__: shown)
    monkeypatch.setattr(server, "serve_page", serve_once)
    monkeypatch.setattr("webbrowser.open", opened.append)
    outcome = fedpeer("demo", "associative", "--web", "--open", "--seed", "4", "--quiet")
    assert outcome.code == 0, outcome.err
    assert outcome.out.split() == [opened[0]] == [opened[1]]
    assert opened[0].startswith("http://127.0.0.1:")
    assert "Ctrl-C" in outcome.err
