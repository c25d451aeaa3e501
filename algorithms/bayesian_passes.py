"""The two passes of a Bayesian step over all weights, before and after its matrix products; compiled loops on a CPU.

A step of `bayesian_stack` needs sigma^2 and a slope of each weight before its products, and changes mu and rho after
them. In torch's own operations this takes a dozen passes through memory, longer than the products. The loops here,
compiled by numba and cached per user, take two passes and one exponential of torch's; other devices use torch's
operations.

With sigma = softplus(rho) and e = exp(-|rho|), without overflow: sigma = max(rho, 0) + log(1 + e). The *tilt* is the
slope of softplus over sigma. Rows of several peers are processed one after the other.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional


class Passes:
    """The passes over mu and rho, (..., n) float32, which are changed in place, and the buffers between them.

    variance_n   (..., n) sigma^2, after `spread`
    change_n     (..., n) to be filled with 2 lr dL/d(sigma^2) before `descend`
    """

    def __init__(self, mu_n: Tensor, rho_n: Tensor, pressure_n: Tensor, pull_n: Tensor, rate: Tensor) -> None:
        """Prepare the buffers.

        Args:
            rate: (..., 1) lr times the strength of the divergence.
            pressure_n: (..., n) rate times xi of the reference.
            pull_n: (..., n) rate times chi of the reference.
        """
        self.variance_n, self.change_n = torch.empty_like(rho_n), torch.empty_like(rho_n)
        self._tilt_n = -rho_n.abs()
        self._fields = mu_n, rho_n, self.variance_n, self._tilt_n, self.change_n, pressure_n, pull_n
        self._rate = rate
        self._compiled = rho_n.is_cpu
        if self._compiled:
            rows = [each.view(-1, each.shape[-1]).numpy() for each in (*self._fields, rate)]
            self._rows: list[tuple[NDArray[np.float32], ...]] = list(zip(*rows, strict=True))

    def spread(self) -> None:
        """Fill `variance_n` from rho."""
        if self._compiled:
            self._tilt_n.exp_()
            for _, rho, variance, tilt, *_ in self._rows:
                _spread(rho, variance, tilt)
        else:
            _, rho_n, variance_n, tilt_n, *_ = self._fields
            sigma_n = functional.softplus(rho_n)
            torch.div(rho_n.sigmoid(), sigma_n, out=tilt_n)
            torch.mul(sigma_n, sigma_n, out=variance_n)

    def descend(self) -> None:
        """Step mu <- mu - rate * (xi mu - chi), rho <- rho - slope * (change sigma + rate * (xi sigma - 1 / sigma))."""
        if self._compiled:
            for mu, rho, variance, tilt, change, pressure, pull, rate in self._rows:
                _descend(mu, rho, variance, tilt, change, pressure, pull, rate[0])
        else:
            mu_n, rho_n, variance_n, tilt_n, change_n, pressure_n, pull_n = self._fields
            mu_n.add_(pull_n - pressure_n * mu_n)
            rho_n.sub_(tilt_n * (variance_n * (change_n + pressure_n) - self._rate))


@njit(cache=True, error_model="numpy", fastmath={"contract", "nsz"}, boundscheck=False, nogil=True)
def _spread(rho, variance, tilt):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """Fill variance and tilt from rho, with e in `tilt`.

    log(1 + e) = 2 artanh(e / (2 + e)), whose argument is at most 1/3: seven terms suffice.
    """
    one, two = np.float32(1), np.float32(2)
    for i in range(len(rho)):
        e, r = tilt[i], rho[i]
        z = e / (two + e)
        w = z * z
        series = np.float32(1 / 15)
        series = np.float32(1 / 13) + w * series
        series = np.float32(1 / 11) + w * series
        series = np.float32(1 / 9) + w * series
        series = np.float32(1 / 7) + w * series
        series = np.float32(1 / 5) + w * series
        series = np.float32(1 / 3) + w * series
        sigma = max(r, np.float32(0)) + two * z * (one + w * series)
        variance[i] = sigma * sigma
        tilt[i] = (one if r >= 0 else e) / ((one + e) * sigma)


@njit(cache=True, error_model="numpy", fastmath={"contract", "nsz"}, boundscheck=False, nogil=True)
def _descend(mu, rho, variance, tilt, change, pressure, pull, rate):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Take the step, and leave -|rho| in `tilt` for the next one."""
    for i in range(len(rho)):
        mu[i] -= pressure[i] * mu[i] - pull[i]
        r = rho[i] - tilt[i] * (variance[i] * (change[i] + pressure[i]) - rate)
        rho[i] = r
        tilt[i] = -abs(r)
