"""Runner of golden cases: `python -m tests.golden.run DIR [OUT]`, as described in the README beside the cases.

Each `DIR/STEM.json` is computed with fedpeer by the adapter of that name, and the result is compared leaf by leaf. The
runner prints one line per file, then `N passed, M failed`; with OUT it also writes a file `{STEM: computed}`. The exit
code is 0, or 1 after any failure, or 2 if there is nothing to run or a file is not a case.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.golden.adapters import ADAPTERS
from tests.golden.compare import CONTRASTS, compare

STEMS = (
    "01a_push_sum_atomic",
    "01b_push_sum_synchronous",
    "01c_push_sum_asynchronous",
    "01d_push_pull_pairwise",
    "02a_partial_averaging_fig5",
    "02b_partial_averaging_no_dependency",
    "02c_partial_averaging_diamond",
    "02d_reduced_model_sets",
    "02e_partial_averaging_chain",
    "03a_gaussian_product_ratio",
    "03b_virtual_cavity_delta_aggregation",
    "03c_negative_precision_delta",
    "03d_snr_pruning",
    "04_virtual_free_energy_linear_gaussian",
    "05_pfedvem_confidence_and_aggregation",
    "06a_mocha_paper_convention",
    "06b_mocha_trace_constrained",
    "06c_mocha_omega_updates",
    "07a_associative_network",
    "07b_vector_generator",
    "08_fedavg_fedprox_scaffold_quadratic",
    "09_mixing_matrices",
    "10_local_reparametrisation",
    "11_metrics_s_and_mt",
    "12_lateral_connections",
    "13_random_slicing",
)

Case = dict[str, Any]
USAGE = "usage: python -m tests.golden.run DIR [OUT]   (make golden GOLDEN=DIR [OUT=FILE])"


class NotACaseError(Exception):
    """There is nothing to run, or a file is not a golden case; the message says which and why."""


def main(arguments: Sequence[str], adapters: Mapping[str, Callable[[Case], Case]] = ADAPTERS) -> int:
    """Run a folder of cases, print the results, and return the exit code."""
    if len(arguments) not in (1, 2):
        print(USAGE, file=sys.stderr)
        return 2
    try:
        cases = load(Path(arguments[0]))
    except NotACaseError as problem:
        print(problem, file=sys.stderr)
        return 2
    print("contrasts that an adapter may leave out:", ", ".join(CONTRASTS))
    computed: Case = {}
    passed = 0
    for stem, case in cases.items():
        right, line = run(case, adapters.get(stem), stem, computed)
        passed += right
        print(stem, line)
    print(f"{passed} passed, {len(cases) - passed} failed")
    if len(arguments) == 2:
        Path(arguments[1]).write_text(json.dumps(computed, indent=1) + "\n", encoding="utf-8")
    return 0 if passed == len(cases) else 1


def load(folder: Path) -> dict[str, Case]:
    """Return the cases of a folder by stem, in order.

    Raises:
        NotACaseError: no folder, no file, a stem that is not in the table, or a file that is not a case.
    """
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise NotACaseError(f"{folder} holds no golden case; give a folder of files such as {STEMS[0]}.json")
    unknown = [path.name for path in paths if path.stem not in STEMS]
    if unknown:
        raise NotACaseError(f"{folder}: {', '.join(unknown)} is no golden case; the names are {', '.join(STEMS)}")
    return {path.stem: _read(path) for path in paths}


def _read(path: Path) -> Case:
    try:
        case = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise NotACaseError(f"{path}: not a JSON file: {problem}") from None
    if not isinstance(case, dict) or not isinstance(case.get("inputs"), dict):
        raise NotACaseError(f'{path}: a golden case is an object with "inputs"')
    return case


def run(case: Case, adapter: Callable[[Case], Case] | None, stem: str, computed: Case) -> tuple[bool, str]:
    """Compute one case into `computed`, compare it, and return whether all is right and the line to print.

    The adapter gets only the inputs, so that it cannot copy an answer.
    """
    if adapter is None:
        return False, "no adapter yet"
    try:
        computed[stem] = adapter(case["inputs"])
    except Exception as problem:  # an error in one case must not stop the others
        return False, f"failed: {type(problem).__name__}: {problem}"
    leaves = compare(case.get("expected", {}), computed[stem], case.get("tolerance", {}))
    wrong = [leaf for leaf in leaves if not leaf.agrees]
    count = f"{len(leaves) - len(wrong)}/{len(leaves)}"
    return not wrong, f"failed {count}, first at {wrong[0]}" if wrong else f"ok {count}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
