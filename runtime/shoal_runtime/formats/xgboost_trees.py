"""Checks of XGBoost model files, whose indices xgboost uses without checks."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from shoal_runtime.formats import ubjson
from shoal_runtime.formats.links import check_features, check_links, require_attributes
from shoal_schema.wire.datatypes import Array

_NODE_ARRAYS: Final = ("default_left", "loss_changes", "parents", "split_conditions", "split_type", "sum_hessian")
_DELETED: Final = 2**31 - 1
"""Feature of a pruned node that keeps its place."""
_MAX_CATEGORY: Final = 2**24
"""Limit of xgboost: larger integers are not exact in float32."""
_MISPLACED: Final = (LookupError, TypeError, AttributeError, OverflowError)

Json = Mapping[str, Any]


def check(data: bytes) -> int:
    """Check that every index in a model (JSON or UBJSON) is within its array; return the number of features.

    Raises:
        ValueError: an index is out of range, or the document is not in xgboost's format.
    """
    try:
        document = json.loads(data, object_pairs_hook=_distinct) if data[1:2] in b'" \r\n\t' else ubjson.decode(data)
        return _check_learner(document["learner"])
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except _MISPLACED as error:
        raise ValueError(f"a value is missing or has an unexpected type ({error})") from None


def _distinct(pairs: Sequence[tuple[str, Any]]) -> Json:
    held = dict(pairs)
    require_attributes(len(held) == len(pairs), "a name is repeated in an object")
    return held


def _check_learner(learner: Json) -> int:
    stated = learner["learner_model_param"]
    features, classes, targets = (_number(stated.get(name, "1")) for name in ("num_feature", "num_class", "num_target"))
    groups = max(classes, targets, 1)
    require_attributes(features >= 0 and classes >= 0 and targets >= 1, "its number of features or outputs is negative")
    for name in ("feature_names", "feature_types"):
        require_attributes(
            len(learner.get(name, ())) in (0, features), f"the number of {name} differs from num_feature"
        )
    for parameters in learner["objective"].values():
        if isinstance(parameters, dict) and "num_class" in parameters:
            require_attributes(_number(parameters["num_class"]) == classes, "num_class of its objective differs")
    bases = stated["base_score"].strip("[]").split(",")
    require_attributes(len(bases) in (1, groups), "base_score must have one number per output")
    booster = learner["gradient_booster"]
    # A linear booster has one weight per feature and output, and a bias per output.
    if booster["name"] == "gblinear":
        require_attributes(
            len(booster["model"]["weights"]) == (features + 1) * groups, "it must have one weight per feature"
        )
        return features
    trees = booster.get("gbtree", booster)["model"]
    require_attributes(booster["name"] in ("gbtree", "dart"), "its booster is of an unknown type")
    require_attributes(
        len(booster.get("weight_drop", trees["trees"])) == len(trees["trees"]), "weight_drop is too short"
    )
    require_attributes(booster["name"] == "gbtree" or "weight_drop" in booster, "weight_drop is missing")
    _check_forest(trees, features, groups, len(bases))
    # Names of categories, which predictions use only with frames.
    names = trees.get("cats", {})
    ends, order = _whole(names.get("feature_segments", ())), _whole(names.get("sorted_idx", ()))
    disjoint = np.all(np.diff(ends, prepend=0) >= 0) and ends.max(initial=0) == len(order)
    require_attributes(disjoint, "the names of its categories overlap")
    require_attributes(np.all((order >= 0) & (order < max(1, len(order)))), "the name of a category is missing")
    for column in names.get("enc", ()):
        cuts = _whole(column.get("offsets", ()))
        whole = np.all(np.diff(cuts, prepend=0) >= 0) and cuts.max(initial=0) in (0, len(column["values"]))
        require_attributes(whole, "the name of a category is missing")
    return features


def _check_forest(model: Json, features: int, groups: int, bases: int) -> None:
    trees = model["trees"]
    stated, info = model["gbtree_model_param"], _whole(model["tree_info"])
    require_attributes(
        _number(stated["num_trees"]) == len(trees) == len(info), "num_trees contradicts the number of its trees"
    )
    require_attributes(np.all((info >= 0) & (info < groups)), "a tree belongs to a class that does not exist")
    rounds = _whole(model.get("iteration_indptr", [0, len(trees)]))
    whole = rounds[0] == 0 and rounds[-1] == len(trees) and np.all(np.diff(rounds) >= 0)
    require_attributes(whole and _number(stated.get("num_parallel_tree", "1")) >= 0, "its rounds contradict its trees")
    # With vector leaves every tree predicts all outputs.
    sizes = {max(1, _number(tree["tree_param"].get("size_leaf_vector", "1"))) for tree in trees} or {1}
    require_attributes(sizes in ({1}, {groups}), "the width of its leaves differs from its outputs")
    require_attributes(groups <= max(len(trees) * max(sizes), bases), "it has more outputs than trees")
    for index, tree in enumerate(trees):
        try:
            _check_tree(tree, features, max(sizes))
        except ValueError as error:
            raise ValueError(f"tree {index}: {error}") from None


def _check_tree(tree: Json, features: int, width: int) -> None:
    left, right, used = (_whole(tree[name]) for name in ("left_children", "right_children", "split_indices"))
    count = _number(tree["tree_param"]["num_nodes"])
    lengths = {len(left), len(right), len(used), *(len(tree[name]) for name in _NODE_ARRAYS if name in tree)}
    require_attributes(lengths == {count}, "num_nodes contradicts the length of its arrays")
    inner, leaves = np.flatnonzero(left != -1), np.flatnonzero(left == -1)
    # Pruned nodes keep their place, and are no node's child.
    nodes = np.flatnonzero((left != -1) | (used != _DELETED))
    check_links(nodes, np.tile(inner, 2), np.concatenate([left[inner], right[inner]]))
    parents = _whole(tree["parents"])[1:]
    require_attributes(np.all((parents >= 0) & (parents < count)), "the parent of a node is missing")
    check_features(used[inner], features)
    held = len(tree["base_weights"])
    if width > 1 and "leaf_weights" in tree:
        # The right child of a leaf is the index of its values.
        own = right[leaves]
        values = len(tree["leaf_weights"])
        require_attributes(
            np.all((own >= 0) & (own < values // width)) and values % width == 0, "the values of a leaf are missing"
        )
    require_attributes(held in (0, count * width) if width > 1 else held == count, "its weights contradict its nodes")
    # Sets of categories of categorical splits, stored one after another.
    kinds = _whole(tree.get("split_type", ()))
    nodes, begin, size = (_whole(tree.get(f"categories_{name}", ())) for name in ("nodes", "segments", "sizes"))
    categories = _whole(tree.get("categories", ()))
    known = np.array_equal(nodes, np.flatnonzero(kinds == 1)) and np.all(np.isin(nodes, inner))
    require_attributes(np.all((kinds == 0) | (kinds == 1)), "a split is of an unknown type")
    require_attributes(known and len(nodes) == len(begin) == len(size), "its categories contradict its splits")
    apart = np.array_equal(begin, np.cumsum(size) - size) and np.all(size >= 0) and size.sum() == len(categories)
    require_attributes(apart, "its categories exceed their array")
    require_attributes(np.all((categories >= 0) & (categories < _MAX_CATEGORY)), "a category is out of range")


def _whole(values: Any) -> Array:
    array = np.asarray(values)
    require_attributes(
        array.ndim == 1 and (array.dtype.kind in "iu" or not array.size), "an array must hold whole numbers"
    )
    return array.astype(np.int64)


def _number(text: Any) -> int:
    require_attributes(
        isinstance(text, str) and re.fullmatch(r"-?\d{1,12}", text, re.ASCII), f"{str(text)[:40]!r} is not a number"
    )
    return int(text)
