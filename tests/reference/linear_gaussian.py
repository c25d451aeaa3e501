"""A client whose free energy is known exactly: y = X w + noise, with diagonal Gaussians as beliefs about w.

The expected log-likelihood and the best mean-field posterior are closed formulas, so estimates by sampling and
approximations by gradients can be measured against the truth. No engine trains with it.

Source: Bishop, Pattern Recognition and Machine Learning, 2006, sections 3.3 and 10.1.2.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedpeer.algorithms.gaussian import Gaussian


def expected_log_likelihood(x_ND: Tensor, y_N: Tensor, posterior: Gaussian, noise: float) -> Tensor:
    """Return E log p(y | X, w) in nats, (...), over w from the distribution `posterior` (..., D); `noise` is y's sd."""
    mean_N = (x_ND @ posterior.mu_D[..., None])[..., 0]
    spread = (posterior.sigma_D**2 * x_ND.square().sum(-2)).sum(-1)
    squares = (y_N - mean_N).square().sum(-1) + spread
    return -0.5 * y_N.shape[-1] * math.log(2 * math.pi * noise**2) - squares / (2 * noise**2)


def minimiser(x_ND: Tensor, y_N: Tensor, reference: Gaussian, noise: float) -> Gaussian:
    """Return the diagonal posterior (..., D) with the least free energy, KL(posterior || reference) - E log-likelihood.

    Its mean is that of the exact posterior, its precision the diagonal of the exact precision matrix.
    """
    gram_DD = x_ND.mT @ x_ND / noise**2
    chi_D = reference.chi_D + (x_ND.mT @ y_N[..., None])[..., 0] / noise**2
    mu_D = torch.linalg.solve(gram_DD + torch.diag_embed(reference.xi_D), chi_D)
    xi_D = reference.xi_D + gram_DD.diagonal(dim1=-2, dim2=-1)
    return Gaussian(mu_D * xi_D, xi_D)
