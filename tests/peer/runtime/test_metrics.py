"""Every fault can be seen: code table, metrics and documentation agree (promise P19)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from ruamel.yaml import YAML

from fedpeer.peer.runtime.metrics import METRICS, Metrics
from fedpeer.peer.wire.rejections import REJECTIONS
from fedpeer.rejection import Rejection

from .fake_status import FakePeer

PAGE = Path(__file__).parents[3] / "docs" / "seeing.md"
OPERATIONS = PAGE.with_name("operations.md")
ALERTS = PAGE.parents[1] / "examples" / "deploy" / "alerts.yaml"
#: Keys of an alerting rule of Prometheus.
RULE = ("alert", "expr", "for", "keep_firing_for", "labels", "annotations")
KINDS = {"h": "harmless", "s": "suspicious", "x": "closes the edge", "o": "this machine"}


def scraped(peer: FakePeer) -> dict[tuple[str, ...], float]:
    """Return what Prometheus reads: (name, label values in the order of their names) -> value."""
    body, kind = Metrics(peer.status.as_json)()
    assert kind.startswith("text/plain")
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


def learned(*, served: bool = False) -> FakePeer:
    peer = FakePeer(served=served)
    for _ in range(40):
        peer.round()
    return peer


def test_every_metric_is_there_and_no_other(everything: dict[tuple[str, ...], float]) -> None:
    names = {re.sub(r"_(total|count|sum)$", "", name) for name, *_ in everything}
    assert names == {re.sub(r"_total$", "", name) for name in METRICS}


def test_the_numbers_are_those_of_the_status() -> None:
    peer = learned()
    found, status = scraped(peer), peer.status.as_json()
    assert found["fedpeer_round",] == 40
    assert found["fedpeer_state", "averaging"] == 1
    assert sum(value for (name, *_), value in found.items() if name == "fedpeer_state") == 1
    assert found["fedpeer_score", "accuracy"] == status["scores"]["peer3"][-1][1]
    assert found["fedpeer_loss",] == status["loss"]
    assert found["fedpeer_metric", "f1"] == status["metrics"]["f1"] == 0.9
    assert status["metrics"]["auc"] is None
    assert ("fedpeer_metric", "auc") not in found, "it is not defined"
    assert found["fedpeer_weight", "ward-a"] == status["groups"][1]["weight"]
    assert found["fedpeer_disagreement", "everyone"] == status["groups"][0]["disagreement"]
    assert found["fedpeer_mass_audit_error", "everyone"] == 3e-16
    assert found["fedpeer_sent_bytes_total",] == status["traffic"]["bytes_sent"]
    assert found["fedpeer_group_received_bytes_total", "ward-a"] == status["groups"][1]["bytes_received"]
    assert found["fedpeer_written_off_weight",] == 0.25
    assert found["fedpeer_events_total", "restarts"] == 1
    assert found["fedpeer_events_total", "write_offs"] == 1
    assert (found["fedpeer_duration_seconds_count", "save"], found["fedpeer_peers", "suspect"]) == (40, 1)
    assert found["fedpeer_duration_seconds_sum", "save"] == pytest.approx(40 * 0.012)
    assert found["fedpeer_lag_seconds",] == pytest.approx(0.0031)


def test_coordinated_rounds_are_measured() -> None:
    found = scraped(learned(served=True))
    assert found["fedpeer_server_score", "accuracy"] == pytest.approx(0.95 * found["fedpeer_score", "accuracy"])
    assert (found["fedpeer_term", "everyone"], found["fedpeer_round_in_force", "everyone"]) == (3, 40)
    assert (found["fedpeer_coordinates", "everyone"], found["fedpeer_paused", "everyone"]) == (1, 0)
    assert (found["fedpeer_voters", "everyone", "there"], found["fedpeer_voters", "everyone", "missing"]) == (4, 0)
    assert found["fedpeer_waiting", "everyone"] == 1
    assert found["fedpeer_group_sent_bytes_total", "everyone"] > 0
    paused = FakePeer(served=True)
    for _ in range(60):
        paused.round()
    found = scraped(paused)
    assert (found["fedpeer_coordinates", "everyone"], found["fedpeer_paused", "everyone"]) == (0, 1)
    assert (found["fedpeer_voters", "everyone", "there"], found["fedpeer_voters", "everyone", "missing"]) == (2, 2)


def test_what_was_not_measured_is_left_out() -> None:
    assert {"fedpeer_score", "fedpeer_loss", "fedpeer_weight"}.isdisjoint(name for name, *_ in scraped(FakePeer()))


def test_each_refusal_is_a_metric_before_and_after_it_happens() -> None:
    """Each code happens a different number of times, so that a count under a wrong code is noticed."""
    peer = FakePeer()

    def counts() -> dict[str, float]:
        found = scraped(peer)
        return {code: found["fedpeer_refused_total", code, row.kind] for code, row in REJECTIONS.items()}

    assert counts() == dict.fromkeys(REJECTIONS, 0)
    for times, code in enumerate(REJECTIONS, start=2):
        for number in range(times):
            peer.status.refused(Rejection(code, sender=f"peer{number % 2}"))
    assert counts() == {code: times for times, code in enumerate(REJECTIONS, start=2)}


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the table under a heading of the page."""
    section = PAGE.read_text(encoding="utf-8").split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_the_page_lists_every_metric() -> None:
    kinds = {"CounterMetricFamily": "counter", "GaugeMetricFamily": "gauge", "SummaryMetricFamily": "summary"}
    wanted = [
        [
            f"`{name}{'_total' if kinds[row.family.__name__] == 'counter' else ''}`",
            kinds[row.family.__name__],
            ", ".join(row.labels) or "–",
            row.meaning,
        ]
        for name, row in METRICS.items()
    ]
    assert rows("Metrics") == wanted, "\n".join(f"| {' | '.join(row)} |" for row in wanted)


def test_the_page_lists_every_rejection() -> None:
    wanted = [
        [f"`{code}`", ", ".join(row.ids), KINDS[row.kind], row.log, row.advice] for code, row in REJECTIONS.items()
    ]
    assert rows("Rejections") == wanted, "\n".join(f"| {' | '.join(row)} |" for row in wanted)


def alerts() -> dict[str, str]:
    """Return the expressions of the alerts by name."""
    (group,) = YAML(typ="safe").load(ALERTS)["groups"]
    assert all({"alert", "expr", "annotations"} <= rule.keys() <= {*RULE} for rule in group["rules"])
    return {rule["alert"]: rule["expr"] for rule in group["rules"]}


@pytest.fixture(scope="module")
def everything() -> dict[tuple[str, ...], float]:
    """Return what Prometheus reads from a peer without a server and from one with a coordinator."""
    return scraped(learned()) | scraped(learned(served=True))


def test_each_alert_has_a_first_step() -> None:
    text = OPERATIONS.read_text(encoding="utf-8").split("| alert | first step |\n")[1].split("\n\n")[0]
    named = [name for line in text.splitlines() for name in re.findall(r"`(\w+)`", line.split("|")[1])]
    assert sorted(named) == sorted(alerts())


@pytest.mark.parametrize("rule", alerts().values(), ids=list(alerts()))
def test_each_alert_can_ring(rule: str, everything: dict[tuple[str, ...], float]) -> None:
    """Each rule asks for metrics, labels and values that exist; `up` is Prometheus's own."""
    found = everything
    names = set(re.findall(r"fedpeer_\w+", rule))
    assert names <= {name for name, *_ in found} or rule.startswith("up ")
    for name, matcher, wanted in re.findall(r'(fedpeer_\w+)\{\w+(=~?)"([^"]+)"', rule):
        values = {value for key in found if key[0] == name for value in key[1:]}
        assert any(re.fullmatch(wanted if matcher == "=~" else re.escape(wanted), value) for value in values)
