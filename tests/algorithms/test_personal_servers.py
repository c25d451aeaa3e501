"""Ditto, pFedMe, FedPer, FedRep, IFCA and Per-FedAvg against closed forms, autograd and plain torch loops."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedpeer.algorithms.coordinated import AlgorithmError
from fedpeer.algorithms.gradients import gradient_of
from fedpeer.algorithms.servers.ditto import Ditto
from fedpeer.algorithms.servers.fedavg import FedAvg
from fedpeer.algorithms.servers.fedper import FedPer
from fedpeer.algorithms.servers.fedprox import FedProx
from fedpeer.algorithms.servers.fedrep import FedRep
from fedpeer.algorithms.servers.ifca import ClusterModels, Estimated, Ifca
from fedpeer.algorithms.servers.models import Local, ServerModel
from fedpeer.algorithms.servers.perfedavg import PerFedAvg
from fedpeer.algorithms.servers.pfedme import PFedMe
from fedpeer.algorithms.servers.scaffold import Scaffold
from fedpeer.slicing.flat import FlatLayout
from tests.algorithms.client_factory import CLOSE, batches, distance, in_torch, starts
from tests.algorithms.server_factory import BASE_D, LAYOUT, LOSS, LR, MODULE, Algorithm, Quadratics, bench_of

ONE = torch.tensor(1)


def sgd(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in parameters if p.requires_grad], lr=LR)


def test_ditto_keeps_its_own_beside_what_fedavg_sends() -> None:
    block, (server_n, *own) = batches(peers=2), starts(MODULE, 3)
    own_Bn, examples = torch.stack(own), torch.tensor([3, 4])
    alone = Ditto(bench_of("stack"), strength=0.0)
    kept, sent = alone.train(Local(own_Bn, examples), ServerModel(server_n), block, (1, 2))
    _, wanted = FedAvg(bench_of("stack")).train(Local(own_Bn, examples), ServerModel(server_n), block, (1, 2))
    assert torch.equal(sent.model_n, wanted.model_n)
    for p in range(2):
        assert distance(kept.model_n[p], in_torch(MODULE, own_Bn[p], [block.peer(p)], LOSS, sgd)) < CLOSE


@pytest.mark.slow
def test_dittos_own_ends_between_its_loss_and_the_server() -> None:
    world, server_D = Quadratics(1), torch.ones(3, dtype=torch.float64)
    kept, _ = Ditto(world.context(), strength=0.8).train(
        Local(-server_D, ONE), ServerModel(server_D), world.batches(0, 600), (0,)
    )
    torch.testing.assert_close(kept.model_n, world.near(0, server_D, 0.8), rtol=0, atol=1e-10)


@pytest.mark.slow
def test_pfedme_descends_on_the_moreau_envelope() -> None:
    world, w_D = Quadratics(1), torch.ones(3, dtype=torch.float64)
    algorithm = PFedMe(world.context(), strength=2.0, lr=0.1, solving_steps=300)
    kept, sent = algorithm.train(Local(-w_D, ONE), ServerModel(w_D), world.batches(0, 3), (0,))
    local_D, theta_D = w_D, w_D
    for _ in range(3):
        theta_D = world.near(0, local_D, 2.0)
        local_D = local_D - 0.1 * 2.0 * (local_D - theta_D)
    torch.testing.assert_close(kept.model_n, theta_D, rtol=0, atol=1e-10)
    torch.testing.assert_close(sent.model_n, local_D, rtol=0, atol=1e-10)


def test_pfedmes_server_goes_a_part_of_the_way() -> None:
    world, w_D = Quadratics(1), torch.ones(3, dtype=torch.float64)
    algorithm = PFedMe(world.context(), strength=2.0, lr=0.1, server_rate=0.25)
    sent = Local(torch.tensor([[5.0, 1.0, 1.0], [1.0, 1.0, 3.0]], dtype=torch.float64), torch.tensor([1, 3]))
    torch.testing.assert_close(algorithm.close(ServerModel(w_D), sent).model_n, w_D.new_tensor([1.25, 1.0, 1.375]))


def test_fedper_sends_the_base_and_keeps_the_head() -> None:
    algorithm, (server_n, *own) = FedPer(bench_of("stack", lr=0.0)), starts(MODULE, 3)
    server = algorithm.start_server(server_n)
    kept, sent = algorithm.train(Local(torch.stack(own), torch.tensor([1, 3])), server, batches(peers=2), (1, 2))
    for x_n, own_n in zip(kept.model_n, own, strict=True):
        assert torch.equal(x_n[BASE_D], server_n[BASE_D])
        assert torch.equal(x_n[-15:], own_n[-15:])
    assert sent.model_n.shape == (2, len(BASE_D))
    assert torch.equal(algorithm.close(server, sent).model_n, server_n[BASE_D])


def test_fedper_trains_both_and_without_a_head_is_fedavg() -> None:
    x_Bn, examples, block = starts(MODULE, 3), torch.tensor([1, 2, 3]), batches()
    ends = []
    headless = FedPer(bench_of("stack"))
    vars(headless)["base_D"] = torch.arange(LAYOUT.n)
    for algorithm in (headless, FedAvg(bench_of("stack"))):
        server = algorithm.start_server(x_Bn[0])
        _, sent = algorithm.train(Local(x_Bn, examples), server, block, (1, 2, 3))
        ends.append(algorithm.close(server, sent).model_n)
    assert torch.equal(*ends)
    algorithm = FedPer(bench_of("stack"))
    kept, sent = algorithm.train(Local(x_Bn, examples), algorithm.start_server(x_Bn[0]), block, (1, 2, 3))
    start_n = torch.cat([x_Bn[0][BASE_D], x_Bn[2][-15:]])
    assert distance(kept.model_n[2], in_torch(MODULE, start_n, [block.peer(2)], LOSS, sgd)) < CLOSE
    assert torch.equal(sent.model_n, kept.model_n[:, BASE_D])


@pytest.mark.parametrize(
    ("share", "steps", "of_head", "of_base"),
    [(0.6, 5, (0, 1, 2), (3, 4)), (0.1, 3, (0,), (1, 2)), (0.9, 3, (0, 1), (2,)), (0.5, 1, (0,), (0,))],
)
def test_fedrep_trains_the_head_on_the_base_and_then_the_base_under_the_head(
    share: float, steps: int, of_head: tuple[int, ...], of_base: tuple[int, ...]
) -> None:
    algorithm = FedRep(bench_of("loop"), head_share=share)
    (server_n, own_n), one = starts(MODULE, 2), batches(peers=1, steps=steps).peer(0)
    kept, _ = algorithm.train(Local(own_n, ONE), algorithm.start_server(server_n), one, (1,))
    module, x_n = copy.deepcopy(MODULE), torch.cat([server_n[BASE_D], own_n[-15:]])
    for frozen, taken in ((("0", "2"), of_head), (("4",), of_base)):
        for name in ("0", "2", "4"):
            module.get_submodule(name).requires_grad_(name not in frozen)
        before_n, x_n = x_n, in_torch(module, x_n, [one.taking(taken)], LOSS, sgd, LAYOUT)
        moved_n = x_n != before_n
        assert bool(moved_n[: len(BASE_D)].any()) == ("4" in frozen) != bool(moved_n[len(BASE_D) :].any())
    assert distance(kept.model_n, x_n) < CLOSE


def test_ifca_finds_the_cluster_and_moves_its_model_alone() -> None:
    world = Quadratics(4)
    world.c_CD[:2], world.c_CD[2:] = 3.0, -3.0
    algorithm = Ifca(world.context(), clusters=3)
    models_CD = torch.tensor([[-1.0] * 3, [0.0, 90.0, 0.0], [1.0] * 3], dtype=torch.float64)
    server = ClusterModels(models_CD)
    trained, sent = zip(
        *(
            algorithm.train(Local(models_CD[1], torch.tensor(i + 1)), server, world.batches(i, 4), (0,))
            for i in range(4)
        ),
        strict=True,
    )
    assert [int(each.cluster) for each in sent] == [2, 2, 0, 0]
    fedavg = FedAvg(world.context())
    for i, start in enumerate((2, 2, 0, 0)):
        alone, _ = fedavg.train(trained[i], ServerModel(models_CD[start]), world.batches(i, 4), (0,))
        assert torch.equal(trained[i].model_n, alone.model_n)
    updates = Estimated(
        *(torch.stack(each) for each in zip(*((s.model_n, s.examples, s.cluster) for s in sent), strict=True))
    )
    after = algorithm.close(server, updates).model_Cn
    assert torch.equal(after[1], models_CD[1])
    torch.testing.assert_close(after[2], (1 * sent[0].model_n + 2 * sent[1].model_n) / 3)
    torch.testing.assert_close(after[0], (3 * sent[2].model_n + 4 * sent[3].model_n) / 7)


def test_ifca_may_predict_with_the_servers_model_and_sends_the_same() -> None:
    block, x_Bn, examples = batches(), starts(MODULE, 3), torch.tensor([1, 2, 3])
    server = ClusterModels(starts(MODULE, 5)[3:])
    usual, plain = (Ifca(bench_of("stack"), adapted=adapted) for adapted in (True, False))
    (trained, sent), (kept, same) = (
        each.train(Local(x_Bn, examples), server, block, (1, 2, 3)) for each in (usual, plain)
    )
    assert torch.equal(usual.personal_model(trained), sent.model_n)
    assert torch.equal(plain.personal_model(kept), server.model_Cn[sent.cluster])
    assert torch.equal(same.model_n, sent.model_n)


def test_ifca_refuses_models_that_begin_alike() -> None:
    start_n = starts(MODULE, 1)[0]
    algorithm = Ifca(replace(bench_of("stack"), draw=lambda name: start_n.clone()))
    with pytest.raises(AlgorithmError, match=r"ifca: all of its models would begin alike, .* learning\.start: torch"):
        algorithm.start_server(start_n)


def test_ifca_with_one_model_is_fedavg() -> None:
    block, x_Bn, examples = batches(), starts(MODULE, 3), torch.tensor([1, 2, 3])
    ifca, fedavg = Ifca(bench_of("stack"), clusters=1), FedAvg(bench_of("stack"))
    _, estimated = ifca.train(Local(x_Bn, examples), ClusterModels(x_Bn[:1]), block, (1, 2, 3))
    _, trained = fedavg.train(Local(x_Bn, examples), ServerModel(x_Bn[0]), block, (1, 2, 3))
    found, wanted = ifca.close(ClusterModels(x_Bn[:1]), estimated), fedavg.close(ServerModel(x_Bn[0]), trained)
    assert torch.equal(found.model_Cn[0], wanted.model_n)


@pytest.mark.parametrize("module", [MODULE, nn.Sequential(MODULE)], ids=["closed", "autograd"])
@pytest.mark.parametrize("peers", [1, 3])
def test_the_gradient_is_autograds_for_every_peer(peers: int, module: nn.Module) -> None:
    block, x_Bn = batches(peers=peers), starts(module, peers)
    keys = range(peers)
    found = gradient_of(module, FlatLayout.of(module), LOSS)(x_Bn, block.inputs(0), block.targets(0), keys)
    for p, x_n in enumerate(x_Bn):
        stepped = in_torch(module, x_n, [block.peer(p).taking([0])], LOSS, sgd)
        assert distance(found[p], (x_n - stepped) / LR) < 1e-4


@pytest.mark.parametrize(("steps", "meta_steps"), [(7, 2), (3, 1), (2, 1), (1, 1)])
def test_per_fedavg_on_quadratics_is_the_closed_meta_gradient(steps: int, meta_steps: int) -> None:
    """Seven batches make two steps of three batches each; with fewer than three, a batch is taken twice or more."""
    world, w_D = Quadratics(1), torch.ones(3, dtype=torch.float64)
    algorithm = PerFedAvg(world.context(), alpha=0.2, beta=0.3)
    kept, sent = algorithm.train(Local(-w_D, ONE), ServerModel(w_D), world.batches(0, steps), (0,))
    meta_D, eye_DD = w_D, torch.eye(3, dtype=torch.float64)
    for _ in range(meta_steps):
        v_D = world.gradient(0, meta_D - 0.2 * world.gradient(0, meta_D))
        meta_D = meta_D - 0.3 * (eye_DD - 0.2 * world.H_CDD[0]) @ v_D
    torch.testing.assert_close(sent.model_n, meta_D, rtol=0, atol=1e-10)
    adapted, _ = FedAvg(world.context()).train(Local(w_D, ONE), ServerModel(w_D), world.batches(0, steps), (0,))
    assert torch.equal(kept.model_n, adapted.model_n)


def test_per_fedavg_descends_on_the_loss_after_a_step() -> None:
    """With one batch for D, D' and D'', the step is the gradient of f(w - alpha grad f(w)), here by double autograd."""
    module = copy.deepcopy(MODULE).double()
    one, x_n = batches(peers=1, steps=1).peer(0), starts(MODULE, 1)[0].double()
    one = replace(one, x_NF=one.x_NF.double())

    def loss(x_n: Tensor) -> Tensor:
        answers = torch.func.functional_call(module, LAYOUT.unflatten(x_n), (one.inputs(0),))
        return LOSS.value(answers, one.targets(0))

    def after_a_step(x_n: Tensor) -> Tensor:
        return loss(x_n - 0.5 * torch.func.grad(loss)(x_n))

    algorithm = PerFedAvg(bench_of("loop", module), alpha=0.5, beta=1.0)
    _, sent = algorithm.train(Local(x_n, ONE), ServerModel(x_n), one.taking([0, 0, 0]), (0,))
    wanted_n = torch.func.grad(after_a_step)(x_n)
    assert distance(x_n - sent.model_n, wanted_n) < 1e-6
    assert distance(torch.func.grad(loss)(x_n), wanted_n) > 1e-2


def test_per_fedavg_takes_a_batch_of_its_own_for_each_of_its_three_gradients() -> None:
    module, alpha = copy.deepcopy(MODULE).double(), 0.5
    one, x_n = batches(peers=1, steps=3).peer(0), starts(MODULE, 1)[0].double()
    one = replace(one, x_NF=one.x_NF.double())

    def loss(step: int) -> Callable[[Tensor], Tensor]:
        def of(x_n: Tensor) -> Tensor:
            answers = torch.func.functional_call(module, LAYOUT.unflatten(x_n), (one.inputs(step),))
            return LOSS.value(answers, one.targets(step))

        return of

    algorithm = PerFedAvg(bench_of("loop", module), alpha=alpha, beta=1.0, delta=1e-4)
    _, sent = algorithm.train(Local(x_n, ONE), ServerModel(x_n), one, (0,))
    ahead_n = x_n - alpha * torch.func.grad(loss(0))(x_n)
    v_n = torch.func.grad(loss(1))(ahead_n)
    hessian_v_n = torch.func.grad(lambda x_n: torch.func.grad(loss(2))(x_n) @ v_n)(x_n)
    assert distance(x_n - sent.model_n, v_n - alpha * hessian_v_n) < 1e-6
    assert distance(v_n, v_n - alpha * hessian_v_n) > 1e-4


def test_a_network_with_running_statistics_has_no_meta_gradient() -> None:
    module = nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3))
    algorithm, x_n = PerFedAvg(bench_of("loop", module)), starts(module, 1)[0]
    with pytest.raises(AlgorithmError, match="running statistics"):
        algorithm.train(Local(x_n, ONE), ServerModel(x_n), batches(peers=1).peer(0), (0,))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: PFedMe(bench_of("stack"), strength=0.0), "strength = 0: write a number above 0"),
        (lambda: PFedMe(bench_of("stack"), lr=-0.1), "lr = -0.1: write a number above 0"),
        (lambda: PFedMe(bench_of("stack"), server_rate=0.0), "server_rate = 0: write a number above 0"),
        (lambda: PFedMe(bench_of("stack"), solving_steps=0), "solving_steps = 0: write 1 or more"),
        (lambda: Ditto(bench_of("stack"), strength=-1.0), "strength = -1: write 0 or more"),
        (lambda: FedProx(bench_of("stack"), mu=-0.5), "mu = -0.5: write 0 or more"),
        (lambda: PerFedAvg(bench_of("stack"), beta=-0.1), "beta = -0.1: write 0 or more"),
        (lambda: PerFedAvg(bench_of("stack"), alpha=-0.1), "alpha = -0.1: write 0 or more"),
        (lambda: PerFedAvg(bench_of("stack"), delta=0.0), "delta = 0: write a number above 0"),
        (lambda: FedPer(bench_of("loop", nn.Linear(5, 3))), "head: it is the whole network"),
        (lambda: Scaffold(bench_of("stack"), global_lr=0.0), "global_lr = 0: write a number above 0"),
        (lambda: Scaffold(bench_of("stack", lr=0.0)), "learning.optimizer has lr = 0; write a number above 0"),
    ],
)
def test_settings_out_of_bounds_are_refused(make: Callable[[], Algorithm], says: str) -> None:
    """Otherwise they divide by zero, push models apart, or never learn."""
    with pytest.raises(AlgorithmError, match=re.escape(says)):
        make()
