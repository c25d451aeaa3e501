"""Limits of mixing matrices, computed densely: for small graphs."""

from __future__ import annotations

import numpy as np
import scipy.linalg
from scipy.sparse import csr_array

from fedpeer.topology.mixing import Dense, dense


def limit_weights(matrix: csr_array | Dense) -> Dense:
    """Return the limit (P,) of push-sum weights that begin at 1: A w = w with sum P. Dense; for small graphs."""
    matrix_PP = dense(matrix)
    count = len(matrix_PP)
    equations = np.vstack([matrix_PP - np.eye(count), np.ones(count)])
    return np.asarray(np.linalg.lstsq(equations, np.append(np.zeros(count), count))[0])


def second_modulus(matrix: csr_array | Dense) -> float:
    """Return the second largest modulus of a mixing matrix's eigenvalues; dense, for up to a few hundred members."""
    moduli = np.sort(np.abs(scipy.linalg.eigvals(dense(matrix))))
    return float(moduli[-2]) if len(moduli) > 1 else 0.0


def spectral_gap(matrix: csr_array | Dense) -> float:
    """Return 1 - the second largest modulus of the eigenvalues: the share of the disagreement that one exchange
    removes."""
    return 1 - second_modulus(matrix)
