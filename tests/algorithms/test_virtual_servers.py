"""VIRTUAL (both papers) and pFedBayes behind the contract: product law, exact inference, sent and kept state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

from fedpeer.algorithms import virtual
from fedpeer.algorithms.batches import Batches, round_order
from fedpeer.algorithms.bayesian_training import Posterior, training_of
from fedpeer.algorithms.coordinated import AlgorithmError
from fedpeer.algorithms.draws import Draws, branch
from fedpeer.algorithms.gaussian import Gaussian
from fedpeer.algorithms.leaves import leaves_of, stack_states, take_rows
from fedpeer.algorithms.losses import LOSSES
from fedpeer.algorithms.optimizers import OptimizerChoice
from fedpeer.algorithms.servers.fedavg import FedAvg
from fedpeer.algorithms.servers.pfedbayes import PFedBayes, PFedBayesUpdate, _followed
from fedpeer.algorithms.servers.virtual import Virtual, VirtualServer
from fedpeer.algorithms.servers.virtual_sequential import SequentialVirtual
from fedpeer.algorithms.training_context import TrainingContext
from fedpeer.algorithms.updates import fault
from fedpeer.networks.registry import lateral_mlp, lstm, mlp
from tests.algorithms.client_factory import batches, distance, starts
from tests.algorithms.client_factory import mlp as plain_mlp
from tests.algorithms.server_factory import Algorithm, bench_of
from tests.reference.linear_gaussian import minimiser
from tests.reference.updates import in_peer_order
from tests.reference.virtual import gaussian_kl

LATERAL = lateral_mlp((5,), 3, hidden=(4,))
EXAMPLES = torch.tensor([10, 30, 60])
MAKERS: dict[str, Callable[[], Algorithm]] = {
    "virtual": lambda: Virtual(bench_of("stack"), beta=0.1),
    # In float64, because the last bit of a ratio at the threshold could decide differently in a block and alone.
    "pruned": lambda: Virtual(
        bench_of("loop", plain_mlp().double()), gamma=0.3, prune=60.0, ratio="posterior", keep_last=True
    ),
    "ablation": lambda: Virtual(replace(bench_of("stack"), examples=100), fedavg_start=True, exponent="n/N"),
    "lateral": lambda: Virtual(bench_of("loop", LATERAL), beta=0.1),
    "2019": lambda: SequentialVirtual(bench_of("loop", LATERAL), samples=2),
    "pfedbayes": lambda: PFedBayes(bench_of("stack")),
}


def begun(algorithm: Algorithm) -> tuple[Any, Any, Tensor]:
    """Return a server, a block of three clients, and the parameters that they start from."""
    x_n = starts(algorithm.context.module, 1)[0]  # type: ignore[attr-defined]
    return algorithm.start_server(x_n), algorithm.start_client(x_n.expand(3, -1), EXAMPLES), x_n


def block_for(algorithm: Algorithm) -> Batches:
    """Return batches of three clients, in the dtype of the network."""
    block, module = batches(), algorithm.context.module  # type: ignore[attr-defined]
    return replace(block, x_NF=block.x_NF.to(next(module.parameters()).dtype))


@pytest.mark.slow
@pytest.mark.parametrize("name", MAKERS)
def test_a_block_of_clients_is_each_alone(name: str) -> None:
    algorithm = MAKERS[name]()
    block = block_for(algorithm)
    server, clients, _ = begun(algorithm)
    for round in (1, 2):
        broadcast, before = algorithm.open(server, round), clients
        trained, updates = algorithm.train(before, broadcast, block, (1, 2, 3))
        for p in range(3):
            alone = algorithm.train(take_rows(before, p), broadcast, block.peer(p), (p + 1,))
            together = take_rows(trained, p), take_rows(updates, p)
            for one, other in zip(alone, together, strict=True):
                for field, a, b in zip(leaves_of(one), leaves_of(one).values(), leaves_of(other).values(), strict=True):
                    assert a.shape == b.shape
                    # Deltas are differences of precisions, so they carry the rounding of the whole precisions.
                    scale = 1 / 0.05**2 if "chi" in field or "xi" in field else 1.0
                    torch.testing.assert_close(a, b, rtol=1e-5, atol=5e-6 * scale, msg=field)
        server = algorithm.close(server, updates)
        clients = algorithm.settle(before, trained, server, torch.tensor([True, False, True]))


@pytest.mark.parametrize("name", MAKERS)
def test_nothing_passed_in_is_changed(name: str) -> None:
    algorithm = MAKERS[name]()
    block = block_for(algorithm)
    server, clients, x_n = begun(algorithm)
    held = [*leaves_of(server).values(), *leaves_of(clients).values(), block.index, block.y, block.x_NF, x_n]
    before = [each.clone() for each in held]
    trained, updates = algorithm.train(clients, algorithm.open(server, 1), block, (1, 2, 3))
    later = algorithm.close(server, updates)
    algorithm.settle(clients, trained, later, torch.tensor([True, False, True]))
    assert all(torch.equal(a, b) for a, b in zip(held, before, strict=True))
    assert not torch.equal(algorithm.personal_model(trained), algorithm.personal_model(clients))
    assert any(
        distance(a, b) > 1e-4 for a, b in zip(leaves_of(later).values(), leaves_of(server).values(), strict=True)
    )


@pytest.mark.parametrize("name", MAKERS)
def test_before_any_round_everybody_has_the_initial_model(name: str) -> None:
    algorithm = MAKERS[name]()
    server, clients, x_n = begun(algorithm)
    assert torch.equal(algorithm.personal_model(clients), x_n.expand(3, -1))
    found = algorithm.server_model(server)
    assert (found is None) == (name in ("lateral", "2019")), "a part that feeds others predicts nothing"
    if found is not None:
        torch.testing.assert_close(found, x_n.to(found.dtype))


def product_of(clients: Sequence[Any]) -> Gaussian:
    factors = [each.factor for each in clients]
    return Gaussian(
        torch.stack([each.chi_D.double() for each in factors]).sum(0),
        torch.stack([each.xi_D.double() for each in factors]).sum(0),
    )


def apart(one: Gaussian, other: Gaussian) -> float:
    return max(distance(one.chi_D.double(), other.chi_D.double()), distance(one.xi_D.double(), other.xi_D.double()))


class Erratic:
    """A stand-in for training: posteriors anywhere, some so wide that the server would have no precision left."""

    def __init__(self, seed: int) -> None:
        self.draw = torch.Generator().manual_seed(seed)

    def __call__(self, start: Posterior, *work: object) -> Posterior:
        shape = start.mu_n.shape
        spread_n = 0.02 * 10 ** (2 * torch.rand(shape, generator=self.draw, dtype=start.mu_n.dtype))
        mu_n = torch.randn(shape, generator=self.draw, dtype=start.mu_n.dtype)
        return Posterior(mu_n, torch.log(torch.expm1(spread_n)))


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(
    seed=some.integers(0, 2**31),
    rounds=some.lists(some.dictionaries(some.integers(0, 3), some.booleans(), min_size=1), min_size=1, max_size=8),
    gamma=some.sampled_from([None, 0.3, 1.0]),
    prune=some.sampled_from([0.0, 50.0, 90.0]),
    positivity=some.sampled_from(["shrink", "reject"]),
    exponent=some.sampled_from(["1/K", "n/N"]),
)
def test_the_server_is_always_the_product_of_the_clients_factors(
    seed: int,
    rounds: list[dict[int, bool]],
    gamma: float | None,
    prune: float,
    positivity: virtual.Positivity,
    exponent: virtual.Exponent,
) -> None:
    """This holds for any participants, pruning and uncounted updates, and if a posterior would leave no precision."""
    context = replace(bench_of("loop", plain_mlp().double(), clients=4), examples=100)
    made = {"gamma": gamma, "prune": prune, "positivity": positivity, "exponent": exponent}
    algorithm = Virtual(context, **made)  # type: ignore[arg-type]
    vars(algorithm)["_training"] = Erratic(seed)
    x_n, sizes = starts(context.module, 1)[0].double(), (10, 20, 30, 40)
    server, clients = algorithm.start_server(x_n), [algorithm.start_client(x_n, torch.tensor(n)) for n in sizes]
    work = batches(peers=4)
    for round in rounds:
        trained, sent = {}, {}
        for p in sorted(round):
            trained[p], sent[p] = algorithm.train(clients[p], algorithm.open(server, 1), work.peer(p), (p,))
        counted = {str(p): sent[p] for p in round if round[p]}
        if counted:
            server = algorithm.close(server, in_peer_order(counted))
        for p in round:
            clients[p] = algorithm.settle(clients[p], trained[p], server, torch.tensor(round[p]))
        assert apart(product_of(clients), server.posterior) < 1e-9
        assert (server.posterior.xi_D > 0).all()


@pytest.mark.slow
def test_the_law_holds_in_float32_for_many_rounds_of_training() -> None:
    algorithm, block = Virtual(bench_of("stack", clients=3), gamma=0.5, prune=50.0, beta=0.1), batches()
    x_n, draw = starts(algorithm.context.module, 1)[0], torch.Generator().manual_seed(1)
    server, clients = algorithm.start_server(x_n), [algorithm.start_client(x_n, EXAMPLES[p]) for p in range(3)]
    for round in range(1, 60):
        active = [p for p in range(3) if torch.rand(1, generator=draw) < 0.6] or [0]
        pairs = {p: algorithm.train(clients[p], server.posterior, block.peer(p), (round * 8 + p,)) for p in active}
        counted = {str(p): update for p, (_, update) in pairs.items() if torch.rand(1, generator=draw) < 0.8}
        server = algorithm.close(server, in_peer_order(counted)) if counted else server
        for p in active:
            clients[p] = algorithm.settle(clients[p], pairs[p][0], server, torch.tensor(str(p) in counted))
    assert apart(product_of(clients), server.posterior) < 1e-5
    assert distance(server.posterior.mu_D, x_n) > 0.05


class Exact:
    """A stand-in for training: the posterior of a linear regression, in closed form; a key is a client's number."""

    def __init__(self, x_KND: Tensor, y_KN: Tensor, noise: float) -> None:
        self.data = x_KND, y_KN, noise

    def __call__(
        self, start: Posterior, reference: Gaussian, strength: Tensor, batches: Batches, keys: Sequence[int]
    ) -> Posterior:
        x_KND, y_KN, noise = self.data
        return Posterior.of(minimiser(x_KND[keys[0]], y_KN[keys[0]], reference, noise))


@pytest.mark.parametrize(("exponent", "counted"), [("1/K", 1.0), ("n/N", 1.0), ("1", 4.0)])
def test_one_pass_over_clients_of_a_linear_model_is_exact_inference(exponent: Any, counted: float) -> None:
    """Each observation is about one weight alone, so a Gaussian without correlations loses nothing."""
    draw = torch.Generator().manual_seed(2)
    x_KND = torch.eye(5, dtype=torch.float64).repeat(4, 2, 1) * torch.randn((4, 10, 1), generator=draw).double()
    y_KN, noise = torch.randn((4, 10), generator=draw).double(), 0.5
    line = nn.Linear(5, 1, bias=False).double()
    context = replace(bench_of("loop", line, "mean-squared-error", clients=4), examples=20)
    algorithm = Virtual(context, exponent=exponent, prior_sd=0.8)
    vars(algorithm)["_training"] = Exact(x_KND, y_KN, noise)
    x_n = torch.randn(5, generator=draw).double()
    server, work = algorithm.start_server(x_n), batches(peers=1).peer(0)
    for k, n in enumerate((2, 4, 6, 8)):
        client = algorithm.start_client(x_n, torch.tensor(n))
        _, sent = algorithm.train(client, algorithm.open(server, 1), work, (k,))
        server = algorithm.close(server, stack_states([sent]))
    prior = Gaussian.of(torch.zeros(5, dtype=torch.float64), 0.8) ** counted
    wanted = minimiser(x_KND.flatten(0, 1), y_KN.flatten(), prior, noise)
    assert apart(server.posterior, wanted) < 1e-10


def test_without_a_gamma_the_server_is_the_geometric_mean_of_the_posteriors() -> None:
    algorithm, block = Virtual(bench_of("stack")), batches()
    server, clients, _ = begun(algorithm)
    trained, sent = algorithm.train(clients, algorithm.open(server, 1), block, (1, 2, 3))
    found = [Posterior(trained.mu_n[p], trained.rho_n[p]).gaussian for p in range(3)]
    later = algorithm.close(server, sent)
    mean = Gaussian(sum(g.chi_D for g in found) / 3, sum(g.xi_D for g in found) / 3)  # type: ignore[arg-type]
    assert apart(later.posterior, mean) < 1e-5
    assert later.taken_D.tolist() == pytest.approx([1 / 3] * len(mean.chi_D))
    damped = Virtual(bench_of("stack"), gamma=1 / 3)
    kept, third = damped.train(clients, damped.open(server, 1), block, (1, 2, 3))
    assert apart(damped.close(server, third).posterior, later.posterior) < 1e-5
    counted = torch.tensor([True] * 3)
    stored = [
        a.settle(clients, b, c, counted).factor
        for a, b, c in ((algorithm, trained, later), (damped, kept, damped.close(server, third)))
    ]
    assert apart(*stored) < 1e-4


def test_who_was_not_counted_has_the_old_factor_and_its_own_posterior() -> None:
    algorithm, block = Virtual(bench_of("stack")), batches()
    server, before, _ = begun(algorithm)
    trained, sent = algorithm.train(before, algorithm.open(server, 1), block, (1, 2, 3))
    later = algorithm.close(server, take_rows(sent, [0, 2]))
    after = algorithm.settle(before, trained, later, torch.tensor([True, False, True]))
    assert torch.equal(after.factor.xi_D[1], before.factor.xi_D[1])
    assert torch.equal(after.factor.chi_D[1], before.factor.chi_D[1])
    assert not torch.equal(after.factor.chi_D[0], before.factor.chi_D[0])
    assert torch.equal(algorithm.personal_model(after), trained.mu_n)


def test_training_starts_from_the_server_and_is_held_to_cavity_and_prior() -> None:
    """The cavity leaves out the client's old factor; the objective's strength is beta over the client's examples."""
    seen: list[Any] = []

    def looking(*work: Any) -> Posterior:
        seen.append(work)
        start: Posterior = work[0]
        return start

    for ablation in (False, True):
        algorithm = Virtual(bench_of("stack", clients=4), beta=0.2, prior_sd=2.0, fedavg_start=ablation)
        vars(algorithm)["_training"] = looking
        _, clients, x_n = begun(algorithm)
        told = Gaussian.of(x_n + 0.1, 0.03)
        algorithm.train(clients, told, batches(), (1, 2, 3))
        start, reference, strength = seen.pop()[:3]
        cavity = told / Gaussian.of(x_n, 0.05) ** 0.25
        assert apart(take_rows(reference, 1), cavity * Gaussian.of(torch.zeros_like(x_n), 2.0) ** 0.25) < 1e-5
        torch.testing.assert_close(strength, 0.2 / EXAMPLES)
        wanted = cavity * told**0.25 if ablation else told
        assert apart(Posterior(start.mu_n[2], start.rho_n[2]).gaussian, wanted) < 1e-5


@pytest.mark.parametrize("ratio", ["update", "posterior"])
@pytest.mark.parametrize("keep_last", [False, True])
def test_pruned_weights_are_not_sent_and_bytes_are_counted(ratio: Any, keep_last: bool) -> None:
    algorithm = Virtual(bench_of("stack"), prune=75.0, ratio=ratio, keep_last=keep_last)
    whole, block = Virtual(bench_of("stack")), batches()
    server, clients, _ = begun(algorithm)
    trained, sent = algorithm.train(clients, algorithm.open(server, 1), block, (1, 2, 3))
    _, full = whole.train(clients, whole.open(server, 1), block, (1, 2, 3))
    kept_3D, wanted = sent.xi_D != 0, torch.zeros(3, dtype=torch.int64)
    own = Posterior(trained.mu_n, trained.rho_n).gaussian
    snr_3D = virtual.update_snr(full, own) if ratio == "update" else virtual.posterior_snr(own)
    for tensor in algorithm.context.layout.tensors:
        of = kept_3D[:, tensor.span]
        if keep_last and tensor.module == "4":
            assert of.all()
            wanted += 8 * tensor.size
            continue
        left = tensor.size - -(-75 * (tensor.size - 1) // 100)
        assert of.sum(1).tolist() == [left] * 3
        for row, snr in zip(of, snr_3D[:, tensor.span], strict=True):
            assert snr[row].min() >= snr[~row].max()
        bitmap = -(-tensor.size // 8)
        listed = -(-left * (tensor.size - 1).bit_length() // 8)
        wanted += 8 * left + min(bitmap, listed)
    assert torch.equal(sent.chi_D, full.chi_D.where(kept_3D, 0.0))
    assert trained.sent_bytes.tolist() == wanted.tolist()
    later = algorithm.close(server, sent)
    assert algorithm.statistics(trained, later)["update bytes"].tolist() == wanted.tolist()
    plain, _ = whole.train(clients, whole.open(server, 1), block, (1, 2, 3))
    assert plain.sent_bytes.tolist() == [8 * len(full.xi_D[0])] * 3


@pytest.mark.slow
def test_with_lateral_connections_the_clients_part_never_leaves() -> None:
    algorithm, block = Virtual(bench_of("loop", LATERAL, clients=3)), batches()
    server, clients, x_n = begun(algorithm)
    shared = len(algorithm.shared_D)
    assert shared == 5 * 4 + 4 + 4 * 3 + 3 < len(x_n)
    trained, sent = algorithm.train(clients, algorithm.open(server, 1), block, (1, 2, 3))
    assert {leaf.shape for leaf in leaves_of(sent).values()} == {(3, shared)}
    assert {leaf.shape for leaf in leaves_of(algorithm.open(server, 1)).values()} == {(shared,)}
    assert (trained.mu_n != clients.mu_n).float().mean() > 0.9
    again = algorithm.settle(clients, trained, algorithm.close(server, sent), torch.tensor([False] * 3))
    start: list[Posterior] = []
    vars(algorithm)["_training"] = lambda *work: start.append(work[0]) or work[0]  # type: ignore[func-returns-value]
    algorithm.train(again, algorithm.open(server, 2), block, (1, 2, 3))
    torch.testing.assert_close(start[0].mu_n[:, :shared], server.posterior.mu_D.expand(3, -1))
    assert torch.equal(start[0].mu_n[:, shared:], trained.mu_n[:, shared:])
    assert torch.equal(start[0].rho_n[:, shared:], trained.rho_n[:, shared:])


def test_private_weights_are_held_to_their_prior() -> None:
    algorithm = Virtual(bench_of("loop", LATERAL, clients=3), prior_sd=0.5)
    server, clients, x_n = begun(algorithm)
    seen: list[Gaussian] = []
    vars(algorithm)["_training"] = lambda *work: seen.append(work[1]) or work[0]  # type: ignore[func-returns-value]
    algorithm.train(clients, algorithm.open(server, 1), batches(), (1, 2, 3))
    private = slice(len(algorithm.shared_D), len(x_n))
    assert (seen[0].chi_D[:, private] == 0).all()
    assert (seen[0].xi_D[:, private] == 4).all()
    assert (seen[0].xi_D[:, : private.start] > 100).all()


def test_2019_refines_one_client_after_the_other() -> None:
    algorithm = MAKERS["2019"]()
    participants = [algorithm.participants(round, 3, 0.5, Draws(1)) for round in range(1, 8)]
    assert participants == [(0,), (1,), (2,), (0,), (1,), (2,), (0,)]
    default = SequentialVirtual(bench_of("loop", LATERAL))
    assert (default.exponent, default.estimator, default.samples) == ("1", "flipout", 20)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: SequentialVirtual(bench_of("stack")), "write network: lateral-mlp"),
        (lambda: Virtual(bench_of("stack"), sigma=0.0), "sigma = 0"),
        (lambda: Virtual(bench_of("stack"), prior_sd=-1.0), "prior_sd = -1"),
        (lambda: Virtual(bench_of("stack"), beta=-0.1), "beta = -0.1"),
        (lambda: Virtual(bench_of("stack"), gamma=0.0), "gamma = 0"),
        (lambda: Virtual(bench_of("stack"), gamma=1.1), "gamma = 1.1"),
        (lambda: Virtual(bench_of("stack"), server_lr=float("nan")), "server_lr = nan"),
        (lambda: Virtual(bench_of("stack"), samples=0), "samples = 0"),
        (lambda: Virtual(bench_of("stack"), prune=100.0), "prune = 100"),
        (lambda: Virtual(bench_of("stack"), exponent="n/N"), "write 1/K"),
        (lambda: PFedBayes(bench_of("stack"), zeta=0.0), "zeta = 0"),
        (lambda: PFedBayes(bench_of("stack"), global_lr=-1.0), "global_lr = -1"),
        (lambda: PFedBayes(bench_of("stack"), personal_steps=0), "personal_steps = 0"),
    ],
)
def test_settings_out_of_bounds_are_refused(make: Callable[[], Algorithm], says: str) -> None:
    with pytest.raises(AlgorithmError, match=says):
        make()


def test_pfedbayes_global_copy_descends_on_the_divergence() -> None:
    own = Posterior(starts(plain_mlp(), 1)[0].double(), torch.full((1,), -1.0).double())
    w = Posterior(
        (0.5 * own.mu_n - 0.2).requires_grad_(), torch.linspace(-3, 1, len(own.mu_n)).double().requires_grad_()
    )
    value = gaussian_kl(own.gaussian, Gaussian.of(w.mu_n, functional.softplus(w.rho_n))).sum()
    slopes = torch.autograd.grad(value, (w.mu_n, w.rho_n))
    after = _followed(w, w.gaussian.xi_D, own, torch.tensor([0.01], dtype=torch.float64))
    torch.testing.assert_close(w.mu_n - after.mu_n, 0.01 * slopes[0])
    torch.testing.assert_close(w.rho_n - after.rho_n, 0.01 * slopes[1])


def test_pfedbayes_trains_personally_on_each_batch_and_lets_the_global_copy_follow() -> None:
    algorithm, one = PFedBayes(bench_of("stack"), zeta=2.0, personal_steps=3), batches(peers=1, steps=1).peer(0)
    server, clients, x_n = begun(algorithm)
    client = take_rows(clients, 1)
    trained, sent = algorithm.train(client, algorithm.open(server, 1), one, (5,))
    steps = training_of(algorithm.context, estimator="local", samples=1)
    strength, same = torch.tensor(2.0 / 30), one.taking([0, 0, 0])
    own = steps(Posterior.around(x_n, 0.1), Gaussian.of(x_n, 0.1), strength, same, [branch(5, 0)])
    torch.testing.assert_close(trained.mu_n, own.mu_n)
    wide = Posterior.around(x_n, 0.1)
    w = _followed(wide, wide.gaussian.xi_D, own, (0.1 * strength)[None])
    torch.testing.assert_close(sent.mu_n, w.mu_n)
    torch.testing.assert_close(sent.sigma_n, w.sigma_n)
    assert distance(sent.mu_n, x_n) > 1e-4


@pytest.mark.parametrize("positivity", ["shrink", "reject"])
def test_a_server_that_is_no_distribution_is_not_taken_over(positivity: Any) -> None:
    """Its numbers are finite; a client that adopted it would train towards NaN, and store factors of it."""
    algorithm = Virtual(bench_of("stack"), beta=0.1, positivity=positivity)
    server, client, _ = begun(algorithm)
    assert algorithm.server_fault(server) is None
    _, sent = algorithm.train(client, algorithm.open(server, 1), batches(), (1, 2, 3))
    assert algorithm.server_fault(algorithm.close(server, sent)) is None
    taken_D, posterior = server.taken_D, server.posterior
    for xi_D, taken in (
        (-posterior.xi_D, taken_D),
        (posterior.xi_D * (torch.arange(len(taken_D)) > 0), taken_D),
        (posterior.xi_D, -0.1 * taken_D),
        (posterior.xi_D, 1.1 * taken_D),
    ):
        found = algorithm.server_fault(VirtualServer(Gaussian(posterior.chi_D, xi_D), taken))
        assert found is not None
        assert found.code == "bad_precision"


def test_deviations_of_pfedbayes_are_above_0_wherever_they_come_from() -> None:
    algorithm = PFedBayes(bench_of("stack"), server_rate=1.9)
    server, client, _ = begun(algorithm)
    _, sent = algorithm.train(client, algorithm.open(server, 1), batches(), (1, 2, 3))
    after = algorithm.close(server, replace(sent, sigma_n=0.01 * sent.sigma_n))
    torch.testing.assert_close(after.sigma_n, (EXAMPLES[:, None] * 0.01 * sent.sigma_n).sum(0) / EXAMPLES.sum())
    assert algorithm.server_fault(server) is None
    assert algorithm.server_fault(after) is None
    for sigma_n in (-server.sigma_n, 0 * server.sigma_n):
        refused = algorithm.server_fault(replace(server, sigma_n=sigma_n))
        assert refused is not None
        assert refused.code == "bad_precision"
        update = leaves_of(replace(take_rows(sent, 0), sigma_n=sigma_n))
        refused = fault(update, update, counts=algorithm.counts, positive=algorithm.positive)
        assert refused is not None
        assert refused.code == "bad_precision"


def test_pfedbayes_server_takes_means_of_means_and_of_deviations() -> None:
    algorithm = PFedBayes(bench_of("stack"), server_rate=0.5)
    sent = PFedBayesUpdate(torch.tensor([[1.0], [3.0]]), torch.tensor([[0.1], [0.5]]), torch.tensor([1, 3]))
    begun = algorithm.start_server(torch.tensor([0.5]))
    after = algorithm.close(begun, sent)
    assert after.mu_n.item() == pytest.approx(0.5 * 0.5 + 0.5 * 2.5)
    assert after.sigma_n.item() == pytest.approx(0.5 * 0.1 + 0.5 * 0.4)


def digits() -> tuple[Tensor, Tensor]:
    bunch, order = load_digits(), torch.randperm(1797, generator=torch.Generator().manual_seed(0))
    return torch.tensor(bunch.data[order] / 16, dtype=torch.float32), torch.tensor(bunch.target[order])


def learned(
    make: Callable[[TrainingContext], Algorithm], module: nn.Module, *, clients: int, rounds: int, steps: int = 14
) -> tuple[float, float]:
    """Return (S or 0, MT) on 397 digits after rounds with half of the clients, who have 140 digits each."""
    x_NF, y_N = digits()
    context = TrainingContext.of(module, LOSSES["cross-entropy"], OptimizerChoice("SGD", {"lr": 0.1}), clients=clients)
    algorithm, draws = make(context), Draws(3)
    x_n = 0.2 * torch.randn(context.layout.n, generator=torch.Generator().manual_seed(4))
    server, held = algorithm.start_server(x_n), [algorithm.start_client(x_n, torch.tensor(140))] * clients
    for round in range(1, rounds + 1):
        pairs = {}
        for k in algorithm.participants(round, clients, 0.5, draws):
            index = 140 * k + torch.from_numpy(round_order(140, round, steps, 10, draws, str(k)))
            work = Batches(x_NF, index, y_N[index])
            key = draws.key("dropout", str(k), round)
            pairs[k] = algorithm.train(held[k], algorithm.open(server, round), work, (key,))
        server = algorithm.close(server, stack_states([update for _, update in pairs.values()]))
        for k, (trained, _) in pairs.items():
            held[k] = algorithm.settle(held[k], trained, server, torch.tensor(True))

    def accuracy(x_n: Tensor) -> float:
        answers = context.stepper.logits(x_n[None], x_NF[None, 1400:])[0].argmax(-1)
        return (answers == y_N[1400:]).float().mean().item()

    server_n = algorithm.server_model(server)
    of_server = 0.0 if server_n is None else accuracy(server_n)
    return of_server, sum(accuracy(algorithm.personal_model(each)) for each in held) / clients


def relu() -> nn.Module:
    return mlp((64,), 10, layers=(64, 50, 10), activation="relu")


@pytest.mark.slow
def test_virtual_learns_digits_as_well_as_fedavg() -> None:
    plain, bayesian = (learned(make, relu(), clients=4, rounds=12) for make in (FedAvg, Virtual))
    assert bayesian[0] > 0.9
    assert bayesian[0] > plain[0] - 0.02
    assert bayesian[1] > plain[1] - 0.02


@pytest.mark.slow
def test_pruned_updates_of_a_quarter_learn_digits() -> None:
    assert learned(lambda context: Virtual(context, prune=75.0), relu(), clients=4, rounds=12)[0] > 0.88


@pytest.mark.slow
def test_2019_learns_digits_one_client_at_a_time() -> None:
    """Each client is refined twice, on its private and the shared layers together."""
    module = lateral_mlp((64,), 10, hidden=(30,))
    of = learned(lambda context: SequentialVirtual(context, samples=1), module, clients=3, rounds=6, steps=60)
    assert of[1] > 0.8


@pytest.mark.soak
def test_pfedbayes_learns_digits() -> None:
    of = learned(PFedBayes, relu(), clients=10, rounds=15)
    assert min(of) > 0.8


@pytest.mark.slow
def test_sequences_of_tokens_are_learnt_together() -> None:
    """The last token decides; a Bayesian embedding, LSTM and dense layer learn it, and all values sent stay finite."""
    module = lstm((4,), 3, hidden=6, embedding=4, vocabulary=3)
    context = TrainingContext.of(module, LOSSES["cross-entropy"], OptimizerChoice("SGD", {"lr": 0.5}), clients=3)
    algorithm = Virtual(context)
    x_NT = torch.randint(0, 3, (60, 4), generator=torch.Generator().manual_seed(8))
    index = torch.arange(60).view(3, 1, 20).repeat(1, 12, 1)
    work = Batches(x_NT, index, x_NT[:, -1][index])
    x_n = 0.4 * torch.randn(context.layout.n, generator=torch.Generator().manual_seed(9))
    server, clients = algorithm.start_server(x_n), algorithm.start_client(x_n.expand(3, -1), torch.tensor([20] * 3))
    for round in range(6):
        trained, sent = algorithm.train(clients, server.posterior, work, [10 * round + p for p in range(3)])
        server = algorithm.close(server, sent)
        clients = algorithm.settle(clients, trained, server, torch.tensor([True] * 3))
    assert isinstance(server, VirtualServer)
    right = context.stepper.logits(server.posterior.mu_D[None], x_NT[None])[0].argmax(-1) == x_NT[:, -1]
    assert right.float().mean() > 0.9
    assert apart(product_of([take_rows(clients, p) for p in range(3)]), server.posterior) < 1e-5


@pytest.mark.parametrize("clients", [1, 4])
def test_steps_that_would_overshoot_the_divergence_are_refused_at_the_start(clients: int) -> None:
    """Descent on a quadratic of curvature beta / n * precision, with n of the smallest client, converges as long as lr
    times the curvature is below 2."""
    sigma, prior, examples = 0.1, 2.0, torch.tensor([50, 20])
    precision = (1 - 1 / clients) / sigma**2 + 1 / clients / prior**2
    limit = 2 * 20 / (bench_of("loop").lr * precision)
    made = {
        part: Virtual(replace(bench_of("loop"), clients=clients), prior_sd=prior, sigma=sigma, beta=part * limit)
        for part in (0.99, 1.01)
    }
    x_Bn = starts(bench_of("loop").module, 2)
    made[0.99].start_client(x_Bn, examples)
    with pytest.raises(AlgorithmError, match=r"= 2\.02 for a client with 20 examples.*write a smaller"):
        made[1.01].start_client(x_Bn, examples)
    made[1.01].start_client(x_Bn[:1], examples[:1])
    adam = OptimizerChoice.named("adam", {"lr": 0.1})
    replace(made[1.01], context=replace(made[1.01].context, optimizer=adam)).start_client(x_Bn, examples)
