"""VIRTUAL, 2021: the server's posterior is the product of its clients' factors; clients send the changes of these.

A client takes its factor out of the server's posterior (the cavity), trains the posterior on its own examples against
cavity times a share of the prior, and sends its new factor over its old one (the delta). The algebra is in
`algorithms/virtual.py`, the training in `bayesian_training.py`. The server is always the product of the factors that
the clients keep, whichever clients take part, whichever weights are pruned, and whether or not an update counts: a
client whose update did not count keeps its old factor. This holds because server and clients start from the same
parameters.

The same damping applies to the stored factor and to the sent delta. By default the server takes the A deltas of a round
to the power 1 / A, so that it becomes the geometric mean of the trained posteriors, as FedAvg's server is the mean of
the models. The clients learn the power from `VirtualServer.taken_D`, the part of the deltas that was taken.

Where the network has lateral connections (`networks/lateral.py`), its server part is theta and its client part phi_i: a
posterior of the client's own, which is never sent (eq. (2), (3)). Then there is no server's model: the network's
prediction is the answer of its client part.

Source: Corinzia, Beuret, Buhmann, Variational Federated Multi-Task Learning, 2021, Algorithm 1 and eq. (3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from fedpeer.algorithms import virtual
from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.bayesian_training import BayesianTraining, Posterior, training_of
from fedpeer.algorithms.coordinated import AlgorithmError, CoordinatedAlgorithm, where
from fedpeer.algorithms.gaussian import Gaussian
from fedpeer.algorithms.leaves import combined, divided
from fedpeer.algorithms.precision import widest
from fedpeer.algorithms.training_context import TrainingContext
from fedpeer.algorithms.virtual import Exponent, Positivity
from fedpeer.networks.bayesian import Estimator
from fedpeer.networks.lateral import LateralMLP
from fedpeer.rejection import Rejection
from fedpeer.slicing.flat import gather_group, scatter_
from fedpeer.slicing.network import TensorSpec

#: The signal-to-noise ratio by which weights are pruned: that of their update, or that of the weights themselves.
_Ratio = Literal["update", "posterior"]


@dataclass(frozen=True, eq=False)
class VirtualServer:
    """The server's state.

    posterior   the distribution of the D shared weights
    taken_D     (D,) in [0, 1], power to which the last round's deltas were taken; clients store the same part
    """

    posterior: Gaussian
    taken_D: Tensor


@dataclass(frozen=True, eq=False)
class VirtualClient:
    """State of a client.

    factor        (..., D) its factor in the server's posterior; precisions of any sign
    mu_n, rho_n   (..., n) its own last posterior N(mu, softplus(rho)^2), of the shared and of its private weights
    examples      (...) n_k
    sent_bytes    (...) int64, least bytes on the wire of its last update, including the places of the kept weights
    """

    factor: Gaussian
    mu_n: Tensor
    rho_n: Tensor
    examples: Tensor
    sent_bytes: Tensor


@dataclass(frozen=True)
class Virtual(CoordinatedAlgorithm[VirtualServer, VirtualClient, Gaussian, Gaussian]):
    """A Bayesian network whose server is the product of its clients' factors; a client keeps its own posterior.

    Args:
        prior_sd: standard deviation of the prior of every weight, > 0, in units of the weights; default 1.0.
        exponent: share of the prior in a client's reference: "1/K" (default; 2021), "n/N" by examples, "1" all of it
            (2019).
        beta: factor on all divergences, >= 0; default 1e-3. lr * beta * precision / n_k must stay below 2, or steps
            overshoot.
        gamma: weight of a client's new factor (damping; 2021, appendix D), in (0, 1]; default: 1 / A with A updates in
            the round.
        server_lr: eta_s > 0, power of the deltas at the server; default 1.0. Any other value gives up the product of
            factors (2021, appendix D).
        sigma: standard deviation of all weights at the start, > 0, in units of the weights; default 0.05.
        estimator: how weights are drawn: "local" (default), "flipout" or "weights" (`networks/bayesian.py`).
        samples: draws of the weights in each step, >= 1; default 1.
        positivity: where the deltas would make a precision too small, take a smaller part of them ("shrink", default)
            or none ("reject").
        fedavg_start: whether training starts without the client's own factor; default false (the ablation "+ FedAvg
            init", 2021, section IV.F).
        prune: percentile in [0, 100) of the ratio within each tensor, below which a weight's delta is not sent; default
            0: all are sent.
        ratio: the ratio that pruning compares: "update" (default; 2021, section IV.F) or "posterior" (Blundell et al.
            2015, 5.1).
        keep_last: whether the last layer is always sent whole; default false.
    """

    context: TrainingContext
    _: KW_ONLY
    prior_sd: float = 1.0
    exponent: Exponent = "1/K"
    beta: float = 1e-3
    gamma: float | None = None
    server_lr: float = 1.0
    sigma: float = 0.05
    estimator: Estimator = "local"
    samples: int = 1
    positivity: Positivity = "shrink"
    fedavg_start: bool = False
    prune: float = 0.0
    ratio: _Ratio = "update"
    keep_last: bool = False
    bayesian = True
    common_start = True  # the server is the product of the clients' factors from the beginning

    def __post_init__(self) -> None:
        for name in ("prior_sd", "sigma", "server_lr"):
            if not getattr(self, name) > 0:
                raise AlgorithmError(f"{name} = {getattr(self, name):g}: write a number above 0")
        if not self.beta >= 0:
            raise AlgorithmError(f"beta = {self.beta:g}: write 0 or more")
        if self.gamma is not None and not 0 < self.gamma <= 1:
            raise AlgorithmError(f"gamma = {self.gamma:g}: write a number above 0 and up to 1")
        if self.samples < 1:
            raise AlgorithmError(f"samples = {self.samples}: write 1 or more")
        if not 0 <= self.prune < 100:
            raise AlgorithmError(
                f"prune = {self.prune:g}: write a percentile of 0 (nothing is pruned) or more, below 100"
            )
        if self.exponent == "n/N" and self.context.examples < 1:
            raise AlgorithmError("exponent = n/N needs the number of examples of all clients, unknown here; write 1/K")
        assert self._training, "built now, so that what it refuses is refused now"

    @cached_property
    def _training(self) -> BayesianTraining:
        return training_of(self.context, estimator=self.estimator, samples=self.samples)

    @property
    def lateral(self) -> bool:
        """True if clients have private weights as well as shared ones."""
        return isinstance(self.context.module, LateralMLP)

    @cached_property
    def _shared(self) -> tuple[TensorSpec, ...]:
        """The tensors that make up theta."""
        return tuple(t for t in self.context.layout.tensors if not self.lateral or t.name.startswith("server."))

    @cached_property
    def shared_D(self) -> Tensor:
        """Places of theta in a client's parameters, (D,) int64."""
        return torch.cat([torch.arange(each.span.start, each.span.stop) for each in self._shared])

    def start_server(self, values_n: Tensor) -> VirtualServer:
        mu_D = self._theta(values_n)
        return VirtualServer(Gaussian.of(mu_D, self.sigma), torch.ones_like(mu_D))

    def start_client(self, values_n: Tensor, examples: Tensor) -> VirtualClient:
        self._check_steps(examples)
        own = Posterior.around(values_n, self.sigma)
        factor = Gaussian.of(self._theta(values_n), self.sigma) ** self._share(examples, values_n.dtype)
        return VirtualClient(factor, own.mu_n, own.rho_n, examples, torch.zeros_like(examples, dtype=torch.int64))

    def _check_steps(self, examples: Tensor) -> None:
        """Check that plain gradient steps decrease the divergence.

        The curvature of the divergence, beside a mean loss, is beta / n times the precision of the reference; from lr *
        curvature = 2 on, each step ends further away than it began.

        Raises:
            AlgorithmError: the steps overshoot for the client with the fewest of these examples.
        """
        if not self.context.optimizer.plain_sgd:
            return
        wide = examples.to(widest(examples.device))
        share = self._share(wide, wide.dtype).squeeze(-1)
        exponent = 1.0 if self.exponent == "1" else share
        precision = (1 - share) / self.sigma**2 + exponent / self.prior_sd**2
        most = float((self.context.lr * self.beta * precision / wide).max())
        if most >= 2:
            raise AlgorithmError(
                f"steps overshoot: lr * beta * precision / n = {most:.3g} for a client with {int(wide.min())} "
                "examples, and it must be below 2; write a smaller learning.optimizer lr or beta, or a larger sigma"
            )

    def _share(self, examples: Tensor, dtype: torch.dtype) -> Tensor:
        """Return each client's share of the whole, (..., 1): by number of examples, or 1 / K."""
        if self.exponent == "n/N":
            return examples.to(dtype).unsqueeze(-1) / self.context.examples
        return torch.full((*examples.shape, 1), 1 / self.context.clients, dtype=dtype, device=examples.device)

    def open(self, server: VirtualServer, round: int) -> Gaussian:
        return server.posterior

    def train(
        self, client: VirtualClient, broadcast: Gaussian, batches: Batches, keys: Sequence[int]
    ) -> tuple[VirtualClient, Gaussian]:
        cavity = virtual.cavity(broadcast, client.factor)
        share = self._share(client.examples, client.mu_n.dtype)
        reference = virtual.reference(cavity, self._prior(cavity), 1.0 if self.exponent == "1" else share).floored()
        start = virtual.fedavg_start(broadcast, cavity, share).floored() if self.fedavg_start else broadcast
        own = self._training(
            self._with_shared(client, start),
            self._held_to(client.mu_n, reference),
            self.beta / client.examples.to(client.mu_n.dtype),
            batches,
            keys,
        )
        found = Posterior(self._theta(own.mu_n), self._theta(own.rho_n)).gaussian
        gamma = 1.0 if self.gamma is None else self.gamma
        delta = virtual.client_delta(found, cavity, client.factor, gamma=gamma)
        keep_D = self._kept(delta, found)
        delta = delta if keep_D is None else virtual.pruned(delta, keep_D)
        return VirtualClient(
            client.factor * delta, own.mu_n, own.rho_n, client.examples, self._bytes(client, keep_D)
        ), delta

    def _prior(self, like: Gaussian) -> Gaussian:
        """Return the prior of every weight, (1,)."""
        return Gaussian.of(like.chi_D.new_zeros(1), self.prior_sd)

    def _theta(self, x_n: Tensor) -> Tensor:
        """Return the shared weights (..., D) of (..., n)."""
        return gather_group(x_n, self.shared_D) if self.lateral else x_n

    def _placed(self, shared_D: Tensor, private_n: Tensor) -> Tensor:
        """Return (..., n): the shared values at their places, and the private values at all other places."""
        if not self.lateral:
            return shared_D.expand_as(private_n)
        shared_D = shared_D.expand(*private_n.shape[:-1], -1)
        return scatter_(private_n.clone(), self.shared_D, shared_D)

    def _with_shared(self, client: VirtualClient, start: Gaussian) -> Posterior:
        """Return the initial posterior of training, (..., n): shared weights at `start`, private ones unchanged."""
        begun = Posterior.of(start)
        return Posterior(self._placed(begun.mu_n, client.mu_n), self._placed(begun.rho_n, client.rho_n))

    def _held_to(self, like_n: Tensor, reference: Gaussian) -> Gaussian:
        """Return the reference of training, (..., n); for private weights it is their prior."""
        prior = self._prior(reference)
        return Gaussian(
            self._placed(reference.chi_D, prior.chi_D.expand_as(like_n)),
            self._placed(reference.xi_D, prior.xi_D.expand_as(like_n)),
        )

    def _kept(self, delta: Gaussian, found: Gaussian) -> Tensor | None:
        """Return the weights whose delta is sent, (..., D) bool; None: all."""
        if not self.prune:
            return None
        snr_D = virtual.update_snr(delta, found) if self.ratio == "update" else virtual.posterior_snr(found)
        keep_D, last = torch.ones_like(snr_D, dtype=torch.bool), self._shared[-1].module
        for tensor, span in self._spans:
            if not (self.keep_last and tensor.module == last):
                keep_D[..., span] = virtual.kept_weights(snr_D[..., span], self.prune)
        return keep_D

    @cached_property
    def _spans(self) -> list[tuple[TensorSpec, slice]]:
        """The shared tensors, and where they are among the D shared weights."""
        at, spans = 0, []
        for tensor in self._shared:
            spans.append((tensor, slice(at, at + tensor.size)))
            at += tensor.size
        return spans

    def _bytes(self, client: VirtualClient, keep_D: Tensor | None) -> Tensor:
        """Return the bytes of an update, (...) int64, with the cheaper encoding of the kept places for each tensor."""
        total = torch.zeros_like(client.sent_bytes)
        for tensor, span in self._spans:
            if keep_D is None:
                total += virtual.delta_bytes(tensor.size, tensor.size, "none")
                continue
            counts = keep_D[..., span].sum(-1)
            total += counts.new_tensor([_least_bytes(tensor.size, kept) for kept in counts.flatten().tolist()]).view(
                total.shape
            )
        return total

    def close(self, server: VirtualServer, updates: Gaussian) -> VirtualServer:
        """Multiply the deltas into the server.

        Their product is taken as A times their mean, so that a robust rule can replace the mean.
        """
        count, same = len(updates.chi_D), torch.ones(len(updates.chi_D), device=updates.chi_D.device)
        mean = divided(server.posterior, self.context.mean(combined(updates), same))
        power = 1 / count if self.gamma is None else 1.0
        after = virtual.applied(
            server.posterior, mean ** (count * power), positivity=self.positivity, server_lr=self.server_lr
        )
        return VirtualServer(after.server, power * after.taken_D)

    def settle(
        self, before: VirtualClient, trained: VirtualClient, server: VirtualServer, counted: Tensor
    ) -> VirtualClient:
        """Keep the factor that the server took; the client's own posterior stays as trained, counted or not.

        Nothing at the server depends on that posterior.
        """
        stored = virtual.stored(before.factor, virtual.delta(trained.factor, before.factor), server.taken_D)
        factor = Gaussian(
            where(counted, stored.chi_D, before.factor.chi_D), where(counted, stored.xi_D, before.factor.xi_D)
        )
        return replace(trained, factor=factor)

    def server_fault(self, server: VirtualServer) -> Rejection | None:
        if not bool((server.posterior.xi_D > 0).all()):
            return Rejection("bad_precision", "a precision of the server's posterior is not above 0")
        if not bool(((server.taken_D >= 0) & (server.taken_D <= 1)).all()):
            return Rejection("bad_precision", "the part that was taken of a delta is not between 0 and 1")
        return None

    def server_model(self, server: VirtualServer) -> Tensor | None:
        """Return the means; None with lateral connections, where the server's part alone predicts nothing."""
        return None if self.lateral else server.posterior.mu_D

    def personal_model(self, client: VirtualClient) -> Tensor:
        return client.mu_n

    def statistics(self, client: VirtualClient, server: VirtualServer) -> Mapping[str, Tensor]:
        """Return the mean standard deviation of each client's own weights, and the bytes of its last update."""
        own = Posterior(client.mu_n, client.rho_n)
        return {"uncertainty": own.sigma_n.mean(-1), "update bytes": client.sent_bytes}


def _least_bytes(size: int, kept: int) -> int:
    if kept == size:
        return virtual.delta_bytes(size, kept, "none")
    return min(virtual.delta_bytes(size, kept, "bitmap"), virtual.delta_bytes(size, kept, "list"))
