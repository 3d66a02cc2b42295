"""What xgboost reads of its file, and follows without a look: checked before it does."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from shoal_runtime.formats import ubjson
from shoal_runtime.formats.links import check_features, check_links, require
from shoal_schema.wire.datatypes import Array

_NODE_ARRAYS: Final = ("default_left", "loss_changes", "parents", "split_conditions", "split_type", "sum_hessian")
_DELETED: Final = 2**31 - 1
"""The feature of a node that was pruned, and whose place was kept."""
_MAX_CATEGORY: Final = 2**24
"""From where a float no longer tells all whole numbers, xgboost takes none."""
_MISPLACED: Final = (LookupError, TypeError, AttributeError, OverflowError)

Json = Mapping[str, Any]


def check(data: bytes) -> int:
    """Check that nothing in a model, JSON or UBJSON, leads out of its arrays; return how many features it has.

    Raises:
        ValueError: something does, or is not as xgboost writes it.
    """
    try:
        document = json.loads(data, object_pairs_hook=_distinct) if data[1:2] in b'" \r\n\t' else ubjson.decode(data)
        return _check_learner(document["learner"])
    except RecursionError:
        raise ValueError("it nests too deep") from None
    except _MISPLACED as error:
        raise ValueError(f"something is missing, or not what xgboost writes ({error})") from None


def _distinct(pairs: Sequence[tuple[str, Any]]) -> Json:
    held = dict(pairs)
    require(len(held) == len(pairs), "a name stands twice in one object")
    return held


def _check_learner(learner: Json) -> int:
    told = learner["learner_model_param"]
    features, classes, targets = (_number(told.get(name, "1")) for name in ("num_feature", "num_class", "num_target"))
    groups = max(classes, targets, 1)
    require(features >= 0 and classes >= 0 and targets >= 1, "it has fewer than no features or outputs")
    for name in ("feature_names", "feature_types"):
        require(len(learner.get(name, ())) in (0, features), f"{name} are not as many as its features")
    for parameters in learner["objective"].values():
        if isinstance(parameters, dict) and "num_class" in parameters:
            require(_number(parameters["num_class"]) == classes, "its objective has other classes")
    bases = told["base_score"].strip("[]").split(",")
    require(len(bases) in (1, groups), "base_score has not one number for each output")
    booster = learner["gradient_booster"]
    if booster["name"] == "gblinear":
        require(len(booster["model"]["weights"]) == (features + 1) * groups, "its weights are not one for each feature")
        return features
    trees = booster.get("gbtree", booster)["model"]
    require(booster["name"] in ("gbtree", "dart"), "it is of an unknown kind of booster")
    require(len(booster.get("weight_drop", trees["trees"])) == len(trees["trees"]), "weight_drop is too short")
    require(booster["name"] == "gbtree" or "weight_drop" in booster, "weight_drop is missing")
    _check_forest(trees, features, groups, len(bases))
    _check_names(trees.get("cats", {}))
    return features


def _check_forest(model: Json, features: int, groups: int, bases: int) -> None:
    trees = model["trees"]
    told, info = model["gbtree_model_param"], _whole(model["tree_info"])
    require(_number(told["num_trees"]) == len(trees) == len(info), "its trees are fewer or more than it says")
    require(np.all((info >= 0) & (info < groups)), "a tree is of a class that is not there")
    rounds = _whole(model.get("iteration_indptr", [0, len(trees)]))
    whole = rounds[0] == 0 and rounds[-1] == len(trees) and np.all(np.diff(rounds) >= 0)
    require(whole and _number(told.get("num_parallel_tree", "1")) >= 0, "its rounds are not those of its trees")
    sizes = {max(1, _number(tree["tree_param"].get("size_leaf_vector", "1"))) for tree in trees} or {1}
    require(sizes in ({1}, {groups}), "its leaves are not as wide as its outputs")
    require(groups <= max(len(trees) * max(sizes), bases), "it has more outputs than trees")
    for index, tree in enumerate(trees):
        try:
            _check_tree(tree, features, max(sizes))
        except ValueError as error:
            raise ValueError(f"tree {index}: {error}") from None


def _check_tree(tree: Json, features: int, width: int) -> None:
    left, right, used = (_whole(tree[name]) for name in ("left_children", "right_children", "split_indices"))
    count = _number(tree["tree_param"]["num_nodes"])
    lengths = {len(left), len(right), len(used), *(len(tree[name]) for name in _NODE_ARRAYS if name in tree)}
    require(lengths == {count}, "num_nodes is not the length of its arrays")
    inner, leaves = np.flatnonzero(left != -1), np.flatnonzero(left == -1)
    nodes = np.flatnonzero((left != -1) | (used != _DELETED))
    check_links(nodes, np.tile(inner, 2), np.concatenate([left[inner], right[inner]]))
    parents = _whole(tree["parents"])[1:]
    require(np.all((parents >= 0) & (parents < count)), "a node's parent is not there")
    check_features(used[inner], features)
    held = len(tree["base_weights"])
    if width > 1 and "leaf_weights" in tree:
        own = right[leaves]
        values = len(tree["leaf_weights"])
        require(np.all((own >= 0) & (own < values // width)) and values % width == 0, "a leaf has no values")
    require(held in (0, count * width) if width > 1 else held == count, "its weights are not those of its nodes")
    _check_categories(tree, inner)


def _check_categories(tree: Json, inner: Array) -> None:
    kinds = _whole(tree.get("split_type", ()))
    nodes, begin, size = (_whole(tree.get(f"categories_{name}", ())) for name in ("nodes", "segments", "sizes"))
    categories = _whole(tree.get("categories", ()))
    known = np.array_equal(nodes, np.flatnonzero(kinds == 1)) and np.all(np.isin(nodes, inner))
    require(np.all((kinds == 0) | (kinds == 1)), "a split is of an unknown type")
    require(known and len(nodes) == len(begin) == len(size), "its categories are not those of its splits")
    # One after another, as it writes them.
    apart = np.array_equal(begin, np.cumsum(size) - size) and np.all(size >= 0) and size.sum() == len(categories)
    require(apart, "its categories lie beyond their array")
    require(np.all((categories >= 0) & (categories < _MAX_CATEGORY)), "a category is out of range")


def _check_names(names: Json) -> None:
    """Check what categories are called, of which predictions ask only for a frame."""
    ends, order = _whole(names.get("feature_segments", ())), _whole(names.get("sorted_idx", ()))
    require(
        np.all(np.diff(ends, prepend=0) >= 0) and ends.max(initial=0) == len(order), "its categories' names overlap"
    )
    require(np.all((order >= 0) & (order < max(1, len(order)))), "a category's name is not there")
    for column in names.get("enc", ()):
        cuts = _whole(column.get("offsets", ()))
        whole = np.all(np.diff(cuts, prepend=0) >= 0) and cuts.max(initial=0) in (0, len(column["values"]))
        require(whole, "a category's name is not there")


def _whole(values: Any) -> Array:
    array = np.asarray(values)
    require(array.ndim == 1 and (array.dtype.kind in "iu" or not array.size), "what should be whole numbers is not")
    return array.astype(np.int64)


def _number(text: Any) -> int:
    require(isinstance(text, str) and re.fullmatch(r"-?\d{1,12}", text, re.ASCII), f"{str(text)[:40]!r} is no number")
    return int(text)
