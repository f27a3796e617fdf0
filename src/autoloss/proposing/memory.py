# pyright: basic
"""The memory of a search: what earlier tasks teach about losses, as numbers. It orders candidates, and never decides about one.

For each earlier task a forest of extremely randomised trees (Geurts, Ernst and Wehenkel, 2006) has learnt the order of its losses
from their portraits. In a search, each forest counts as much as it orders the run's own outcomes rightly, as in Feurer et al.,
Scalable Meta-Learning for Bayesian Optimization using Ranking-Weighted Gaussian Process Ensembles (2018).
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoloss.errors import RequestError, quote
from autoloss.files import write_bytes
from autoloss.proposing.portrait import describe_tree, find_kind
from autoloss.proposing.score_model import find_normal_scores
from autoloss.settings import SearchSettings
from autoloss.space.form import BranchForm, Kind
from autoloss.space.loss_text import split_factor
from autoloss.space.operators import OPERATORS, Operator
from autoloss.space.parsing import parse
from autoloss.training.loop import one_thread

Values = NDArray[np.float64]
SHIPPED_PRIOR, UNINFORMED = "default", "none"
"""Words for the prior that comes with the package, and for none."""
_FILE = Path(__file__).with_name("prior.npz")
VERSION = 1
MOST_BYTES = 1 << 20
TREES, LEAF = 40, 3
"""Trees of a forest, and losses in the smallest leaf."""
EXPECTED, TRUST = 0.5, 12
"""Rank correlation that is expected of a forest before the run has outcomes, and the number of outcomes that weigh as much."""
ARRAYS = {"roots": np.int32, "features": np.int16, "thresholds": np.float32, "left": np.int32, "right": np.int32}
ARRAYS |= {"values": np.float32}


@dataclass(frozen=True, slots=True)
class Forest:
    """The order of the losses of one task, by their portraits.

    Args:
        source: Name of the task; `losses` the number of those that it was fitted to.
        arrays: Trees one after the other: `roots`; of each node the feature, the threshold, the left and the right child (−1 at a
            leaf) and the value.
    """

    source: str
    kind: Kind
    losses: int
    arrays: Mapping[str, NDArray[np.generic]]

    def predict(self, rows: NDArray[np.float32]) -> Values:
        """Return the normal score of the rank that each portrait is expected to have."""
        at = np.repeat(self.arrays["roots"].astype(np.int64)[None, :], len(rows), axis=0)
        features, thresholds = self.arrays["features"].astype(np.int64), self.arrays["thresholds"].astype(np.float64)
        left, right = self.arrays["left"].astype(np.int64), self.arrays["right"].astype(np.int64)
        each = np.arange(len(rows))[:, None]
        while (inner := left[at] >= 0).any():
            goes_left = rows[each, features[at]] <= thresholds[at]
            at = np.where(inner, np.where(goes_left, left[at], right[at]), at)
        return self.arrays["values"].astype(np.float64)[at].mean(axis=1)


def grow_forest(source: str, kind: Kind, portraits: Sequence[NDArray[np.float32]], scores: Sequence[float]) -> Forest:
    """Fit a forest to the normal scores of the ranks of losses; equal arguments give equal forests."""
    from sklearn.ensemble import ExtraTreesRegressor

    model = ExtraTreesRegressor(TREES, min_samples_leaf=LEAF, max_features=0.5, random_state=0)
    trees = [one.tree_ for one in model.fit(np.array(portraits), find_normal_scores(scores)).estimators_]
    roots = np.cumsum([0, *(tree.node_count for tree in trees)])[:-1]
    shifted = [
        [np.where(child < 0, -1, child + root) for child in (tree.children_left, tree.children_right)]
        for tree, root in zip(trees, roots, strict=True)
    ]
    found = {
        "roots": roots,
        "features": np.concatenate([np.maximum(tree.feature, 0) for tree in trees]),
        "thresholds": np.concatenate([tree.threshold for tree in trees]),
        "left": np.concatenate([left for left, _ in shifted]),
        "right": np.concatenate([right for _, right in shifted]),
        "values": np.concatenate([tree.value.ravel() for tree in trees]),
    }
    return Forest(source, kind, len(scores), {name: found[name].astype(kind_) for name, kind_ in ARRAYS.items()})


def write_prior(forests: Sequence[Forest], path: Path) -> str:
    """Write a prior, and return its digest."""
    content: dict[str, Any] = {
        f"{place}.{name}": values for place, one in enumerate(forests) for name, values in one.arrays.items()
    }
    digest = _find_digest(forests)
    header = {"version": VERSION, "digest": digest, "operators": list(OPERATORS)}
    header["forests"] = [{"source": one.source, "kind": one.kind, "losses": one.losses} for one in forests]
    data = BytesIO()
    np.savez_compressed(data, header=np.frombuffer(json.dumps(header).encode(), dtype=np.uint8), **content)
    if len(data.getvalue()) > MOST_BYTES:
        raise RequestError(f"The prior has {len(data.getvalue())} bytes, above {MOST_BYTES}. Learn from fewer runs.")
    write_bytes(path, data.getvalue())
    return digest


def _find_digest(forests: Sequence[Forest]) -> str:
    found = hashlib.sha256(str((VERSION, list(OPERATORS))).encode())
    for one in forests:
        found.update(str((one.source, one.kind, one.losses)).encode())
        for name, kind in ARRAYS.items():
            found.update(np.ascontiguousarray(one.arrays[name], dtype=np.dtype(kind).newbyteorder("<")).tobytes())
    return found.hexdigest()[:16]


def read_prior(name: str) -> tuple[tuple[Forest, ...], str]:
    """Read a prior: `default`, the one of the package, or a file that `write_prior` wrote.

    Returns:
        Its forests and its digest; none and an empty text for `none`.
    """
    if name == UNINFORMED:
        return (), ""
    path = _FILE if name == SHIPPED_PRIOR else Path(name)
    wrong = f"{quote(str(path))} cannot serve as a prior"
    advice = (
        "Give a file that `autoloss learn` wrote, default or none; a run that was started with it needs it as it was."
    )
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ValueError(f"it is larger than {MOST_BYTES} bytes")
        if not zipfile.is_zipfile(path):
            raise ValueError("it holds no arrays")
        with np.load(BytesIO(path.read_bytes()), allow_pickle=False) as data:
            header = json.loads(data["header"].tobytes())
            if header["version"] != VERSION:
                raise ValueError(f"its version is {quote(str(header['version']))}, not {VERSION}")
            if header["operators"] != list(OPERATORS):
                theirs, ours = set(map(str, header["operators"])), set(OPERATORS)
                lacking, others = (", ".join(sorted(one)) or "none" for one in (ours - theirs, theirs - ours))
                raise ValueError(
                    f"it was learned without the operators {quote(lacking)} and with the others {quote(others)}"
                )
            forests = tuple(
                Forest(**values, arrays={name: data[f"{place}.{name}"] for name in ARRAYS})
                for place, values in enumerate(header["forests"])
            )
    except FileNotFoundError:
        raise RequestError(f"There is no prior {quote(str(path))}. {advice}", argument="prior") from None
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise RequestError(f"{wrong}: {error}. {advice}", argument="prior") from None
    if _find_digest(forests) != header["digest"]:
        raise RequestError(f"{wrong}: its digest does not match its content. {advice}", argument="prior")
    return forests, header["digest"]


class Memory:
    """A prior for the branches of one run.

    Args:
        branches: Branch → form, and the operators that its formulas may hold.
    """

    def __init__(
        self, forests: Sequence[Forest], branches: Mapping[str, BranchForm], operators: Mapping[str, Operator]
    ):
        kinds = {name: find_kind(form) for name, form in branches.items()}
        self._forests = {
            name: learnt for name, kind in kinds.items() if (learnt := [one for one in forests if one.kind == kind])
        }
        self._leaves = {name: form.leaves for name, form in branches.items()}
        self._operators = operators
        self._predicted: dict[tuple[str, str], Values] = {}

    def describe_unknown(self) -> list[str]:
        """Describe the branches that are searched without the prior because it has no data for their kind."""
        unknown = [name for name in self._leaves if name not in self._forests]
        if not unknown:
            return []
        branches = f"{'branches' if len(unknown) > 1 else 'branch'} {', '.join(unknown)}"
        return [f"The prior was learned from tasks with other leaves than the {branches}, where it is not used."]

    def knows(self, branch: str) -> bool:
        """Return True if the losses of a branch can be ordered."""
        return branch in self._forests

    def predict(self, branch: str, formulas: Sequence[str]) -> Values:
        """Return what each forest expects of losses on a branch, a row for each loss."""
        new = [text for text in dict.fromkeys(formulas) if (branch, text) not in self._predicted]
        if new:
            kind = self._forests[branch][0].kind
            trees = [parse(split_factor(text)[1], self._leaves[branch], self._operators) for text in new]
            with one_thread():
                rows = np.array([describe_tree(tree, kind) for tree in trees])
            found = np.array([forest.predict(rows) for forest in self._forests[branch]]).T
            self._predicted |= {(branch, text): row for text, row in zip(new, found, strict=True)}
        return np.array([self._predicted[branch, text] for text in formulas])

    def weigh(self, branch: str, formulas: Sequence[str], scores: Sequence[float]) -> Values:
        """Return the weights of the forests: rank correlations with the run's own outcomes, from an expected one on; 0 at least."""
        from scipy.stats import rankdata

        count = len(self._forests[branch])
        found = np.full(count, TRUST * EXPECTED)
        if len(scores) > 2 and len(set(scores)) > 1:
            ranks = np.array([rankdata(column) for column in (scores, *self.predict(branch, formulas).T)])
            ranks -= ranks.mean(axis=1, keepdims=True)
            lengths = np.sqrt((ranks**2).sum(axis=1))
            found += len(scores) * (ranks[1:] * ranks[0]).sum(axis=1) / np.maximum(lengths[1:] * lengths[0], 1e-9)
        return np.maximum(found / (TRUST + len(scores)), 0.0) / count


def recall(
    settings: SearchSettings, branches: Mapping[str, BranchForm], operators: Mapping[str, Operator]
) -> Memory | None:
    """Return the memory of a run; None without a prior."""
    forests, digest = read_prior(settings.prior)
    if settings.prior_digest not in ("", digest):
        raise RequestError(
            f"The run was started with the prior {settings.prior}, whose digest was {settings.prior_digest} and is now {digest}. "
            "Restore the file, or open the run with the release that started it.",
            argument="prior",
        )
    return Memory(forests, branches, operators) if forests else None
