"""Descriptions and drawings of slices agree with the plan."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import torch
from torch import nn

from fedpeer.runs import report
from fedpeer.slicing.describe import describe_slices, slices_svg
from fedpeer.slicing.models import ModelGraph, PartialModel
from fedpeer.slicing.plan import compile_plan
from fedpeer.slicing.trace import trace

NETWORK = trace(nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2)), torch.zeros(1, 4))
MODELS = [
    PartialModel("everyone", neurons={"input": "all", "0": 3, "output": "all"}),
    PartialModel("<ward>", ("everyone",), {"0": 2}, members=("p1", "p2")),
]
PLAN = compile_plan(dict.fromkeys(("p1", "p2", "p3"), NETWORK), ModelGraph(MODELS))


def test_sizes_members_and_shares_are_those_of_the_plan() -> None:
    found = describe_slices(PLAN, NETWORK)
    assert [(m.name, m.level, m.members, m.depends_on) for m in found.models] == [
        ("everyone", 0, 3, ()),
        ("<ward>", 1, 2, ("everyone",)),
    ]
    n = 4 * 6 + 6 + 6 * 2 + 2
    assert {group.id: (group.length, group.share) for group in found.groups} == {
        "everyone": (23, 23 / n),  # 4 * 3 weights, 3 biases, 3 * 2 weights, 2 biases
        "<ward>": (14, 14 / n),
    }
    assert [(kind.peers, kind.local) for kind in found.kinds] == [(("p1", "p2"), n - 37), (("p3",), n - 23)]
    assert [dict(part.owned) for part in found.kinds[0].parts] == [
        {"everyone": 4},
        {"everyone": 3, "<ward>": 2},
        {"everyone": 2},
    ]
    assert json.loads(json.dumps(found.to_json()))["groups"][0]["id"] == "everyone"


def test_what_is_owned_whole_is_named_beside_the_neurons() -> None:
    models = [PartialModel("everyone", neurons={"output": "all"}, parameters=("*.bias",))]
    own = PartialModel("local", modules=("0.weight",))
    found = describe_slices(compile_plan(dict.fromkeys("ab", NETWORK), ModelGraph([*models, own])), NETWORK)
    (kind,) = found.kinds
    assert kind.whole == {"local": ("0.weight",), "everyone": ("0.bias", "1.bias")}
    assert kind.whole_tensors() == {"local": "0.weight", "everyone": "0.bias and 1.bias"}
    text = [*ET.fromstring(slices_svg(found)).itertext()]
    assert text[-4:] == ["whole tensors", "local: 0.weight", "whole tensors", "everyone: 0.bias and 1.bias"]


def test_the_picture_is_well_formed_and_names_everything() -> None:
    svg = slices_svg(describe_slices(PLAN, dict.fromkeys(PLAN.peers, NETWORK)))
    drawing = ET.fromstring(svg)
    text = " ".join(drawing.itertext())
    for piece in ("everyone", "<ward>", "input", "p1, p2", "5 of 6", "7 of 44 weights local"):
        assert piece in text
    assert "currentColor" in svg
    assert all(colour not in svg for colour in ("#000", "black", "white"))


def test_the_picture_is_read_on_a_phone() -> None:
    """A page of 390 pixels shows it whole: otherwise its numbers, at the ends of lines, would be beyond the edge."""
    drawing = ET.fromstring(slices_svg(describe_slices(PLAN, dict.fromkeys(PLAN.peers, NETWORK))))
    width = float(drawing.attrib["viewBox"].split()[2])
    assert width <= 440
    svg = "{http://www.w3.org/2000/svg}"
    bar = max(
        float(each.attrib["x"]) + float(each.attrib["width"])
        for each in drawing.iter(f"{svg}rect")
        if "rx" not in each.attrib
    )
    assert bar + 7 * len("280 of 300 shared") <= width, "no count is over a bar"
    for text in drawing.iter(f"{svg}text"):
        x, length = float(text.attrib["x"]), 7 * len(text.text or "")
        left = x - length if text.attrib["text-anchor"] == "end" else x
        assert left >= 0
        assert left + length <= width
    css = Path(report.__file__).with_name("report.css").read_text(encoding="utf-8")
    assert all("min-width" not in line for line in css.splitlines() if line.startswith("figure.wide"))


@pytest.mark.slow
def test_many_kinds_of_peers_are_counted_and_not_drawn() -> None:
    peers = [f"p{k}" for k in range(30)]
    models = [
        PartialModel("all", neurons={"0": 1}),
        *(PartialModel(p, ("all",), {"0": 1}, members=(p,)) for p in peers),
    ]
    found = describe_slices(compile_plan(dict.fromkeys(peers, NETWORK), ModelGraph(models)), NETWORK)
    assert len(found.kinds) == 30
    assert "and 22 more kinds of peers" in slices_svg(found)
    assert slices_svg(found).count("weights local") == 8
