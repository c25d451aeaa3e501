"""`python -m benchmarks.flights [SEEDS]`: boosted trees on all peers' flights, beside the experiment `flights`.

The trees are no federation: they see all flights, and are told airline and airport. They show what the records contain.
They learn from the flights on which the peers of the experiment train, less those kept back, and have its test parts.
"""

from __future__ import annotations

import sys

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import log_loss, roc_auc_score

from fedpeer.config.settings import FederationSettings
from fedpeer.experiments.flights import FLIGHTS
from fedpeer.learning.holdings import load_dataset
from fedpeer.sims.world import build_world

AMOUNTS = ("200", "500", "2,000")


def _federation(amount: str) -> FederationSettings:
    """Return the federation of the line of one model that is told airline and airport."""
    label = f"{amount} flights, one model, told airline and airport"
    [cell] = [cell for cell in FLIGHTS.cells(FLIGHTS.sizes["default"]) if cell.label == label]
    return cell.variants[""].federation


def _scores(federation: FederationSettings, seed: int) -> tuple[float, float, float, float]:
    """Return log loss and AUC, each peer counted the same and by flights."""
    world = build_world(federation, load_dataset(federation.simulation.dataset), seed)
    held = [world.held(number) for number in range(len(world.peers))]
    x = world.dataset.x
    model = HistGradientBoostingClassifier(learning_rate=0.05, early_stopping=True, random_state=seed)
    model.fit(x[np.concatenate([each.train_M for each in held])], np.concatenate([each.train_y for each in held]))
    answers = [model.predict_proba(x[each.test_M])[:, 1] for each in held]
    losses = [log_loss(each.test_y, answer, labels=[0, 1]) for each, answer in zip(held, answers, strict=True)]
    areas = [
        (roc_auc_score(each.test_y, answer), len(answer))
        for each, answer in zip(held, answers, strict=True)
        if len(set(each.test_y)) > 1
    ]
    scores, sizes = np.array(areas).T
    tested = [len(answer) for answer in answers]
    by_flights = np.average(losses, weights=tested), np.average(scores, weights=sizes)
    return float(np.mean(losses)), float(by_flights[0]), float(scores.mean()), float(by_flights[1])


def main() -> None:
    """Print a line for each number of flights."""
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    for amount in AMOUNTS:
        score_S4 = np.array([_scores(_federation(amount), seed) for seed in range(seeds)])
        errors = score_S4.std(axis=0, ddof=1) / np.sqrt(seeds)
        loss, loss_by, area, area_by = (
            f"{mean:.4f} ± {error:.4f}" for mean, error in zip(score_S4.mean(axis=0), errors, strict=True)
        )
        print(f"{amount} flights a peer: log loss {loss}, by flights {loss_by}; AUC {area}, by flights {area_by}")


if __name__ == "__main__":
    main()
