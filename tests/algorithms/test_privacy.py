"""Private updates: clipping, noise, the algorithms that can be made private, and the accountant."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from torch import Tensor
from torch.nn import functional

from fedpeer.algorithms.coordinated import AlgorithmError, uniform_mean
from fedpeer.algorithms.leaves import leaves_of, take_rows
from fedpeer.algorithms.privacy import Privacy, PrivacyError, epsilon
from fedpeer.algorithms.private import Private, clipped, private_noise, protected
from fedpeer.algorithms.registry import SEND_A_MODEL
from fedpeer.config.building import privacy_of
from fedpeer.config.choice import ChoiceError, parse_choice
from tests.algorithms.client_factory import batches, starts
from tests.algorithms.server_factory import MAKERS, MODULE, Algorithm

EXAMPLES = torch.tensor([10, 300, 60])
KEYS = (11, 12, 13)
#: `fedbn` needs a network with normalisation; it is `fedper` in all that matters here.
PRIVATE = tuple(name for name in MAKERS if name in SEND_A_MODEL)


def options(text: str) -> Privacy:
    found = privacy_of(parse_choice(text))
    assert found is not None
    return found


def sent(algorithm: Algorithm, keys: tuple[int, ...] = KEYS) -> tuple[Any, Any, Any]:
    """Return the server, the states that three clients keep, and the updates that they send in a round."""
    server = algorithm.start_server(starts(MODULE, 2, seed=8)[0])
    clients = algorithm.start_client(starts(MODULE, 3), EXAMPLES)
    return server, *algorithm.train(clients, algorithm.open(server, 1), batches(), keys)


def made(name: str, text: str, participants: int = 3, secret: bytes = b"") -> Private:
    found = protected(MAKERS[name]("stack"), options(text), participants=participants, secret=secret)
    assert isinstance(found, Private)
    return found


@pytest.mark.parametrize("name", PRIVATE)
def test_without_noise_and_bound_only_the_counts_differ(name: str) -> None:
    server, kept, updates = sent(MAKERS[name]("stack"))
    _, private_kept, private = sent(made(name, "gaussian,clip=1e9,noise=0"))
    for leaf, before in leaves_of(kept).items():
        assert torch.equal(leaves_of(private_kept)[leaf], before), "what stays at home is as it was"
    torch.testing.assert_close(private.model_n, updates.model_n, rtol=0, atol=1e-6)
    assert private.model_n.dtype == updates.model_n.dtype
    assert private.examples.tolist() == [1, 1, 1]
    algorithm = MAKERS[name]("stack")
    found = made(name, "gaussian,clip=1e9,noise=0").close(server, private)
    wanted = algorithm.close(server, type(updates)(updates.model_n, torch.ones(3)))
    torch.testing.assert_close(found.model_n, wanted.model_n, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", PRIVATE)
def test_changes_are_cut_to_length_and_keep_their_direction(name: str) -> None:
    server, _, updates = sent(MAKERS[name]("stack"))
    _, _, private = sent(made(name, "gaussian,clip=1e-3,noise=0"))
    change_Kn, private_Kn = (each.model_n.double() - server.model_n for each in (updates, private))
    assert (change_Kn.norm(dim=1) > 1e-3).all(), "or nothing would be cut"
    torch.testing.assert_close(private_Kn, 1e-3 * functional.normalize(change_Kn), rtol=0, atol=1e-6)


def test_a_block_of_clients_is_each_alone() -> None:
    algorithm = made("fedavg", "gaussian,clip=0.1,noise=1", secret=b"s")
    server, _, updates = sent(algorithm)
    for p in range(3):
        client = algorithm.start_client(starts(MODULE, 3)[p], EXAMPLES[p])
        _, alone = algorithm.train(client, algorithm.open(server, 1), batches().peer(p), KEYS[p : p + 1])
        torch.testing.assert_close(alone.model_n, updates.model_n[p], rtol=0, atol=1e-6)
        assert leaves_of(alone).keys() == leaves_of(take_rows(updates, p)).keys()


ROWS = some.lists(some.floats(width=32), min_size=4, max_size=4)


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(some.lists(ROWS, min_size=1, max_size=6), ROWS, some.floats(1e-3, 1e3))
def test_no_client_moves_the_sum_by_more_than_the_bound(
    rows: list[list[float]], other: list[float], clip: float
) -> None:
    """This holds for any update, also with NaN and infinities; the privacy guarantee rests on this sensitivity."""
    change_KD = torch.tensor(rows, dtype=torch.float64)
    with_D = clipped(torch.cat((change_KD, torch.tensor([other], dtype=torch.float64))), clip).sum(0)
    without_D = clipped(change_KD, clip).sum(0)
    assert (with_D - without_D).norm() <= clip * (1 + 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(("where", "single"), [("sum", 0.5 / math.sqrt(3)), ("client", 0.5)])
def test_the_noise_of_one_client_and_of_the_sum(where: str, single: float) -> None:
    """Noise 2 and clip 0.25 give a deviation of 0.5: in the sum of all clients, or at each client."""
    text = f"gaussian,clip=0.25,noise=2,where={where}"
    plain = sent(made("fedavg", text.replace("noise=2", "noise=0")))[2].model_n.double()
    algorithm = made("fedavg", text, secret=b"a peer's own")
    drawn = torch.stack([sent(algorithm, (3 * k, 3 * k + 1, 3 * k + 2))[2].model_n.double() - plain for k in range(40)])
    count = drawn[:, 0].numel()
    assert count > 3000
    assert float(drawn[:, 0].std()) == pytest.approx(single, rel=4 / math.sqrt(2 * count))
    assert float(drawn.sum(1).std()) == pytest.approx(single * math.sqrt(3), rel=4 / math.sqrt(2 * count))


def test_noise_is_normal_and_of_its_secret_and_key_alone() -> None:
    one = private_noise(b"secret", 5, 100_000)
    assert scipy.stats.kstest(one, "norm").pvalue > 1e-3
    assert abs(one).max() < 8.3
    assert np.array_equal(private_noise(b"secret", 5, 100_000), one)
    assert np.array_equal(private_noise(b"secret", 5, 10), one[:10])
    for other in (
        private_noise(b"secreu", 5, 100_000),
        private_noise(b"secret", 6, 100_000),
        private_noise(b"", 5, 100_000),
    ):
        assert abs(np.corrcoef(one, other)[0, 1]) < 4 / math.sqrt(100_000)
    assert abs(np.corrcoef(one[1:], one[:-1])[0, 1]) < 4 / math.sqrt(100_000)


def test_who_knows_the_seed_but_not_the_secret_cannot_take_the_noise_off() -> None:
    """The noise is visible in a coordinate that never moves; from seed and key alone, anybody could compute it."""
    text = "gaussian,clip=0.1,noise=1"
    mine = sent(made("fedavg", text, secret=b"a peer's own"))[2]
    guess = sent(made("fedavg", text))[2]
    clean = sent(made("fedavg", "gaussian,clip=0.1,noise=0"))[2].model_n
    bare, guessed = ((each.model_n - clean).flatten().numpy() for each in (mine, guess))
    assert abs(np.corrcoef(bare, guessed)[0, 1]) < 4 / math.sqrt(bare.size)


@pytest.mark.parametrize("name", [name for name in MAKERS if name not in PRIVATE])
def test_clients_that_send_more_than_a_model_are_refused(name: str) -> None:
    with pytest.raises(AlgorithmError, match=r"write privacy: none, or take one of fedavg"):
        sent(protected(MAKERS[name]("stack"), options("gaussian"), participants=3))
    untouched = MAKERS[name]("stack")
    assert protected(untouched, None, participants=3) is untouched


def test_a_leaf_that_would_go_out_bare_is_refused() -> None:
    private = made("fedavg", "gaussian")
    private.moved = ()
    with pytest.raises(AlgorithmError, match="would send model_n as it is; write privacy: none"):
        sent(private)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gaussian,clip=0", "clip = 0: write a length above 0"),
        ("gaussian,noise=-1", "noise = -1: write 0 or more"),
        ("gaussian,delta=1", "delta = 1: write a number between 0 and 1"),
        ("gaussian,where=server", "allowed are sum, client"),
        ("gauss", 'did you mean "gaussian"'),
        ("none,clip=1", 'has no setting "clip"'),
    ],
)
def test_settings_out_of_range_are_the_users_mistake(text: str, words: str) -> None:
    with pytest.raises((PrivacyError, ChoiceError), match=words):
        privacy_of(parse_choice(text))


def test_none_is_nothing() -> None:
    assert privacy_of(parse_choice("none")) is None


def test_what_is_left_of_the_noise_when_some_do_not_answer() -> None:
    together, alone = options("gaussian,noise=2"), options("gaussian,noise=2,where=client")
    assert together.multiplier(16, 16) == 2
    assert together.multiplier(16, 4) == 1
    assert alone.multiplier(16, 4) == 2


# The accountant.


def hockey_stick(rounds: int, multiplier: float, found: float) -> float:
    """Return delta of (found, delta)-privacy by its definition, an integral: R normal numbers, mean 0 or 1/noise."""
    mu = math.sqrt(rounds) / multiplier
    total, _ = scipy.integrate.quad(
        lambda x: max(0.0, scipy.stats.norm.pdf(x, mu) - math.exp(found) * scipy.stats.norm.pdf(x)),
        found / mu + mu / 2,  # one density is exp(found) times the other here
        mu + 40,
        epsabs=1e-14,
        limit=200,
    )
    return float(total)


@pytest.mark.parametrize(("rounds", "multiplier"), [(1, 1.0), (1, 4.0), (30, 5.0), (1000, 30.0), (10, 2.0)])
@pytest.mark.parametrize("delta", [1e-5, 1e-3])
def test_epsilon_of_a_known_client_is_that_of_the_definition(rounds: int, multiplier: float, delta: float) -> None:
    found = epsilon(rounds=rounds, noise=multiplier, delta=delta)
    assert hockey_stick(rounds, multiplier, found) == pytest.approx(delta, rel=1e-6)


@settings(max_examples=50, deadline=None)
@given(some.integers(1, 10_000), some.floats(0.1, 100), some.floats(1e-9, 0.1))
def test_epsilon_grows_with_rounds_and_falls_with_noise(rounds: int, multiplier: float, delta: float) -> None:
    found = epsilon(rounds=rounds, noise=multiplier, delta=delta)
    assert epsilon(rounds=rounds + 1, noise=multiplier, delta=delta) >= found >= 0
    assert epsilon(rounds=rounds, noise=1.1 * multiplier, delta=delta) <= found
    assert epsilon(rounds=4 * rounds, noise=2 * multiplier, delta=delta) == pytest.approx(found, rel=1e-6, abs=1e-9)


def test_ends_of_the_range() -> None:
    assert epsilon(rounds=0, noise=1.0, delta=1e-5) == 0
    assert epsilon(rounds=1, noise=0.0, delta=1e-5) == math.inf
    assert epsilon(rounds=1, noise=1e9, delta=1e-5) == 0, "delta alone covers it"
    for rounds, multiplier, delta, share in ((-1, 1, 1e-5, 1), (1, -1, 1e-5, 1), (1, 1, 0, 1), (1, 1, 1e-5, 0)):
        with pytest.raises(PrivacyError, match="rounds and noise are 0 or more"):
            epsilon(rounds=rounds, noise=multiplier, delta=delta, participation=share)


@pytest.mark.slow
def test_chance_helps_against_strangers_and_is_a_published_number() -> None:
    """Abadi et al., Deep Learning with Differential Privacy, 2016, section 3.2 has 1.26; newer bounds are tighter."""
    pytest.importorskip("opacus.accountants.analysis", reason="the extra fedpeer[privacy] is not installed")
    found = epsilon(rounds=10_000, noise=4.0, delta=1e-5, participation=0.01)
    assert 0.9 < found < 1.26
    known = epsilon(rounds=10_000, noise=4.0, delta=1e-5)
    assert known > 100


def test_renyi_of_the_gaussian_mechanism_is_its_closed_form() -> None:
    rdp = pytest.importorskip("opacus.accountants.analysis", reason="the extra fedpeer[privacy] is not installed").rdp
    orders = [1.5, 2.0, 8.0, 64.0]
    np.testing.assert_allclose(
        rdp.compute_rdp(q=1.0, noise_multiplier=3.0, steps=7, orders=orders), [7 * each / 18 for each in orders]
    )


def test_almost_certain_is_near_certain() -> None:
    """Both accountants agree as participation approaches 1; the bound by Renyi orders is above the exact number."""
    pytest.importorskip("opacus.accountants.analysis", reason="the extra fedpeer[privacy] is not installed")
    exact = epsilon(rounds=10, noise=3.0, delta=1e-5)
    bound = epsilon(rounds=10, noise=3.0, delta=1e-5, participation=1 - 1e-9)
    assert exact <= bound <= 1.2 * exact


def test_without_opacus_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opacus.accountants.analysis", None)
    with pytest.raises(PrivacyError, match=r"pip install fedpeer\[privacy\]"):
        epsilon(rounds=10, noise=1.0, delta=1e-5, participation=0.5)
    assert epsilon(rounds=10, noise=1.0, delta=1e-5) > 0


@pytest.mark.slow
def test_noise_is_what_a_private_model_costs() -> None:
    """The released mean is the plain mean of clipped changes plus noise with deviation noise * clip / K."""
    clean = sent(made("fedavg", "gaussian,clip=0.05,noise=0"))[2].model_n
    noisy = [sent(made("fedavg", "gaussian,clip=0.05,noise=4", secret=bytes([k])))[2].model_n for k in range(30)]
    apart: Tensor = torch.stack([uniform_mean(each) - uniform_mean(clean) for each in noisy])
    assert float(apart.std()) == pytest.approx(4 * 0.05 / 3, rel=4 / math.sqrt(2 * apart.numel()))
