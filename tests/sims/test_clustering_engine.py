"""Peers that search for similar peers: groups are found, learning goes on, a stop changes nothing, all is counted."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ruamel.yaml import YAML

from fedpeer.algorithms.assignment import (
    GAIN_BYTES,
    AssignmentError,
    Floats,
    Gain,
    below,
    groups,
    merges,
    merges_taken,
    missed,
    normalised_sketches,
    second_moments,
)
from fedpeer.algorithms.draws import Draws
from fedpeer.algorithms.evaluation import losses
from fedpeer.algorithms.losses import LOSSES
from fedpeer.config.choice import parse_choice
from fedpeer.config.federation import Federation
from fedpeer.config.problems import ConfigError
from fedpeer.config.rules import PEERS, Combination, problems_of
from fedpeer.config.settings import FederationSettings
from fedpeer.gossip.averaging import traffic
from fedpeer.gossip.flooding import flood_along
from fedpeer.learning.groups import averaging_among
from fedpeer.sims.api import simulate
from fedpeer.sims.checks import check_engine
from fedpeer.sims.memory import job_of
from fedpeer.sims.request import SimulationRequest
from fedpeer.sims.vector.clustering_engine import ClusteringEngine
from fedpeer.sims.vector.clustering_task import clustering_tasks_of, kinds, split_network
from fedpeer.sims.vector.workspace import WorkspacePart
from tests.sims.worlds import engine, federation, same_bits, world

ALGORITHM = parse_choice("partial-averaging")
PAIR = {"neurons": {"input": "all", "hidden1": 8, "output": "all"}, "members": ["peer1", "peer2"]}
FREE = {"neurons": {"hidden1": 4}, "members": "alike,after=6"}
KIN = {"depends_on": ["everyone"], "neurons": {"hidden1": 4}}
LINE = "edges:peer1-peer2+peer2-peer3+peer3-peer4+peer4-peer5+peer5-peer6"
ONE_ORDER = "blocks:60,shuffle=true,test=50"
SWAPPED = f"{ONE_ORDER}/swap:8+9,on=1-3/swap:6+7,on=1-3/swap:4+5,on=1-3"


def options(members: Any = "alike,after=6", **more: Any) -> Federation:
    kin = {**KIN, "members": members}
    settings: dict[str, Any] = {
        "partial_models": {"everyone": {"neurons": {"input": "all", "hidden1": 8, "output": "all"}}, "kin": kin},
        "learning__optimizer": "sgd,lr=0.5",
        "learning__steps_between_averaging": 60,
        "learning__rounds": 9,
        "simulation__split": SWAPPED,
    }
    return federation(**{**settings, **more})


class AssigningEngine:
    """An engine together with the federations that it reported."""

    def __init__(self, of: Federation, seed: int = 0, **more: Any) -> None:
        self.world, self.told = world(of, seed), list[FederationSettings]()
        self.tasks = clustering_tasks_of(self.world, ALGORITHM)
        self.task, self.job = self.tasks[0], job_of(self.world, "cpu")
        self.engine = ClusteringEngine(self.job, self.world, ALGORITHM, self.tasks, self.told.append, **more)


def test_hidden_groups_are_found_and_learning_goes_on_as_if_they_had_been_written_down() -> None:
    made = AssigningEngine(options())
    with made.engine as running:
        for _ in range(6):
            running.step()
        (found,) = made.told
        assert {name: each.members for name, each in found.partial_models.items()} == {
            "everyone": "all",
            "kin1": ["peer1", "peer2", "peer3"],
            "kin2": ["peer4", "peer5", "peer6"],
        }
        assert running.statistics() == {"group": [1, 1, 1, 2, 2, 2], "recovered": [1.0] * 6}
        tensors, state = running.snapshot()
        tensors = {name: value.clone() for name, value in tensors.items()}
        for _ in range(3):
            running.step()
        by_itself_Pn, sent = running.x_Pn.clone(), running.traffic
    with engine(world(found)) as by_hand:
        weights = {name: [1.0] * len(each) for name, each in by_hand.weights.items()}
        by_hand.restore(tensors, {**state, "weights": {**weights, **state["weights"]}})
        for _ in range(3):
            by_hand.step()
        assert same_bits(by_itself_Pn, by_hand.x_Pn)
        assert sent == by_hand.traffic


def test_until_then_it_is_the_global_model_alone_on_fewer_examples() -> None:
    made = AssigningEngine(options())
    with made.engine as running:
        running.step()
        assert running.statistics() == {}
        assert set(running.weights) == {"everyone"}
        train, back = running._engine.workspace.train, running._back
        assert back is not None
        assert [train.count(peer) for peer in range(6)] == [45] * 6
        assert [back.count(peer) for peer in range(6)] == [15] * 6
        # Disagreement is a peer's parameters before the averaging less those after; over all peers it cancels out.
        before_Pn = running._engine.trained_Pn
        assert before_Pn is not None
        apart_Pn = (before_Pn - running.x_Pn).double()
        outputs = torch.from_numpy(made.task.compared_PD[0])
        assert np.allclose(running._comparisons[0].summed_PS, apart_Pn[:, outputs].numpy())
        assert len(outputs) == 8 * 10 + 10  # from the global hidden neurons into the outputs, and the outputs' biases


def test_a_graph_of_the_models_own_fits_groups_that_are_smaller() -> None:
    everyone, kin = options().partial_models["everyone"], {**KIN, "members": "alike,after=6"}
    made = AssigningEngine(
        options(partial_models={"everyone": everyone, "kin": {**kin, "gossip": {"topology": "k-regular:4"}}})
    )
    peers = made.world.peers
    averaging = made.engine._engine_under(made.world.federation.decided("kin", (peers[:3], peers[3:])))._averaging
    assert [averaging[name].overlay.union.number_of_edges() for name in ("everyone", "kin1", "kin2")] == [6, 3, 3]


def test_where_nobody_differs_it_does_no_harm() -> None:
    found = AssigningEngine(options(simulation__split=ONE_ORDER)).engine
    alone = engine(world(options(simulation__split=ONE_ORDER).decided("kin", ())))
    scores = []
    for each in (found, alone):
        with each as running:
            for _ in range(9):
                running.step()
            scores.append(np.mean([score for score, _ in running.evaluate()]))
            assert "recovered" not in running.statistics()  # there are no true groups to compare with
    assert scores[0] >= scores[1] - 0.02


@pytest.mark.parametrize("stop", [3, 6])
def test_a_stop_changes_nothing(stop: int) -> None:
    with AssigningEngine(options()).engine as running:
        for _ in range(8):
            if running.round == stop:
                (tensors, state), sent = running.snapshot(), running.traffic
                tensors = {name: value.clone() for name, value in tensors.items()}
            running.step()
        undisturbed_Pn = running.x_Pn.clone()
    again = AssigningEngine(options())
    with again.engine as running:
        running.restore(tensors, state)
        assert (running.round, running.traffic) == (stop, sent)
        for _ in range(8 - stop):
            running.step()
        assert same_bits(running.x_Pn, undisturbed_Pn)
    assert len(again.told) == (stop < 6)


def test_everything_that_the_search_says_is_counted() -> None:
    made, of_all = AssigningEngine(options(gossip__protocol="exact")), list[tuple[int, ...]]()
    with made.engine as running:
        trial = running._trial
        running._trial = lambda task, members: of_all.append(tuple(members)) or trial(task, members)  # type: ignore[method-assign, func-returns-value]
        for _ in range(5):
            running.step()
        usual = np.array(running.traffic)
        running.step()
        spent = np.array(running.traffic) - usual
    flood, length = flood_along(made.task.overlay), made.task.slice_PD.shape[1]
    assert length == 4 * 64 + 4 + 4 * 10  # weights into the neurons, their biases, and weights out of them
    expected = np.stack([2 * flood.messages_P, flood.bytes_of(2 * 90) + flood.bytes_of(0)])
    tried = [members for members in of_all if len(members) > 1]
    assert len(tried) == 5  # one per merge
    for members in tried:
        expected[1] += flood_along(made.task.overlay, members).items_P * GAIN_BYTES
        names = [made.world.peers[peer] for peer in members]
        policy = averaging_among(names, f"kin {names[0]}", made.world.federation.gossip, 0)
        for peer, (count, amount) in zip(members, traffic(policy, length), strict=True):
            expected[:, peer] += (count, amount)
    assert spent.tolist() == expected.tolist()


def test_a_trial_is_the_members_mean_in_place_of_their_own() -> None:
    made = AssigningEngine(options(learning__weights="samples"))
    with made.engine as running:
        running.step()
        x_Pn, index_D = running.x_Pn.clone(), torch.from_numpy(made.task.slice_PD[0])
        found = running._trial(made.task, (1, 4))
        mean_D = (x_Pn[1, index_D].double() + x_Pn[4, index_D].double()) / 2
        assert running._back is not None
        for peer in (1, 4):
            x_n = x_Pn[peer].clone()
            x_n[index_D] = mean_D.float()
            examples = running._engine.workspace.examples(running._back, peer)
            each_M = losses(running._stepper, LOSSES["cross-entropy"], x_n, examples, None)
            assert np.allclose(found[peer], each_M.numpy(), rtol=1e-6)
            logits_MC = running._stepper.logits(x_n.unsqueeze(0), examples.inputs().unsqueeze(0))[0]
            mean = torch.nn.functional.cross_entropy(logits_MC, examples.y_M)
            assert np.isclose(found[peer].mean(), float(mean), rtol=1e-6)


def test_kept_back_examples_are_some_of_each_peers_own() -> None:
    part = WorkspacePart(torch.arange(10, 25), torch.arange(100, 115), (0, 2, 5, 15))
    train, back = split_network(part, 0.3, Draws(0), ("a", "b", "c"))
    assert (train.first_P1, back.first_P1) == ((0, 1, 3, 10), (0, 1, 2, 5))
    for peer, own in enumerate(((10, 12), (12, 15), (15, 25))):
        rows = [each.index_T[each.first_P1[peer] : each.first_P1[peer + 1]].tolist() for each in (train, back)]
        assert sorted(rows[0] + rows[1]) == list(range(*own))
    assert all(torch.equal(each.y_T, each.index_T + 90) for each in (train, back))


def test_kinds_are_by_labels_and_features() -> None:
    assert kinds(world(options())) == [0, 0, 0, 1, 1, 1]
    assert kinds(world(options(simulation__split=f"{ONE_ORDER}/pixels,on=2"))) == [0, 1, 0, 0, 0, 0]
    crossed = world(Federation.model_validate(CROSSED))
    assert kinds(crossed, "inputs") == [0, 1, 2, 3] * 4
    assert kinds(crossed, "outputs") == [peer // 4 for peer in range(16)]
    assert len(set(kinds(crossed))) == 16


def test_what_was_found_can_be_pasted_into_a_federations_file(tmp_path: Path) -> None:
    told: list[str] = []
    settings = options(learning__rounds=7)
    run = simulate(
        federation=settings,
        methods=("partial-averaging",),
        device="cpu",
        workers=1,
        out=tmp_path,
        on_event=lambda event: told.append(str(getattr(event, "text", ""))),
    )
    (text,) = [each for each in told if "kin1" in each]
    written = "models/partial-averaging-seed0-partial_models.yaml"
    path = run.folder / written
    assert text.startswith("partial-averaging, seed 0: kin1 of peer1, peer2, peer3; kin2 of peer4, peer5, peer6;")
    assert f"{written} of the run's folder" in text
    pasted = YAML(typ="safe", pure=True).load(io.StringIO(path.read_text()))
    after = Federation.model_validate({**settings.model_dump(mode="json"), **pasted})
    assert after.partial_models["kin2"].members == ["peer4", "peer5", "peer6"]
    assert not after.automatic


def test_what_is_gained_is_judged_by_what_a_peer_usually_misses() -> None:
    """Each peer's losses are bounded by its own scale before they are summed, and the cut uses those gains."""
    made = AssigningEngine(options())
    with made.engine as running:
        for _ in range(5):
            running.step()
        running._engine.step()
        running._add_up()
        found = running._search(running._comparisons[0])
        tree = merges(normalised_sketches(running._comparisons[0].summed_PS))
        nodes = below(tree)
        alone = {peer: running._trial(made.task, (peer,))[peer] for peer in range(6)}
        before: dict[tuple[int, ...], dict[int, Floats]] = {
            (peer,): {peer: missed(alone[peer], alone[peer].mean())} for peer in range(6)
        }
        gains = []
        for a, b in tree:
            both = tuple(sorted(nodes[a] + nodes[b]))
            before[both] = {p: missed(each_M, alone[p].mean()) for p, each_M in running._trial(made.task, both).items()}
            gained = [before[nodes[n]][p] - before[both][p] for n in (a, b) for p in nodes[n]]
            gains.append(Gain.of(np.concatenate(gained), np.zeros(15 * len(both))))
    assert found == groups(tree, merges_taken(gains))
    assert found == ((0, 1, 2), (3, 4, 5))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {"partial_models__everyone": PAIR, "partial_models__kin": FREE},
            "add a partial model that everyone implements",
        ),
        ({"partial_models__kin": {"members": "alike"}}, "give it neurons"),
        ({"partial_models__kin2": {"members": ["peer1"]}}, "rename kin2"),
        ({"partial_models__other": {"members": "alike,kept_back=0.5"}}, "write the same kept_back"),
        (
            {"partial_models__kin": {"parameters": ["hidden1.bias"], "members": "alike,after=6,by=inputs"}},
            "it has no weights there",
        ),
        ({"learning__rounds": 6}, "after = 6 and there are 6 rounds"),
        ({"gossip__drift": 0.1}, "leave out gossip.drift"),
        ({"gossip__topology": LINE}, "another topology"),
        ({"partial_models__kin": {**FREE, "gossip": {"topology": LINE}}}, "another topology"),
        ({"simulation__split": "blocks:1,test=50"}, "two or more"),
        ({"partial_models__kin": {"members": "alike,after=0"}}, "after = 0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_sought_is_refused(changed: dict[str, Any], words: str) -> None:
    with pytest.raises((ConfigError, AssignmentError)) as refusal:
        clustering_tasks_of(world(options(**changed)), ALGORITHM)
    assert words in " ".join(str(refusal.value).split())


#: Sixteen peers in four views of the images and, crossing that, four codes of the labels.
CROSSED: dict[str, Any] = {
    "network": {"mlp": {"layers": [64, 64, 32, 10], "activation": "relu"}},
    "partial_models": {
        "everyone": {"modules": ["hidden2"]},
        "seeing": {"modules": ["hidden1"], "members": "alike,after=20,by=inputs"},
        "calling": {"modules": ["output"], "members": "alike,after=34,by=outputs"},
    },
    "learning": {
        "optimizer": "adam,lr=0.003",
        "batch_size": 10,
        "steps_between_averaging": 5,
        "rounds": 36,
        "start": "torch",
    },
    "simulation": {"peers": 16, "split": "blocks:60,shuffle=true,test=50/views:4,kind=pixels/codes:4"},
}


@pytest.mark.slow
def test_two_hierarchies_that_cross_are_found_one_after_the_other() -> None:
    made, kept = AssigningEngine(Federation.model_validate(CROSSED)), dict[int, Any]()
    views = tuple(tuple(range(view, 16, 4)) for view in range(4))
    codes = tuple(tuple(range(4 * code, 4 * code + 4)) for code in range(4))
    with made.engine as running:
        while running.round < 36:
            running.step()
            if running.round in (24, 34):
                tensors, state = running.snapshot()
                kept[running.round] = {name: value.clone() for name, value in tensors.items()}, state
            if running.round == 20:
                assert running._groups == {"seeing": views}
                assert set(running.statistics()) == {"group seeing", "recovered seeing"}
        assert running._groups == {"seeing": views, "calling": codes}
        found = running.statistics()
        assert found["recovered seeing"] == found["recovered calling"] == [1.0] * 16
        assert [found["group seeing"][peer] for peer in (0, 1, 4, 5)] == [1, 2, 1, 2]
        first, both = made.told
        assert first.automatic == ("calling",)
        assert first.partial_models["seeing2"].members == ["peer2", "peer6", "peer10", "peer14"]
        assert both.partial_models["seeing2"] == first.partial_models["seeing2"]
        assert both.partial_models["calling4"].members == ["peer13", "peer14", "peer15", "peer16"]
        undisturbed_Pn = running.x_Pn.clone()
    for round, (tensors, state) in kept.items():
        again = AssigningEngine(Federation.model_validate(CROSSED))
        with again.engine as running:
            running.restore(tensors, state)
            while running.round < 36:
                running.step()
            assert same_bits(running.x_Pn, undisturbed_Pn), f"stopped after {round} rounds"


def test_examples_are_kept_back_until_the_last_search_with_trials() -> None:
    models = {
        "everyone": {"neurons": {"input": "all", "hidden1": 6, "output": "all"}},
        "kin": {**KIN, "members": "alike,after=2"},
        "akin": {"depends_on": ["everyone"], "neurons": {"hidden1": 2}, "members": "alike,after=4"},
    }
    made, seen = AssigningEngine(options(partial_models=models)), list[tuple[int, list[str], int, bool]]()
    with made.engine as running:
        for _ in range(5):
            running.step()
            names = [name for name in running.statistics() if name.startswith("group")]
            usual = running.traffic == running._engine.traffic
            seen.append((running.round, names, running._engine.workspace.train.count(0), usual))
    assert seen == [
        (1, [], 45, True),
        (2, ["group kin"], 45, False),
        (3, ["group kin"], 45, True),
        (4, ["group kin", "group akin"], 60, False),
        (5, ["group kin", "group akin"], 60, True),
    ]


def test_what_is_compared_by_inputs_is_the_first_layer_by_columns() -> None:
    made = world(Federation.model_validate(CROSSED))
    seeing, calling = clustering_tasks_of(made, ALGORITHM)
    draws = np.random.default_rng(0)
    change_n = draws.normal(size=made.network.n)
    tensors = {tensor.name: tensor for tensor in made.network.tensors}
    for task, name, columns in ((seeing, "hidden1", 1), (calling, "output", 0)):
        [weight] = [tensor for key, tensor in tensors.items() if name in key and key.endswith("weight")]
        change_RC = change_n[weight.span].reshape(weight.shape)
        change_RC = change_RC if columns == 1 else change_RC.T
        part_KS = task.moments_of(change_n[task.compared_PD[0]])
        assert np.allclose(part_KS.sum(axis=0), (change_RC.T @ change_RC).ravel())
        assert np.allclose(part_KS[1], (change_RC[1::4].T @ change_RC[1::4]).ravel()), "of every fourth neuron"
        turned, _ = np.linalg.qr(draws.normal(size=(len(change_RC), len(change_RC))))
        assert np.allclose(second_moments(turned @ change_RC), second_moments(change_RC)), "however they are mixed"
        assert task.compared == change_RC.shape[1] ** 2


def test_a_run_of_a_release_that_searched_for_one_model_alone_goes_on() -> None:
    with AssigningEngine(options()).engine as running:
        for _ in range(6):
            running.step()
        tensors, state = running.snapshot()
        tensors = {name: value.clone() for name, value in tensors.items()}
        running.step()
        undisturbed_Pn = running.x_Pn.clone()
    assert isinstance(state["search"]["found"], dict)
    found = state["search"].pop("found")["kin"]
    tensors["sketch"] = tensors.pop("sketch kin")
    with AssigningEngine(options()).engine as running:
        running.restore(tensors, {**state, "search": {**state["search"], "groups": found}})
        running.step()
        assert same_bits(running.x_Pn, undisturbed_Pn)


def test_other_engines_and_methods() -> None:
    found = world(options())
    assert clustering_tasks_of(found, parse_choice("full-averaging")) == ()
    assert clustering_tasks_of(world(options("all")), ALGORITHM) == ()
    for engine_name in ("network", "processes"):
        request = SimulationRequest(
            federation=options(), methods=(parse_choice("partial-averaging"),), engine=engine_name
        )
        with pytest.raises(ConfigError, match=r"partial_models\.kin\.members +only the vector engine finds members"):
            check_engine(request, [])


def test_real_peers_want_members_written_down() -> None:
    (problem,) = problems_of(Combination.of(options(), PEERS))
    assert problem.path == ("partial_models", "kin", "members")
    assert "only simulations find members" in problem.text
    assert problems_of(Combination.of(options(learning__algorithm="full-averaging"), PEERS)) == []
