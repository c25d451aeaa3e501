"""Training a Bayesian network: (mu, rho) against the data and a Gaussian reference, in one of two ways.

Training changes a posterior N(mu, softplus(rho)^2) over a network's parameters, which is a distribution whatever a
gradient does. Each step of the optimizer is on

    mean loss of the batch, averaged over draws of the weights  +  strength * KL(posterior || reference)

with the divergence's slopes in closed form. Stacks of linear layers under plain SGD take closed gradients throughout
(`bayesian_stack`); everything else takes autograd on a `networks.bayesian` network, one client after the other. Both
ask for the same noise in the same order, so that a test can compare them.

Losses are averaged over the draws, as in the expected log-likelihood of a free energy (VIRTUAL 2019 and 2021, eq. 3);
it is not the loss of an average prediction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from fedpeer.algorithms import bayesian_stack, linear_stack
from fedpeer.algorithms.batches import Batches
from fedpeer.algorithms.coordinated import AlgorithmError
from fedpeer.algorithms.draws import branch, guarded
from fedpeer.algorithms.gaussian import Gaussian, kl_slopes
from fedpeer.algorithms.losses import Loss
from fedpeer.algorithms.optimizers import OptimizerChoice
from fedpeer.algorithms.own_rule import check_gradients
from fedpeer.algorithms.training_context import TrainingContext
from fedpeer.networks.bayesian import Estimator, bayesian, drawn_noise, inverse_softplus, sampled, split_parameters
from fedpeer.networks.registry import NetworkError
from fedpeer.slicing.flat import FlatLayout


@dataclass(frozen=True, eq=False)
class Posterior:
    """N(mu, softplus(rho)^2) over a network's parameters, in the plain network's order.

    mu_n    (..., n) means
    rho_n   (..., n) raw standard deviations
    """

    mu_n: Tensor
    rho_n: Tensor

    @staticmethod
    def around(mu_n: Tensor, sigma: float) -> Posterior:
        """Return the posterior with these means and one standard deviation for all."""
        return Posterior(mu_n, inverse_softplus(torch.full_like(mu_n, sigma)))

    @staticmethod
    def of(gaussian: Gaussian) -> Posterior:
        """Return the posterior equal to a distribution in natural parameters."""
        return Posterior(gaussian.mu_D, inverse_softplus(gaussian.sigma_D))

    @property
    def sigma_n(self) -> Tensor:
        """Standard deviations (..., n), in units of the weights."""
        return functional.softplus(self.rho_n)

    @property
    def gaussian(self) -> Gaussian:
        """The distribution in natural parameters."""
        return Gaussian.of(self.mu_n, self.sigma_n)


class BayesianTraining(Protocol):
    """One way to train a posterior."""

    def __call__(
        self, start: Posterior, reference: Gaussian, strength: Tensor, batches: Batches, keys: Sequence[int]
    ) -> Posterior:
        """Return the posterior after the batches, trained by a fresh optimizer.

        Args:
            start: (..., n).
            reference: (..., n), a distribution.
            strength: (...) factor on the divergence, which is added to a mean loss: 1 / n_k for the true free energy.
            keys: the streams of noise, one for each client.

        The arguments are not changed.
        """
        ...


def training_of(context: TrainingContext, *, estimator: Estimator, samples: int) -> BayesianTraining:
    """Return the fastest way for this network and optimizer.

    Args:
        samples: draws of the weights in each step, >= 1.

    Raises:
        AlgorithmError: the network has state over which there is no distribution, or it has no gradients.
    """
    check_gradients(context.module)
    if context.layout.n != context.layout.n_parameters:
        raise AlgorithmError("the network keeps running statistics, which have no distribution; use norm=none")
    layers = linear_stack.recognise(context.module)
    closed = layers and estimator == "local" and context.optimizer.plain_sgd and context.loss.delta is not None
    if closed and layers is not None:
        return _Stack(layers, context.loss, context.optimizer.lr, samples)
    return _Loop(context, estimator, samples)


def _generators(keys: Sequence[int]) -> list[torch.Generator]:
    """Return the noise of each client; its numbers differ from those that dropout draws by the same key."""
    return [torch.Generator().manual_seed(branch(key, 0) >> 65) for key in keys]


@dataclass(frozen=True)
class _Stack:
    """Closed gradients; see `bayesian_stack`."""

    layers: tuple[linear_stack.Layer, ...]
    loss: Loss
    lr: float
    samples: int

    def __call__(
        self, start: Posterior, reference: Gaussian, strength: Tensor, batches: Batches, keys: Sequence[int]
    ) -> Posterior:
        mu_n, rho_n = start.mu_n.clone(), start.rho_n.clone()
        noise = _generators(keys)
        if mu_n.dim() == 2 and len(mu_n) == 1:  # matrix products of one client are faster without the dimension
            one = mu_n[0], rho_n[0], reference[0], strength[0], batches.peer(0)
            bayesian_stack.train_bayesian_stack(self.layers, self.loss, *one, self.lr, self.samples, noise)
        else:
            work = mu_n, rho_n, reference, strength, batches
            bayesian_stack.train_bayesian_stack(self.layers, self.loss, *work, self.lr, self.samples, noise)
        return Posterior(mu_n, rho_n)


class _Loop:
    """Autograd and torch's own optimizer on a Bayesian network whose tensors are made views of a client's row."""

    def __init__(self, context: TrainingContext, estimator: Estimator, samples: int) -> None:
        try:
            self._module = bayesian(context.module, estimator=estimator, sigma=1.0).train()
        except NetworkError as problem:
            raise AlgorithmError(str(problem)) from problem
        if not all(parameter.requires_grad for parameter in context.module.parameters()):
            raise AlgorithmError(
                "the network has parameters that are not trained, but the posterior covers all of them; train them all"
            )
        self._mu, self._rho = split_parameters(self._module)
        if not list(self._mu) == list(self._rho) == [each.name for each in context.layout.tensors]:
            raise AlgorithmError(
                "the network uses one tensor in several places, which have no common distribution; use separate tensors"
            )
        self._layout: FlatLayout = context.layout
        self._loss: Loss = context.loss
        self._optimizer: OptimizerChoice = context.optimizer
        self._samples = samples

    def __call__(
        self, start: Posterior, reference: Gaussian, strength: Tensor, batches: Batches, keys: Sequence[int]
    ) -> Posterior:
        if start.mu_n.dim() == 1:
            block = self._block(start.mu_n[None], start.rho_n[None], reference, strength[None], batches.block(), keys)
            return Posterior(block.mu_n[0], block.rho_n[0])
        return self._block(start.mu_n, start.rho_n, reference, strength, batches, keys)

    def _block(
        self,
        mu_Bn: Tensor,
        rho_Bn: Tensor,
        held: Gaussian,
        strength_B: Tensor,
        batches: Batches,
        keys: Sequence[int],
    ) -> Posterior:
        mu_Bn, rho_Bn = mu_Bn.clone(), rho_Bn.clone()
        chi_Bn, xi_Bn = held.chi_D.expand_as(mu_Bn), held.xi_D.expand_as(mu_Bn)
        for row, (key, generator) in enumerate(zip(keys, _generators(keys), strict=True)):
            reference = Gaussian(chi_Bn[row], xi_Bn[row])
            with guarded(key):
                self._train(mu_Bn[row], rho_Bn[row], reference, strength_B[row], batches.peer(row), generator)
        return Posterior(mu_Bn, rho_Bn)

    def _train(
        self,
        mu_n: Tensor,
        rho_n: Tensor,
        reference: Gaussian,
        strength: Tensor,
        batches: Batches,
        generator: torch.Generator,
    ) -> None:
        """Train in place: the module's tensors are made views of the rows."""
        for tensors, x_n in ((self._mu, mu_n), (self._rho, rho_n)):
            views = self._layout.unflatten(x_n)
            for name, parameter in tensors.items():
                parameter.data = views[name]
        parameters, noise = list(self._module.parameters()), drawn_noise(generator)
        optimizer = self._optimizer.build(parameters)
        for step in range(batches.steps):
            optimizer.zero_grad()
            inputs, targets, weights = batches.inputs(step), batches.targets(step), batches.weights(step)
            for _ in range(self._samples):
                value = self._loss.mean(sampled(self._module, inputs, noise), targets, weights)
                torch.autograd.backward(value / self._samples)
            self._pull(mu_n, rho_n, reference, strength)
            optimizer.step()
        optimizer.zero_grad()

    @torch.no_grad()
    def _pull(self, mu_n: Tensor, rho_n: Tensor, reference: Gaussian, strength: Tensor) -> None:
        """Add the slopes of the divergence to the gradients, or set them where the loss does not depend on a weight."""
        by_mu_n, by_sigma_n = kl_slopes(mu_n, functional.softplus(rho_n), reference)
        slopes = (self._mu, by_mu_n), (self._rho, by_sigma_n * rho_n.sigmoid())
        for tensors, slope_n in slopes:
            views = self._layout.unflatten(strength * slope_n)
            for name, parameter in tensors.items():
                parameter.grad = views[name] if parameter.grad is None else parameter.grad.add_(views[name])
