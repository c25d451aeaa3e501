"""Scores of a federation: of the server's model and the clients' own, over the clients' test parts.

Two models times two ways to average over clients J give the papers' four numbers:

    model             weighted by test sizes   each client counts the same
    the server's      S                        GM
    the client's own  MT                       PM

S and MT are the total of right answers over the total of examples; MT scores the model that each client trained last,
which is its initial model if it never trained. GM and PM are means of accuracies. All are reported in two columns, the
last round and the best round, and never mixed: a best round is chosen on the data it is reported on, so it flatters.

Sources: Corinzia, Beuret, Buhmann, Variational Federated Multi-Task Learning, 2019, section IV.C (S, MT; its tables
are best rounds); Zhu, Ma, Blaschko, Confidence-aware Personalized Federated Learning via Variational Expectation
Maximization, CVPR 2023, section 5.1 (GM, PM).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Scores:
    """The accuracies of one round, as fractions."""

    s: float
    mt: float
    gm: float
    pm: float


def scores(server_right_J: Tensor, own_right_J: Tensor, tested_J: Tensor) -> Scores:
    """Return the scores from numbers of right answers, by the server's model and by each client's own.

    All are (J,); the answers are among `tested_J` examples. A client without test examples has no accuracy and is left
    out; at least one client must have some.
    """
    return Scores(
        s=pooled(server_right_J, tested_J),
        mt=pooled(own_right_J, tested_J),
        gm=over_clients(server_right_J, tested_J),
        pm=over_clients(own_right_J, tested_J),
    )


def pooled(right_J: Tensor, tested_J: Tensor) -> float:
    """Return all right answers over all examples: the mean of accuracies weighted by test sizes."""
    assert tested_J.any(), "nobody was tested"
    return int(right_J.sum()) / int(tested_J.sum())


def over_clients(right_J: Tensor, tested_J: Tensor) -> float:
    """Return the plain mean of the accuracies of the clients that have test examples."""
    tested = tested_J > 0
    assert tested.any(), "nobody was tested"
    return float((right_J[tested].double() / tested_J[tested]).mean())


def final_and_best(history_R: Sequence[float]) -> tuple[float, float]:
    """Return one metric in the last of R >= 1 rounds, and in the round that was best for it.

    That round may be the worst for another metric."""
    return history_R[-1], max(history_R)
