"""Checks of scikit-learn's trees, whose indices native code uses without checks.

A tree is checked once, when it is loaded. The number of features of the rows is checked in each call, because the file
determines which estimator passes rows to the tree.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from sklearn.ensemble._gb import BaseGradientBoosting
from sklearn.ensemble._hist_gradient_boosting.common import PREDICTOR_RECORD_DTYPE
from sklearn.ensemble._hist_gradient_boosting.predictor import TreePredictor
from sklearn.tree._tree import TREE_LEAF, Tree

from shoal_runtime.formats.links import check_features, check_links, require_attributes
from shoal_schema.wire.datatypes import Array


class BoundedTree(Tree):  # type: ignore[misc]  # it has no types
    """A checked tree that rejects rows with too few features.

    The check is in `apply`, because `predict` calls it.
    """

    def apply(self, rows: Any) -> Array:
        """Return the leaf of each row.

        Raises:
            ValueError: the rows have fewer features than the tree.
        """
        require_attributes(rows.shape[1] >= self.n_features, "a tree has more features than the rows have")
        leaves: Array = super().apply(rows)
        return leaves


class BoundedPredictor(TreePredictor):  # type: ignore[misc]  # it has no types
    """A checked tree of histogram gradient boosting that checks the width of its rows."""

    def predict(self, rows: Array, known_cat_bitsets: Array, f_idx_map: Array, n_threads: int) -> Array:
        """Return the tree's value for each row.

        Raises:
            ValueError: the rows have fewer features or categories than the tree.
        """
        categories = f_idx_map[self.categorical_features] < len(known_cat_bitsets)
        fits = rows.shape[1] >= self.n_features and known_cat_bitsets.shape[1] == 8 and categories.all()
        require_attributes(fits, "a tree has more rows or categories than there are")
        values: Array = super().predict(rows, known_cat_bitsets, f_idx_map, n_threads)
        return values


def bind_trees(root: Any) -> None:
    """Check all trees in an estimator, and replace them by trees that check their rows.

    Raises:
        ValueError: a tree has an invalid index.
    """
    seen, left = {}, [root]
    while left:
        each = left.pop()
        if id(each) in seen:
            continue
        seen[id(each)] = each  # kept alive, so that its id is not reused
        own = getattr(each, "__dict__", {})
        require_attributes(type(each) is not Tree, "a tree does not belong to an estimator")
        if type(own.get("tree_")) is Tree:
            own["tree_"] = _checked(own["tree_"], own.get("n_features_in_"))
        elif type(each) is TreePredictor:
            _check_predictor(each)
        elif isinstance(each, BaseGradientBoosting) and "estimators_" in own:
            features = max(one.tree_.n_features for one in each.estimators_.flat)
            first = partial(_first_guess, each._raw_predict_init, features, each.estimators_.shape[1])
            own["_raw_predict_init"] = first
        left.extend(_parts(each))


def _parts(value: Any) -> Iterator[Any]:
    """Yield the elements of a container, and the attributes of an object."""
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list | tuple | set):
        yield from value
    elif isinstance(value, np.ndarray) and value.dtype.hasobject:
        yield from np.asarray(value).ravel().tolist()
    elif isinstance(value, partial):
        yield from (value.func, value.args, value.keywords)
    if not isinstance(value, type):
        yield from getattr(value, "__dict__", {}).values()


def _checked(tree: Any, features: Any) -> BoundedTree:
    require_attributes(0 < tree.node_count <= tree.capacity and tree.value.size, "a tree has no nodes or values")
    # Leaves have no children.
    inner = np.flatnonzero(tree.children_left != TREE_LEAF)
    children = np.concatenate([tree.children_left[inner], tree.children_right[inner]])
    check_links(np.arange(tree.node_count), np.tile(inner, 2), children)
    require_attributes(tree.n_features == features, "the features of a tree and its estimator differ")
    check_features(tree.feature[inner], features)
    # The native arrays can only be set through the pickle protocol.
    _, arguments, state = tree.__reduce__()
    bounded = BoundedTree(*arguments)
    bounded.__setstate__(state)
    return bounded


def _check_predictor(predictor: Any) -> None:
    nodes = predictor.nodes = np.array(predictor.nodes)  # a copy, which nothing else can change
    require_attributes(
        nodes.dtype == PREDICTOR_RECORD_DTYPE and nodes.ndim == 1, "the nodes of a tree have another type"
    )
    inner = np.flatnonzero(nodes["is_leaf"] == 0)
    splits = nodes[inner]
    check_links(np.arange(len(nodes)), np.tile(inner, 2), np.concatenate([splits["left"], splits["right"]]))
    predictor.n_features = splits["feature_idx"].max(initial=-1) + 1
    check_features(splits["feature_idx"], predictor.n_features)
    categorical = splits[splits["is_categorical"] != 0]
    sets, words = predictor.raw_left_cat_bitsets.shape
    require_attributes(words == 8 and np.all(categorical["bitset_idx"] < sets), "a tree has too few sets of categories")
    predictor.categorical_features = categorical["feature_idx"]
    # In place, since other objects may refer to it.
    predictor.__class__ = BoundedPredictor


def _first_guess(original: Callable[[Any], Array], features: int, columns: int, rows: Any) -> Array:
    """Return the initial values of gradient boosting, after a check of their shape."""
    guess = original(rows)
    fits = guess.shape == (rows.shape[0], columns) and rows.shape[1] >= features
    require_attributes(fits, "fewer rows or initial values than the trees have")
    return guess
