"""The results of a run in numbers and in one sentence. Pure: metric rows in, JSON data and text out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpeer.runs.disk import finite
from fedpeer.runs.history import Floats, History, Measure, histories
from fedpeer.runs.scores import best_models, read_scores

#: Most classes of a confusion matrix with numbers in its cells; for more classes there is only the shade.
NUMBERS_MAX = 16
#: Names of methods in texts; any other method has its key without hyphens.
_SPOKEN = {
    "local": "local only",
    "global": "all data pooled",
    "d-psgd": "D-PSGD",
    "dfedavgm": "DFedAvgM",
    "dfedalt": "DFedAlt",
    "dfedsalt": "DFedSalt",
    "noloco": "NoLoCo",
    "choco-sgd": "CHOCO-SGD",
    "dispfl": "DisPFL",
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "fedavgm": "FedAvgM",
    "fedadagrad": "FedAdagrad",
    "fedadam": "FedAdam",
    "fedyogi": "FedYogi",
    "scaffold": "SCAFFOLD",
    "flexlora": "FlexLoRA",
    "fedper": "FedPer",
    "fedbn": "FedBN",
    "fedrep": "FedRep",
    "ifca": "IFCA",
    "per-fedavg": "Per-FedAvg",
    "pfedme": "pFedMe",
    "ditto": "Ditto",
    "apfl": "APFL",
    "fedala": "FedALA",
    "pfedbayes": "pFedBayes",
    "pfedvem": "pFedVEM",
    "pfedvem-gossip": "pFedVEM by gossip",
    "virtual": "VIRTUAL",
    "virtual-2019": "VIRTUAL 2019",
    "mocha": "MOCHA",
    "cocoa": "CoCoA",
    "minibatch-sdca": "minibatch SDCA",
    "minibatch-sgd": "minibatch SGD",
}


#: Fewest pairs for which an interval is shown: with two pairs it is wider than any difference.
_PAIRS_MIN = 3


def summarise(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the "methods" part of `summary.json` and `--json`: each method's results at its last evaluated round.

    accuracy_per_peer   mean over seeds, one number per peer
    accuracy_mean       mean of these over peers
    accuracy_worst      minimum over peers
    accuracy_spread     standard deviation over peers
    accuracy_sem        standard error over seeds of the mean over peers; null for one seed
    error_*             the same for regression, where the worst is the maximum
    bytes_sent          total over peers and rounds, mean over seeds; likewise messages_sent
    seconds_per_round   without evaluation, mean over seeds
    rounds              round of the scores; null, as the scores, before the first evaluation
    scores              scores in the last and the best round, by the names of `scores.METRICS`
    best_models         scores of each peer's model of its best round, by `scores.best_models`, if examples are held out
    metrics             further metrics of the last models by name, if any were wanted: "per_peer", mean over seeds
                        (null: not defined for that peer), and "mean", over the peers for which it is defined
    """
    every = list(rows)
    by_method: dict[str, list[Mapping[str, Any]]] = {}
    for row in every:
        by_method.setdefault(row["method"], []).append(row)
    return {
        method: _result(history)
        | {"scores": read_scores(by_method[method], history.measure)}
        | _best_models(by_method[method], history)
        | _metrics(by_method[method], history)
        for method, history in histories(every).items()
    }


def _best_models(rows: Iterable[Mapping[str, Any]], history: History) -> dict[str, Any]:
    found = best_models([row for row in rows if row["seed"] in history.seeds], history.measure)
    return {"best_models": found} if found else {}


def _metrics(rows: Iterable[Mapping[str, Any]], history: History) -> dict[str, Any]:
    """Return the "metrics" of a method, from the rows of its seeds that have any; empty without any."""
    by_seed = {row["seed"]: row["metrics"] for row in rows if row.get("metrics") and row["seed"] in history.seeds}
    found = {}
    for name in next(iter(by_seed.values()), {}):
        value_SP = np.array([each[name] for each in by_seed.values()], dtype=np.float64)  # null becomes NaN
        per_peer = [_mean(value_S) for value_S in value_SP.T]
        found[name] = {"mean": _mean(np.array(per_peer, dtype=np.float64)), "per_peer": per_peer}
    return {"metrics": found} if found else {}


def _result(history: History) -> dict[str, Any]:
    return {
        **{f"{history.measure}_{key}": value for key, value in _scores(history.scores_SP, history.measure).items()},
        "bytes_sent": round(history.bytes_T.sum()),
        "messages_sent": round(history.messages_T.sum()),
        "seconds_per_round": float(history.seconds_T.mean()),
        "rounds": int(history.round_R[-1]) if len(history.round_R) else None,
        "seeds": list(history.seeds),
    }


def _scores(scores_SP: Floats, measure: Measure) -> dict[str, Any]:
    if not scores_SP.size:
        return {"mean": None, "sem": None, "worst": None, "spread": None, "per_peer": []}
    score_P, mean_S = scores_SP.mean(axis=0), scores_SP.mean(axis=1)
    many = len(mean_S) > 1
    return {
        "mean": finite(mean_S.mean()),
        "sem": finite(mean_S.std(ddof=1) / math.sqrt(len(mean_S))) if many else None,
        "worst": finite(score_P.min() if measure == "accuracy" else score_P.max()),
        "spread": finite(score_P.std()),
        "per_peer": [finite(score) for score in score_P],
    }


def _mean(value_K: Floats) -> float | None:
    """Return the mean of the values that are defined; None: there are none."""
    known_K = value_K[np.isfinite(value_K)]
    return float(known_K.mean()) if len(known_K) else None


def measure_of(methods: Mapping[str, Mapping[str, Any]]) -> Measure:
    """Return the measure of a summary's results."""
    return "error" if any("error_mean" in result for result in methods.values()) else "accuracy"


def spoken(method: str) -> str:
    """Return the method's name in a sentence: "local only", "partial averaging"."""
    name, comma, settings = method.partition(",")
    if name.startswith("python:"):  # a user's own algorithm is named by its class
        return name.rpartition(":")[2] + comma + settings
    return _SPOKEN.get(name, name.replace("-", " ")) + comma + settings


def percent(fraction: float) -> str:
    """Format a fraction: 0.9241 as "92.4 %"."""
    return f"{100 * fraction:.1f} %"


def score_text(score: float | None, measure: Measure, sem: float | None = None) -> str:
    """Format a score: 92.4 %, 92.4 ± 0.3 %, or 4.21 for an error."""
    if score is None:
        return "–"
    if measure == "accuracy":
        return percent(score) if sem is None else f"{100 * score:.1f} ± {percent(sem)}"
    value = f"{score:.3g}" if abs(score) < 1000 else f"{score:,.0f}"
    return value if sem is None else f"{value} ± {sem:.2g}"


def metric_names(methods: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the names of the further metrics in a summary's methods; none if none were wanted."""
    return list(dict.fromkeys(name for result in methods.values() for name in result.get("metrics") or {}))


def metric_text(found: Mapping[str, Any] | None) -> str:
    """Format a further metric: 0.931, or "0.931 (12 of 16)" if it is defined for some of the peers only."""
    if found is None or found["mean"] is None:
        return "–"
    value, per_peer = found["mean"], found["per_peer"]
    text = f"{value:.3f}" if abs(value) < 100 else score_text(value, "error")
    defined = sum(each is not None for each in per_peer)
    return text if defined == len(per_peer) else f"{text} ({defined} of {len(per_peer)})"


def count_text(number: float, unit: str = "") -> str:
    """Format 4_230_000 as "4.23 M", or as "4.23 MB" with unit B: three digits, powers of 1,000."""
    for prefix in ("", "k", "M", "G"):
        if abs(number) < 999.5:
            return f"{number:.3g} {prefix}{unit}".strip()
        number /= 1000
    return f"{number:,.0f} T{unit}"


def headline(methods: Mapping[str, Mapping[str, Any]], *, brief: bool = False) -> str:
    """Return one sentence about partial averaging, or else the best method, and how others compare.

    "Partial averaging: 92.4 %, 3.9 points above local only (3.1 to 4.7) and within noise of full averaging (-0.3 to
    0.9); in brackets 95 % intervals, paired over 16 peers". The score is that of the peers' own models or of the
    server's, whichever is better. Only methods evaluated in the same round are compared. `brief`: without intervals.
    """
    measure = measure_of(methods)
    means = {m: score for m, r in methods.items() if (score := _worth(r, measure)[0]) is not None}
    if not means:
        evaluated = any(result.get("rounds") is not None for result in methods.values())
        return "No score is a number, so the training diverged" if evaluated else "Nothing was evaluated"
    others = {method: mean for method, mean in means.items() if method != "local"} or means
    best = (max if measure == "accuracy" else min)(others, key=lambda method: others[method])
    chosen = "partial-averaging" if "partial-averaging" in others else best
    peers = len(methods[chosen][f"{measure}_per_peer"])
    value = ("" if measure == "accuracy" else "error ") + score_text(means[chosen], measure)
    compared = [m for m in means if m != chosen and methods[m].get("rounds") == methods[chosen].get("rounds")]
    intervals = {method: _paired_interval(methods[chosen], methods[method], measure) for method in compared}
    differences = [
        _difference(means[chosen], means[method], method, measure, intervals[method].bounds, brief=brief)
        for method in compared
    ]
    sentence = f"{spoken(chosen)}: {value}"
    if differences:
        sentence += ", " + _joined(differences) + ("" if brief else _over(intervals.values()))
    else:
        sentence += f" on average over {peers:,} peer{'s' * (peers != 1)}"
    if len(compared) < len(means) - 1:
        sentence += f", after round {methods[chosen]['rounds']}"
    return sentence if sentence[1:2].isupper() else sentence[0].upper() + sentence[1:]  # pFedVEM keeps its p


def best_text(methods: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return the scores of the models of the peers' best rounds, as a sentence; None: no examples were held out."""
    measure, found = (
        measure_of(methods),
        {name: each["best_models"] for name, each in methods.items() if "best_models" in each},
    )
    if not found:
        return None
    scores = [f"{spoken(name)} {score_text(each['mean'], measure)}" for name, each in found.items()]
    some = max(found.values(), key=lambda each: each["peers"])
    of = (
        ""
        if some["peers"] == len(some["per_peer"])
        else f" ({some['peers']} of {len(some['per_peer'])} peers hold out any)"
    )
    return f"Each peer's model of its best round, chosen on training examples held out{of}: {', '.join(scores)}."


def linear_text(linear: Mapping[str, Any] | None, measure: Measure) -> str | None:
    """Return the scores of a linear model of each peer's own, as a sentence; None where the data are not a table.

    Args:
        linear: "linear" of a run's summary.
        measure: the measure of the run's methods.
    """
    if not linear:
        return None
    score_P = linear["per_peer"]
    mean, least, most = (score_text(score, measure) for score in (linear["mean"], min(score_P), max(score_P)))
    over = f" on average, {least} at the lowest peer and {most} at the highest" if len(score_P) > 1 else ""
    balanced = f"; balanced accuracy {linear['balanced_accuracy']:.3f}" if "balanced_accuracy" in linear else ""
    return f"For comparison, {linear['model']} by each peer alone: {mean}{over}{balanced}."


def server_score(result: Mapping[str, Any]) -> float | None:
    """Return the score of the server's model, each peer counted the same; None if there is no such model."""
    found: float | None = result.get("scores", {}).get("GM", {}).get("final")
    return found


def _worth(result: Mapping[str, Any], measure: Measure) -> tuple[float | None, str]:
    """Return a method's score and its metric: that of the peers' own models or the server's, whichever is better."""
    found = {"PM": result.get(f"{measure}_mean"), "GM": server_score(result)}
    known = {metric: score for metric, score in found.items() if score is not None}
    if not known:
        return None, "PM"
    best = (max if measure == "accuracy" else min)(known, key=lambda metric: known[metric])
    return known[best], best


@dataclass(frozen=True)
class _Interval:
    """Interval of a difference of two methods.

    bounds   the 95 % interval, in the unit of the scores; None: there are too few pairs
    pairs    "16 peers", or "" without an interval
    """

    bounds: tuple[float, float] | None = None
    pairs: str = ""


def _paired_interval(mine: Mapping[str, Any], other: Mapping[str, Any], measure: Measure) -> _Interval:
    """Return Student's interval of the mean difference over seeds, or over peers if there are fewer than three seeds.

    An interval over peers shows whether these peers differ by chance, and nothing about other draws of data and
    weights.
    """
    if mine.get("seeds") == other.get("seeds"):
        one, two = _observations(mine, measure), _observations(other, measure)
        for unit in ("seeds", "peers"):
            if len(one[unit]) == len(two[unit]) >= _PAIRS_MIN:
                return _Interval(_students(np.subtract(one[unit], two[unit])), f"{len(one[unit])} {unit}")
    return _Interval()


def _observations(result: Mapping[str, Any], measure: Measure) -> dict[str, Sequence[float]]:
    """Return a method's single scores, by seed and by peer; empty where not all are known."""
    metric = _worth(result, measure)[1]
    by_seed = result.get("scores", {}).get(metric, {}).get("per_seed", [])
    by_peer = result.get(f"{measure}_per_peer", []) if metric == "PM" else []
    return {unit: [] if None in found else found for unit, found in (("seeds", by_seed), ("peers", by_peer))}


def _students(difference_S: Floats) -> tuple[float, float]:
    """Return Student's 95 % interval of the mean of some differences."""
    from scipy.special import stdtrit  # late: a tenth of a second, needed at the end of a run only

    count = len(difference_S)
    half = float(stdtrit(count - 1, 0.975)) * float(difference_S.std(ddof=1)) / math.sqrt(count)
    middle = float(difference_S.mean())
    return middle - half, middle + half


def _over(intervals: Iterable[_Interval]) -> str:
    pairs = dict.fromkeys(each.pairs for each in intervals if each.pairs)
    return f"; in brackets 95 % intervals, paired over {' or '.join(pairs)}" if pairs else ""


def _difference(
    mine: float, other: float, method: str, measure: Measure, bounds: tuple[float, float] | None, *, brief: bool
) -> str:
    """Return how a score compares with another one; `bounds`: the interval of their difference, if there is one."""
    name = spoken(method)
    points = measure == "accuracy"
    scale = 100 if points else 100 / other if other else 0.0
    number, unit = scale * (mine - other), " points" if points else " %"
    low, high = (scale * each for each in bounds or (mine - other, mine - other))
    beside = "" if bounds is None or brief else f" ({_tenths(low)} to {_tenths(high)}{'' if points else ' %'})"
    if bounds is not None and low < 0 < high:
        return f"within noise of {name}{beside}"
    if abs(number) < 0.05:
        return f"level with {name}"
    words = ("above", "below") if points else ("more than", "less than")
    return f"{abs(number):.1f}{unit} {words[number < 0]} {name}{beside}"


def _tenths(number: float) -> str:
    return f"{round(number, 1) + 0.0:.1f}"  # plus zero: -0.0 is 0.0


def _joined(pieces: list[str]) -> str:
    return pieces[0] if len(pieces) == 1 else ", ".join(pieces[:-1]) + " and " + pieces[-1]
