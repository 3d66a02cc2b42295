"""Checks of LightGBM model files, whose indices lightgbm uses without checks."""

import re
from collections.abc import Mapping
from typing import Final

import numpy as np

from shoal_runtime.formats.links import check_features, check_links, require_attributes
from shoal_schema.wire.datatypes import Array

_END: Final = b"\nend of trees"
_TREE: Final = re.compile(rb"^(?=Tree=)", re.MULTILINE)
_MAX_LINES: Final = 22
"""Lines of a tree that lightgbm reads."""
_WHOLE: Final = re.compile(rb" *(?:-?\d{1,10} *)*")
_OF_SPLITS: Final = ("split_gain", "threshold", "decision_type", "internal_value", "internal_weight", "internal_count")
_OF_LEAVES: Final = ("leaf_weight", "leaf_count")
_CATEGORICAL: Final = 1
"""Bit of decision_type."""

Lines = Mapping[bytes, bytes]


def check(data: bytes) -> int:
    """Check that every index in a model is within its array; return the number of features.

    Raises:
        ValueError: an index is out of range, or the text is not in lightgbm's format.
    """
    body, ended, _ = data.partition(_END)
    require_attributes(ended, "the end of its trees is missing")
    # Only blanks and line ends, since lightgbm would treat other white space as the end of a line or number.
    plain = not re.search(rb"[\0\t\v\f]|\r(?!\n)", body + b"\n")
    require_attributes(plain, "it holds white space other than blanks and line ends")
    head, *trees = _TREE.split(body.removesuffix(b"\r") + b"\n")
    header = _lines(head)
    # max_feature_idx is the last index, not the number of features.
    features, classes, at_once = (
        _number(header, name) for name in (b"max_feature_idx", b"num_class", b"num_tree_per_iteration")
    )
    require_attributes(features >= 0, "it has no features")
    whole = 1 <= classes == at_once <= max(1, len(trees)) and len(trees) % classes == 0
    require_attributes(whole, "num_class or num_tree_per_iteration contradicts the number of trees")
    named = re.findall(rb"num_class:(\S*)", header.get(b"objective", b""))
    require_attributes(set(named) <= {b"%d" % classes}, "num_class of its objective differs")
    if b"tree_sizes" in header:
        sizes = [len(tree) for tree in trees]
        require_attributes(_whole(header, b"tree_sizes").tolist() == sizes, "tree_sizes contradicts its trees")
    for index, tree in enumerate(trees):
        try:
            _check_tree(tree, features + 1)
        except ValueError as error:
            raise ValueError(f"tree {index}: {error}") from None
    return features + 1


def _check_tree(text: bytes, features: int) -> None:
    first, _, rest = text.replace(b"\r\n", b"\n").partition(b"\n")
    lines, _, after = rest.partition(b"\n\n")
    require_attributes(first.startswith(b"Tree=") and not after.strip(b"\n"), "it continues after its end")
    tree = _lines(lines)
    require_attributes(
        len(tree) <= _MAX_LINES and all(b"=" in line for line in lines.strip(b"\n").split(b"\n")),
        f"it has more than {_MAX_LINES} lines, or a line without value",
    )
    leaves, linear = _number(tree, b"num_leaves"), tree.get(b"is_linear", b"0").strip() != b"0"
    require_attributes(
        leaves >= 1 and _count(tree, b"leaf_value") == leaves, "num_leaves contradicts the length of its arrays"
    )
    if leaves > 1:
        _check_splits(tree, leaves, features)
    if linear:
        # Each leaf has a constant, and coefficients of its own features.
        counts, used = _whole(tree, b"num_features"), _whole(tree, b"leaf_features")
        require_attributes(
            len(counts) == _count(tree, b"leaf_const") == leaves, "num_leaves contradicts the length of its arrays"
        )
        whole = np.all(counts >= 0) and counts.sum() == len(used) == _count(tree, b"leaf_coeff")
        require_attributes(whole, "num_features contradicts its leaves")
        check_features(used, features)


def _check_splits(tree: Lines, leaves: int, features: int) -> None:
    left, right, used = (_whole(tree, name) for name in (b"left_child", b"right_child", b"split_feature"))
    lengths = {len(left), len(right), len(used)}
    lengths |= {_count(tree, name.encode()) for name in _OF_SPLITS if name.encode() in tree}
    lengths |= {_count(tree, name.encode()) - 1 for name in _OF_LEAVES if name.encode() in tree}
    require_attributes(
        lengths == {leaves - 1} and b"threshold" in tree, "num_leaves contradicts the length of its arrays"
    )
    # A child is the index of a split, or the bitwise complement of the index of a leaf.
    children, parents = np.concatenate([left, right]), np.tile(np.arange(leaves - 1), 2)
    inner = children >= 0
    check_links(np.arange(leaves - 1), parents[inner], children[inner])
    require_attributes(np.array_equal(np.sort(~children[~inner]), np.arange(leaves)), "a leaf is missing")
    check_features(used, features)
    # Sets of categories lie in cat_threshold; the threshold of a categorical split is the number of its set.
    sets = _number(tree, b"num_cat")
    ends = _whole(tree, b"cat_boundaries") if sets else np.zeros(1, np.int64)
    apart = len(ends) == sets + 1 and ends[0] == 0 and np.all(np.diff(ends) >= 0)
    require_attributes(
        apart and ends[-1] == (_count(tree, b"cat_threshold") if sets else 0), "its categories exceed their array"
    )
    kinds = _whole(tree, b"decision_type") if b"decision_type" in tree else np.zeros(0, np.int64)
    categorical = np.flatnonzero(kinds & _CATEGORICAL)
    if len(categorical):
        chosen = np.array(tree[b"threshold"].split(), dtype=np.float64)[categorical]
        require_attributes(np.all((chosen >= 0) & (chosen < sets)), "a set of categories is missing")


def _lines(text: bytes) -> Lines:
    """Parse lines of the form ``name=value``; the first line of a model has no name."""
    pairs = [line.partition(b"=") for line in text.replace(b"\r\n", b"\n").split(b"\n") if line]
    held = {name: value for name, _, value in pairs}
    require_attributes(len(held) == len(pairs) and b"" not in held, "a line is repeated")
    return held


def _count(lines: Lines, name: bytes) -> int:
    require_attributes(name in lines, f"{name.decode()} is missing")
    return len(lines[name].split())


def _whole(lines: Lines, name: bytes) -> Array:
    require_attributes(
        _WHOLE.fullmatch(lines.get(name, b"?")), f"{name.decode()} is missing, or does not hold whole numbers"
    )
    return np.array(lines[name].split(), dtype=np.int64)


def _number(lines: Lines, name: bytes) -> int:
    values = _whole(lines, name).tolist()
    require_attributes(len(values) == 1, f"{name.decode()} is not one number")
    return int(values[0])
