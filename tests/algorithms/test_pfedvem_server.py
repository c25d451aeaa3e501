"""pFedVEM behind the contract: whole turns against plain torch loops, aggregation, refusals, and digits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedpeer.algorithms.batches import Batches, Examples, round_order
from fedpeer.algorithms.coordinated import AlgorithmError, weighted_mean
from fedpeer.algorithms.draws import Draws, branch
from fedpeer.algorithms.losses import LOSSES
from fedpeer.algorithms.optimizers import OptimizerChoice
from fedpeer.algorithms.pfedvem import Head, Terms, confidence, train_head
from fedpeer.algorithms.registry import ALGORITHMS
from fedpeer.algorithms.servers import pfedvem
from fedpeer.algorithms.servers.models import ServerModel
from fedpeer.algorithms.servers.pfedvem import PFedVEM, PFedVEMClient, PFedVEMUpdate
from fedpeer.algorithms.training_context import TrainingContext
from fedpeer.config.choice import bind_settings, parse_choice
from fedpeer.data.bundled import digits
from tests.algorithms.client_factory import CLOSE, batches, distance, mlp, starts
from tests.algorithms.server_factory import played
from tests.reference.pfedvem import confidence_ratio, free_energy

K = 5
MOMENTUM: dict[str, Any] = {"lr": 0.05, "momentum": 0.9}
KEY = Draws(3).key("a round")


def images(seed: int = 0) -> nn.Module:
    """Return a small convolutional network; its head has 3 * (8 + 1) numbers."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        convolved = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
        return nn.Sequential(convolved, nn.Linear(2 * 2 * 3, 8), nn.Tanh(), nn.Linear(8, 3))


def bench_of(module: nn.Module, **settings: Any) -> TrainingContext:
    return TrainingContext.of(module, LOSSES["cross-entropy"], OptimizerChoice("SGD", settings or MOMENTUM))


def begun(algorithm: PFedVEM, module: nn.Module, seed: int = 1) -> tuple[PFedVEMClient, Tensor]:
    """Return a client whose model and head differ from the server's, and the server's current parameters."""
    own_n, server_n = starts(module, 2, seed)
    client = algorithm.start_client(own_n, torch.tensor(24))
    noise_D = torch.randn(client.pi_D.shape, generator=torch.Generator().manual_seed(seed))
    return replace(client, pi_D=client.pi_D + noise_D), server_n


def turn_in_torch(
    module: nn.Module, client: PFedVEMClient, server_n: Tensor, one: Batches, key: int, *, head_lr: float, epochs: int
) -> tuple[Tensor, Tensor]:
    """Return (model, pi_D) of a turn by torch's parameters and autograd, for a module whose last child is its head.

    Noise comes from the same streams: (K, D) numbers for each step, first all of the head's, then all of the base's.
    """
    assert isinstance(module, nn.Sequential)
    assert isinstance(module[-1], nn.Linear)
    classes = module[-1].out_features
    size = sum(p.numel() for p in module[-1].parameters())
    w_D, mu_D, sigma_D = server_n[-size:], client.model_n[-size:], functional.softplus(client.pi_D)
    tau = size / (sigma_D.square().sum() + (mu_D - w_D).square().sum())
    views = bench_of(module).layout.unflatten(torch.cat([server_n[:-size], mu_D]))
    module.load_state_dict({**module.state_dict(), **{name: value.clone() for name, value in views.items()}})
    base, (x, y) = module[:-1], one.everything()
    at = nn.Parameter(mu_D.clone()), nn.Parameter(client.pi_D.clone())
    streams = [Draws(key).torch(purpose) for purpose in ("head", "base")]
    optimizer = torch.optim.SGD(at, lr=head_lr, momentum=0.9)
    for _ in range(epochs):
        optimizer.zero_grad()
        noise_KD = torch.randn((K, size), generator=streams[0])
        torch.autograd.backward(free_energy(Head(*at), base(x).detach(), y, w_D, tau, noise_KD))
        optimizer.step()
    mu_D, sigma_D = at[0].detach(), functional.softplus(at[1].detach())
    optimizer = torch.optim.SGD(base.parameters(), **MOMENTUM)
    for step in range(one.steps):
        optimizer.zero_grad()
        noise_KD = torch.randn((K, size), generator=streams[1])
        lost = torch.zeros(())
        for head_D in mu_D + sigma_D * noise_KD:
            weight, bias = head_D[:-classes].reshape(classes, -1), head_D[-classes:]
            lost = lost + functional.cross_entropy(base(one.inputs(step)) @ weight.T + bias, one.targets(step)) / K
        torch.autograd.backward(lost)
        optimizer.step()
    return torch.cat([*(p.detach().flatten() for p in base.parameters()), mu_D]), at[1].detach()


@pytest.mark.parametrize("kind", ["stack", "images"])
def test_a_turn_is_what_torch_makes_of_the_published_objectives(kind: str) -> None:
    module = mlp(activation=nn.ReLU) if kind == "stack" else images()
    one = batches(peers=1, features=(5,) if kind == "stack" else (1, 4, 6), steps=4).peer(0)
    algorithm = PFedVEM(bench_of(module), head_lr=0.01, head_epochs=6)
    client, server_n = begun(algorithm, module)
    kept, sent = algorithm.train(client, algorithm.start_server(server_n), one, (KEY,))
    model_n, pi_D = turn_in_torch(module, client, server_n, one, KEY, head_lr=0.01, epochs=6)
    assert distance(kept.model_n, model_n) < CLOSE
    assert distance(kept.pi_D, pi_D) < CLOSE
    size = len(pi_D)
    started_n = torch.cat([server_n[:-size], client.model_n[-size:]])
    for part in (slice(None, -size), slice(-size, None)):
        assert distance(kept.model_n[part], started_n[part]) > 1e-2
    assert torch.equal(sent.model_n, kept.model_n)
    wanted = confidence(Head(client.model_n[-size:], client.pi_D), server_n[-size:])
    assert torch.equal(sent.tau, wanted), "of the head as it was before training, and of w as it came"


def test_bases_are_counted_by_examples_and_heads_by_confidence() -> None:
    algorithm, x_Kn = PFedVEM(bench_of(mlp())), starts(mlp(), 3)
    examples, tau = torch.tensor([10, 30, 60]), torch.tensor([8.0, 1.0, 1.0])
    found_n = algorithm.close(algorithm.start_server(x_Kn[0]), PFedVEMUpdate(x_Kn, examples, tau)).model_n
    wide = x_Kn.double()
    wanted_n = torch.cat([(wide[:, :-15].T @ (examples / 100).double()), wide[:, -15:].T @ (tau / 10).double()])
    torch.testing.assert_close(found_n, wanted_n.float(), rtol=0, atol=1e-7)
    assert distance(found_n[-15:], weighted_mean(x_Kn[:, -15:], examples)) > 1e-2


def test_a_mean_that_is_proof_against_liars_is_taken_of_both() -> None:
    options: list[tuple[Tensor, Tensor]] = []

    def least(values_KD: Tensor, weights_K: Tensor) -> Tensor:
        options.append((values_KD, weights_K))
        return values_KD.min(0).values

    algorithm, x_Kn = PFedVEM(replace(bench_of(mlp()), mean=least)), starts(mlp(), 3)
    updates = PFedVEMUpdate(x_Kn, torch.tensor([1, 2, 3]), torch.tensor([4.0, 5.0, 6.0]))
    assert torch.equal(algorithm.close(algorithm.start_server(x_Kn[0]), updates).model_n, x_Kn.min(0).values)
    assert [weights_K.tolist() for _, weights_K in options] == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize("terms", ["both", "uncertainty", "deviation"])
def test_at_the_start_everybody_is_as_confident(terms: Terms) -> None:
    algorithm, x_n = PFedVEM(bench_of(mlp()), sigma=0.2, terms=terms), starts(mlp(), 1)[0]
    client = algorithm.start_client(x_n.expand(3, -1), torch.tensor([1, 2, 3]))
    found = algorithm.statistics(client, algorithm.start_server(x_n))
    torch.testing.assert_close(found["confidence"], torch.full((3,), 25.0))
    torch.testing.assert_close(found["deviation"], torch.zeros(3))
    torch.testing.assert_close(found["uncertainty"], torch.full((3,), 0.04))


def test_statistics_are_the_two_terms_and_what_is_made_of_them() -> None:
    algorithm, ablation = PFedVEM(bench_of(mlp())), PFedVEM(bench_of(mlp()), terms="deviation")
    client, server_n = begun(algorithm, mlp())
    found = algorithm.statistics(client, algorithm.start_server(server_n))
    torch.testing.assert_close(found["deviation"], (client.model_n - server_n)[-15:].square().sum() / 15)
    torch.testing.assert_close(found["uncertainty"], functional.softplus(client.pi_D).square().sum() / 15)
    torch.testing.assert_close(1 / found["confidence"], found["deviation"] + found["uncertainty"])
    alone = ablation.statistics(client, ablation.start_server(server_n))["confidence"]
    torch.testing.assert_close(alone, 1 / found["deviation"])


def test_an_ablation_changes_prior_and_weight_alike() -> None:
    one, priors = batches(peers=1).peer(0), []
    ablations: tuple[Terms, ...] = ("both", "uncertainty", "deviation")
    for terms in ablations:
        algorithm = PFedVEM(bench_of(mlp()), terms=terms, head_lr=0.01)
        client, server_n = begun(algorithm, mlp())
        kept, sent = algorithm.train(client, algorithm.start_server(server_n), one, (KEY,))
        own = algorithm.head_of(client)
        assert torch.equal(sent.tau, confidence(own, server_n[-15:], terms))
        priors.append((float(sent.tau), algorithm.head_of(kept).mu_D))
    for (tau, mu_D), (other, other_D) in pairwise(priors):
        assert tau != other
        assert not torch.equal(mu_D, other_D)


def test_a_head_that_diverged_goes_back_and_the_base_learns_under_it() -> None:
    algorithm = PFedVEM(bench_of(mlp()), head_lr=1e30)
    client, server_n = begun(algorithm, mlp())
    kept, _ = algorithm.train(client, algorithm.start_server(server_n), batches(peers=1).peer(0), (KEY,))
    assert torch.equal(kept.model_n[-15:], client.model_n[-15:])
    assert torch.equal(kept.pi_D, client.pi_D)
    assert distance(kept.model_n[:-15], server_n[:-15]) > 1e-3
    assert kept.model_n.isfinite().all()


def test_all_examples_train_the_head_and_the_rounds_batches_the_base(monkeypatch: pytest.MonkeyPatch) -> None:
    """The head gets 6 examples where the batches are all that a client has, and 20 where the client has more."""
    met: list[int] = []

    def counting(head: Head, z_NF: Tensor, *others: Any, **settings: Any) -> Head:
        met.append(len(z_NF))
        return train_head(head, z_NF, *others, **settings)

    monkeypatch.setattr(pfedvem, "train_head", counting)
    algorithm, one = PFedVEM(bench_of(mlp())), batches(peers=1, steps=2, size=3).peer(0)
    client, server_n = begun(algorithm, mlp())
    generator = torch.Generator().manual_seed(1)
    more = Examples(one.x_NF, torch.arange(20), torch.randint(0, 3, (20,), generator=generator))
    for each in (one, replace(one, whole=(more,))):
        algorithm.train(client, algorithm.start_server(server_n), each, (KEY,))
    assert met == [6, 20]


def test_streams_of_noise_are_the_rounds_own() -> None:
    algorithm, one = PFedVEM(bench_of(mlp()), head_lr=0.01), batches(peers=1).peer(0)
    client, server_n = begun(algorithm, mlp())
    server = algorithm.start_server(server_n)
    ends = [algorithm.train(client, server, one, (key,))[0] for key in (KEY, KEY, branch(KEY, 2))]
    assert torch.equal(ends[0].model_n, ends[1].model_n)
    assert not torch.equal(ends[0].model_n[:-15], ends[2].model_n[:-15])
    assert not torch.equal(ends[0].pi_D, ends[2].pi_D)


def test_dropout_draws_from_the_rounds_key_too(monkeypatch: pytest.MonkeyPatch) -> None:
    module = nn.Sequential(nn.Linear(5, 6), nn.Dropout(0.5), nn.Linear(6, 3))
    algorithm, one = PFedVEM(bench_of(module), head_lr=0.01), batches(peers=1).peer(0)
    client, server_n = begun(algorithm, module)
    noise_KD = torch.randn((K, 21), generator=torch.Generator().manual_seed(1))
    monkeypatch.setattr(pfedvem, "drawn_noise", lambda generator: lambda like_KD: noise_KD)
    ends = [
        algorithm.train(client, ServerModel(server_n), one, (key,))[0].model_n for key in (KEY, KEY, branch(KEY, 2))
    ]
    assert torch.equal(ends[0], ends[1])
    assert not torch.equal(ends[0], ends[2])


def test_parted_models_are_joined_again_wherever_the_head_stands() -> None:
    module = nn.ModuleDict({"first": nn.Linear(2, 2), "head": nn.Linear(2, 3), "last": nn.Linear(1, 2)})
    algorithm, x_Bn = PFedVEM(bench_of(module), head=("head",)), torch.arange(38.0).reshape(2, 19)
    base_Bm, head_BD = algorithm.parted(x_Bn)
    assert head_BD[0].tolist() == list(range(6, 15))
    assert torch.equal(algorithm.joined(base_Bm, head_BD), x_Bn)
    assert torch.equal(algorithm.joined(base_Bm[1], head_BD)[0, 15:], x_Bn[1, 15:])


def test_its_settings_have_bounds() -> None:
    refused: list[tuple[Callable[[TrainingContext], PFedVEM], str]] = [
        (lambda context: PFedVEM(context, sigma=0.0), "sigma = 0.0"),
        (lambda context: PFedVEM(context, head_lr=-1.0), "head_lr = -1.0"),
        (lambda context: PFedVEM(context, momentum=1.0), "momentum = 1.0"),
        (lambda context: PFedVEM(context, head_epochs=0), "head_epochs = 0"),
        (lambda context: PFedVEM(context, samples=0), "samples = 0"),
        (lambda context: PFedVEM(context, head=("2", "4")), "2, 4 are 2 layers"),
        (lambda context: PFedVEM(context, head=("9",)), 'no module "9"'),
        (lambda context: PFedVEM(replace(context, loss=LOSSES["binary"])), "learning.loss is binary"),
    ]
    for make, words in refused:
        with pytest.raises(AlgorithmError, match=words):
            make(bench_of(mlp()))


def test_its_name_takes_its_settings() -> None:
    choice = parse_choice("pfedvem,sigma=0.2,head_epochs=20,terms=deviation,head=output")
    settings = bind_settings(choice, ALGORITHMS["pfedvem"])
    assert settings == {"sigma": 0.2, "head_epochs": 20, "terms": "deviation", "head": ("output",)}
    module = nn.Sequential()
    module.add_module("hidden", nn.Linear(3, 4))
    module.add_module("output", nn.Linear(4, 2))
    made = ALGORITHMS["pfedvem"](bench_of(module), **settings)
    assert (made, made.everyone_trains) == (PFedVEM(made.context, **settings), True)


CLIENTS, ROUNDS, STEPS, BATCH = 6, 6, 25, 10


@pytest.mark.slow
def test_digits_are_learnt_by_clients_of_five_classes() -> None:
    """Personal models beat the server's on their own classes; the server's knows all ten, though no client has all."""
    held = digits()
    x_NF, y_N = torch.tensor(held.x), torch.tensor(held.y)
    test_N = torch.arange(len(y_N)) % 4 == 0
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(64, 30), nn.ReLU(), nn.Linear(30, 10))
    algorithm = PFedVEM(bench_of(module), head_lr=1e-3)
    classes = [[c for c in range(10) if c % 2 == p % 2] for p in range(CLIENTS)]
    rows = [
        ((~test_N) & torch.isin(y_N, torch.tensor(classes[p])) & (torch.arange(len(y_N)) // 4 % 3 == p // 2)).nonzero()
        for p in range(CLIENTS)
    ]
    x_n, draws = algorithm.context.layout.flatten(module), Draws(0)
    server = algorithm.start_server(x_n)
    clients = {str(p): algorithm.start_client(x_n, torch.tensor(len(rows[p]))) for p in range(CLIENTS)}
    for number in range(1, ROUNDS + 1):

        def work(peer: str, number: int = number) -> Batches:
            own = rows[int(peer)].squeeze(-1)
            index = own[torch.from_numpy(round_order(len(own), number, STEPS, BATCH, draws, peer))]
            return Batches(x_NF, index, y_N[index], whole=(Examples(x_NF, own, y_N[own]),))

        server = played(algorithm, server, clients, work, [str(p) for p in range(CLIENTS)])

    def right(model_n: Tensor, among: Tensor) -> float:
        answers = algorithm.context.stepper.logits(model_n[None], x_NF[among][None])[0].argmax(-1)
        return float((answers == y_N[among]).float().mean())

    own = [test_N & torch.isin(y_N, torch.tensor(classes[p])) for p in range(CLIENTS)]
    pm = sum(right(clients[str(p)].model_n, own[p]) for p in range(CLIENTS)) / CLIENTS
    gm = right(server.model_n, test_N)
    of_server = sum(right(server.model_n, own[p]) for p in range(CLIENTS)) / CLIENTS
    assert pm > 0.94
    assert pm > of_server
    assert gm > 0.8
    found = algorithm.statistics(clients["0"], server)
    assert 0 < float(found["deviation"]) < 1
    tau_J = torch.stack([algorithm.statistics(client, server)["confidence"] for client in clients.values()])
    assert float(confidence_ratio(tau_J).std()) > 0
