"""Diagonal Gaussians in natural parameters: the algebra of VIRTUAL, and of any method that multiplies densities.

A Gaussian factor over D weights is stored as chi = mu / sigma^2 and xi = 1 / sigma^2. Products of densities add natural
parameters, ratios subtract them, powers scale them; so a ratio may have a negative precision. That is a valid factor
(it widens the density that it is multiplied with), but no distribution: it has no mean. Such precisions keep their
sign, and are floored only where a factor has to serve as a distribution (`floored`), never in a stored or sent factor.

No randomness and no networks here. Source: Corinzia, Beuret, Buhmann, Variational federated multi-task learning, 2021,
appendix B.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

#: Least precision of a factor that serves as a distribution, in 1 / weight^2. A weight of order 1 with a standard
#: deviation of 1000 is unknown for all practical purposes; a lower floor would only cost digits.
PRECISION_FLOOR = 1e-6


@dataclass(frozen=True, eq=False)
class Gaussian:
    """A product of D univariate Gaussian factors, not necessarily normalisable.

    chi_D   (..., D) mean times precision, in 1 / weight
    xi_D    (..., D) precision, in 1 / weight^2; of any sign, > 0 everywhere in a distribution
    """

    chi_D: Tensor
    xi_D: Tensor

    @staticmethod
    def of(mu_D: Tensor, sigma_D: Tensor | float) -> Gaussian:
        """Return the distribution with means (..., D) and standard deviations (a number, or (..., D)), all > 0."""
        xi_D = torch.as_tensor(sigma_D, dtype=mu_D.dtype, device=mu_D.device).expand_as(mu_D) ** -2
        return Gaussian(mu_D * xi_D, xi_D)

    @property
    def mu_D(self) -> Tensor:
        """Means (..., D), of a distribution only."""
        return self.chi_D / self.xi_D

    @property
    def sigma_D(self) -> Tensor:
        """Standard deviations (..., D), of a distribution only (NaN where the precision is negative)."""
        return self.xi_D**-0.5

    def __mul__(self, other: Gaussian) -> Gaussian:
        return Gaussian(self.chi_D + other.chi_D, self.xi_D + other.xi_D)

    def __truediv__(self, other: Gaussian) -> Gaussian:
        return Gaussian(self.chi_D - other.chi_D, self.xi_D - other.xi_D)

    def __pow__(self, exponent: Tensor | float) -> Gaussian:
        """Return the power of the factors; the exponent is a number, or a tensor that broadcasts against (..., D)."""
        return Gaussian(self.chi_D * exponent, self.xi_D * exponent)

    def __getitem__(self, index: int | slice) -> Gaussian:
        """Return these factors of a stack, by its first dimension, or these weights of one factor."""
        return Gaussian(self.chi_D[index], self.xi_D[index])

    def floored(self, least: float = PRECISION_FLOOR) -> Gaussian:
        """Return the factor as a distribution: no precision below `least` > 0, chi unchanged.

        Keeping chi keeps the force chi - xi * w with which the factor pulls a weight w.
        """
        return Gaussian(self.chi_D, self.xi_D.clamp_min(least))


def product(factors_KD: Gaussian) -> Gaussian:
    """Return the product (..., D) of K stacked factors (K, ..., D)."""
    return Gaussian(factors_KD.chi_D.sum(0), factors_KD.xi_D.sum(0))


def kl_slopes(mu_D: Tensor, sigma_D: Tensor, reference: Gaussian) -> tuple[Tensor, Tensor]:
    """Return the derivatives of the Kullback-Leibler divergence to `reference` by mu and by sigma, (..., D) each.

    The form is closed, for training steps: autograd through natural parameters takes thirty times as long.
    """
    return reference.xi_D * mu_D - reference.chi_D, reference.xi_D * sigma_D - 1 / sigma_D
