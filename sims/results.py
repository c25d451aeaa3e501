"""Results of a simulation for Python: scores, curves, tables and trained parameters, read from the run's folder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from importlib import import_module
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.torch import load_file

from fedpeer.runs.disk import RunError
from fedpeer.runs.facts import gather_facts
from fedpeer.runs.folder import RunFolder
from fedpeer.runs.history import History, histories
from fedpeer.runs.summary import count_text, headline, measure_of, metric_names, metric_text, score_text, spoken
from fedpeer.runs.tables import metrics_table
from fedpeer.runs.tables import results as results_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, repr=False)
class Results:
    """The results of a simulation; a notebook draws them as a table.

    summary    the object that `fedpeer simulate --json` prints
    folder     the run's folder, with metrics, models and `report.html`
    """

    summary: Mapping[str, Any]
    folder: Path

    @classmethod
    def open(cls, run: str = "last", out: str | Path = "fedpeer-runs") -> Results:
        """Read the results of an earlier run.

        Args:
            run: its id, the beginning of it, or "last".
            out: the folder in which it was made.

        Raises:
            RunError: there is no such run, or it has not finished.
        """
        found = RunFolder.open(Path(out), run)
        summary = found.read("summary")
        if summary is None:
            raise RunError(f"run {found.id} is {found.status} and has no results yet; carry it on with resume=")
        return cls(summary, found.path)

    def score(self, method: str, metric: str | None = None) -> float:
        """Return the mean accuracy over peers and seeds (a fraction), or the mean error for regression.

        It is NaN if nothing was evaluated, or the error of a peer is not a number.

        Args:
            metric: one of the run's further metrics, instead; NaN if it is defined for no peer.

        Raises:
            KeyError: the run has no such method or metric.
        """
        found = self._of(method)
        if metric is not None:
            there = found.get("metrics") or {}
            if metric not in there:
                raise KeyError(f'no metric "{metric}" in {self.folder.name}; there are {", ".join(there) or "none"}')
            return math.nan if there[metric]["mean"] is None else float(there[metric]["mean"])
        mean = found["accuracy_mean"] if "accuracy_mean" in found else found["error_mean"]
        return math.nan if mean is None else float(mean)

    def state_dict(
        self, method: str, peer: str, seed: int | None = None, *, best: bool = False
    ) -> dict[str, torch.Tensor]:
        """Return a peer's trained parameters; load them by `module.load_state_dict(..., strict=False)`.

        Counters, such as those of batch normalisation, are not among them.

        Args:
            seed: one of the run's seeds; default: the first.
            best: return the parameters of the peer's best round, on the examples that `simulation.validation` holds
                out, instead of those of the last round.

        Raises:
            KeyError: the run has no such method, seed or peer.
            FileNotFoundError: no examples were held out.
        """
        self._of(method, seed)
        seed = self.summary["seeds"][0] if seed is None else seed
        file = RunFolder(self.folder).models(method, seed, best=best)
        if best and not file.exists():
            raise FileNotFoundError(
                f"no best models in {self.folder.name}; run it with simulation.validation, such as 0.1"
            )
        stored = load_file(file)
        found = {name.removeprefix(f"{peer}/"): value for name, value in stored.items() if name.startswith(f"{peer}/")}
        if not found:
            if best and peer in gather_facts(RunFolder(self.folder)).peers:
                raise KeyError(f"no best model of {peer}: it holds out no example, or no round has a score on them")
            there = dict.fromkeys(name.partition("/")[0] for name in stored)
            raise KeyError(f'no peer "{peer}" in {self.folder.name}; there are {", ".join(there)}')
        return found

    def history(self, method: str, seed: int | None = None) -> History:
        """Return the method's scores and traffic round by round.

        Args:
            seed: one of the run's seeds; default: the mean over all of them.

        Raises:
            KeyError: the run has no such method or seed.
        """
        self._of(method, seed)
        rows = [row for row in self._rows() if row["method"] == method and seed in (None, row["seed"])]
        return histories(rows)[method]

    def frame(self) -> Any:
        """Return a pandas data frame: one row for each method, seed, evaluated round and peer.

        Its columns are method, seed, round, peer, accuracy (a fraction) or error, loss, bytes_sent and messages_sent
        (by this peer since the first round), and the further metrics of the last models, which other rounds lack.

        Raises:
            ImportError: pandas is not installed.
        """
        try:
            pandas = import_module("pandas")
        except ImportError:
            raise ImportError("a data frame needs pandas, which fedpeer does not: pip install pandas") from None
        return pandas.DataFrame.from_records(self._records())

    def plot(self, axes: Axes | None = None) -> Axes:
        """Draw the mean score over peers of each method by round, with a band over the peers.

        Args:
            axes: matplotlib's axes to draw in; default: those of a new figure, which `pyplot.show()` shows.

        Returns:
            The axes, for your own title and limits.
        """
        from fedpeer.runs.plots import draw_scores

        if axes is None:
            from matplotlib import pyplot

            axes = pyplot.figure().add_subplot()
        draw_scores(axes, [self.history(method) for method in self.summary["methods"]])
        return axes

    def __repr__(self) -> str:
        methods = self.summary["methods"]
        measure = measure_of(methods)
        names = metric_names(methods)
        rows: list[tuple[str, ...]] = [("", measure, "worst peer", *names, "sent")]
        rows += [
            (
                spoken(method),
                score_text(result[f"{measure}_mean"], measure, result[f"{measure}_sem"]),
                score_text(result[f"{measure}_worst"], measure),
                *(metric_text((result.get("metrics") or {}).get(name)) for name in names),
                count_text(result["bytes_sent"], "B"),
            )
            for method, result in methods.items()
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]
        return "\n".join([self._title(), "", *lines, "", f"{headline(methods)}."])

    def _repr_html_(self) -> str:
        """Return the table for a notebook."""
        methods = self.summary["methods"]
        marks = dict.fromkeys(methods, "")
        table = results_table(methods, marks) + metrics_table(methods, marks)
        report = f"report: <code>{escape(str(self.folder / 'report.html'))}</code>"
        return f"<p>{escape(self._title())}</p>{table}<p>{escape(headline(methods))}.<br>{report}</p>"

    def _title(self) -> str:
        seeds = self.summary["seeds"]
        several = f", {len(seeds)} seeds" if len(seeds) > 1 else ""
        return f"{self.summary['dataset']}, {self.summary['peers']} peers{several}; run {self.folder.name}"

    def _of(self, method: str, seed: int | None = None) -> Mapping[str, Any]:
        """Return a method's part of the summary.

        Raises:
            KeyError: the run has no such method or seed.
        """
        for what, wanted, there in (("method", method, self.summary["methods"]), ("seed", seed, self.summary["seeds"])):
            if wanted is not None and wanted not in there:
                raise KeyError(f'no {what} "{wanted}" in {self.folder.name}; there are {", ".join(map(str, there))}')
        found: Mapping[str, Any] = self.summary["methods"][method]
        return found

    def _rows(self) -> list[dict[str, Any]]:
        return RunFolder(self.folder).rows()

    def _records(self) -> list[dict[str, Any]]:
        """Return the rows of `frame`."""
        measure = measure_of(self.summary["methods"])
        peers = gather_facts(RunFolder(self.folder)).peers
        cells: dict[tuple[str, int], dict[int, dict[str, Any]]] = {}
        for row in self._rows():
            cells.setdefault((row["method"], row["seed"]), {})[row["round"]] = row  # if recorded twice, the last counts
        records = []
        for (method, seed), by_round in cells.items():
            rows = [by_round[number] for number in sorted(by_round)]
            totals = {
                name: list(accumulate(np.array(row[name], dtype=np.int64) for row in rows))
                for name in ("bytes_sent", "messages_sent")
            }
            for place, row in enumerate(rows):
                for number, score in enumerate(row.get(measure) or ()):
                    records.append(
                        {
                            "method": method,
                            "seed": seed,
                            "round": row["round"],
                            "peer": peers[number],
                            measure: score,
                            "loss": row["loss"][number],
                            **{name: int(total[place][number]) for name, total in totals.items()},
                            **{name: value[number] for name, value in (row.get("metrics") or {}).items()},
                        }
                    )
        return records
