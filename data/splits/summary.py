"""A split in numbers, as plain JSON, for the preview and for the report of a run."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedpeer.data.dataset import NO_TOKEN, Dataset, Share, Split

#: Most labels that are counted one by one; for more, such as the voxels of a volume, the number that hold in an example
#: is reported.
LABELS_COUNTED_MAX = 100


def summary(dataset: Dataset, split: Split) -> dict[str, Any]:
    """Count the examples and labels of each peer.

    Returns:
        rule, dataset, task, classes, remarks, and `peers`: for each peer its id, note, numbers of training, test and
        held-out examples, label_map (None: unchanged), features_permuted, and `train_counts` per official class or
        label; for regression `train_quantiles` instead: smallest, quartiles and largest of each output. For completion
        these are quantiles of the number of ones in a pattern, for next-token of the number of tokens to predict, for
        very many labels of the number that hold. Without counts `classes` is empty.
    """
    return {
        "rule": split.rule,
        "dataset": dataset.name,
        "task": dataset.task,
        "classes": list(dataset.classes) if _counted(dataset) else [],
        "remarks": list(split.remarks),
        "peers": [_peer(dataset, share, f"peer{number + 1}") for number, share in enumerate(split.shares)],
    }


def _counted(dataset: Dataset) -> bool:
    """Return whether the examples of each class or label are counted."""
    labels = dataset.task == "multi-label" and len(dataset.classes) <= LABELS_COUNTED_MAX
    return dataset.task == "classification" or labels


def _peer(dataset: Dataset, share: Share, peer: str) -> dict[str, Any]:
    y = dataset.y[share.train_M]
    if dataset.task == "classification":
        held = {"train_counts": np.bincount(y, minlength=len(dataset.classes)).tolist()}
    elif _counted(dataset):
        held = {"train_counts": y.astype(np.int64).sum(0).tolist()}
    else:
        outputs = y.reshape(len(y), -1).astype(np.float64)
        if dataset.task in ("completion", "multi-label"):
            outputs = outputs.sum(1, keepdims=True)
        elif dataset.task == "next-token":
            outputs = (outputs != NO_TOKEN).sum(1, keepdims=True)
        held = {"train_quantiles": np.quantile(outputs, (0, 0.25, 0.5, 0.75, 1), axis=0).T.tolist()}
    return {
        "id": peer,
        "note": share.note,
        "train": len(share.train_M),
        "test": len(share.test_M),
        "held_out": len(share.valid_M),
        "label_map": None if share.label_map_C is None else share.label_map_C.tolist(),
        "features_permuted": share.feature_map_F is not None,
        **held,
    }
