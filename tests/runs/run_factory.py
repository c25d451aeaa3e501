"""Small runs for the tests, with scores that are easy to compute by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedpeer.runs.folder import RunFolder
from fedpeer.runs.summary import summarise

METHODS = ("local", "partial-averaging", "full-averaging")


def settings(*, peers: int = 4, rounds: int = 3, **more: Any) -> dict[str, Any]:
    """Return settings as a simulation resolves them."""
    return {
        "name": "digits",
        "learning": {"rounds": rounds, "batch_size": 1},
        "simulation": {"peers": peers, "dataset": "digits", "split": "exchanged"},
        "methods": list(METHODS),
        "seeds": [0],
        "command": f"fedpeer simulate --peers {peers}",
        **more,
    }


def row(
    method: str, round_: int, *, seed: int = 0, peers: int = 4, measure: str = "accuracy", evaluated: bool = True
) -> dict[str, Any]:
    """Return a row; the score rises with round, length of the method's name and peer, and never passes 1."""
    base = 0.5 + 0.01 * len(method) + 0.02 * round_ + 0.001 * seed
    sent = 0 if method == "local" else 100
    return {
        "method": method,
        "seed": seed,
        "round": round_,
        "seconds": 0.25,
        measure: [base + 0.01 * peer / peers for peer in range(peers)] if evaluated else None,
        "loss": [0.1] * peers,
        "bytes_sent": [sent] * peers,
        "messages_sent": [sent // 50] * peers,
        "disagreement": {"everyone": 1e-5 / round_} if sent else {},
        "weight": {"everyone": [0.9, 1.1]} if sent else {},
    }


def described(run: RunFolder, *, peers: int, classes: Sequence[str] = ("a", "b", "c"), note: str = "a and b") -> None:
    """Write a split, a drawing of slices and a graph."""
    held: dict[str, Any] = {"train_counts": [3, 0, 7]} if classes else {"train_quantiles": [[0.0, 1.0, 2.0, 3.0, 4.0]]}
    shares = [{"id": f"peer{p + 1}", "note": note, "train": 10, "test": 5, **held} for p in range(peers)]
    run.describe("split", {"rule": "exchanged", "remarks": ["2 left over"], "classes": classes, "peers": shares})
    run.describe("plan", {"svg": '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9"><path d="M0 0H9"/></svg>'})
    ring = [[place, (place + 1) % peers] for place in range(peers)]
    nodes = [f"peer{p + 1}" for p in range(peers)]
    places = [[float(place), float(place * place)] for place in range(peers)]
    graph = {"group": "everyone", "nodes": nodes, "edges": ring, "positions": places, "directed": True, "exchanges": 12}
    run.describe("graphs", {"groups": [graph]})


def made(
    root: Path,
    *,
    name: str = "digits",
    peers: int = 4,
    rounds: int = 3,
    seeds: Sequence[int] = (0,),
    methods: Sequence[str] = METHODS,
    measure: str = "accuracy",
    finished: bool = True,
    **more: Any,
) -> RunFolder:
    """Make a whole run, finished unless `finished` is false."""
    options = settings(peers=peers, rounds=rounds, **{"seeds": list(seeds), "methods": list(methods), **more})
    run = RunFolder.create(root, name=name, settings=options, environment={"device": "cpu"})
    for method in methods:
        for seed in seeds:
            for round_ in range(1, rounds + 1):
                run.record(row(method, round_, seed=seed, peers=peers, measure=measure))
    described(run, peers=peers, classes=("a", "b", "c") if measure == "accuracy" else ())
    if finished:
        run.finish({"schema": 1, "dataset": "digits", "peers": peers, "methods": summarise(run.rows())})
    return run
