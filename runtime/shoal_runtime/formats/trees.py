"""Trees of scikit-learn, which follow their links in native code and look at none: held within their arrays.

What they were read from is checked once; how wide the rows are that they meet, each time, for which estimator hands
them on is the file's to say.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from sklearn.ensemble._gb import BaseGradientBoosting
from sklearn.ensemble._hist_gradient_boosting.common import PREDICTOR_RECORD_DTYPE
from sklearn.ensemble._hist_gradient_boosting.predictor import TreePredictor
from sklearn.tree._tree import TREE_LEAF, Tree

from shoal_runtime.formats.links import check_features, check_links, require
from shoal_schema.wire.datatypes import Array


class BoundedTree(Tree):  # type: ignore[misc]  # it has no types
    """A checked tree, which reads no column that the rows lack; its `predict` asks `apply`."""

    def apply(self, rows: Any) -> Array:
        """Return each row's leaf."""
        require(rows.shape[1] >= self.n_features, "rows are narrower than a tree's features")
        leaves: Array = super().apply(rows)
        return leaves


class BoundedPredictor(TreePredictor):  # type: ignore[misc]  # it has no types
    """The same of histogram gradient boosting; its categories are looked up in what it is handed."""

    def predict(self, rows: Array, known_cat_bitsets: Array, f_idx_map: Array, n_threads: int) -> Array:
        """Return each row's value."""
        categories = f_idx_map[self.categorical_features] < len(known_cat_bitsets)
        fits = rows.shape[1] >= self.n_features and known_cat_bitsets.shape[1] == 8 and categories.all()
        require(fits, "rows or categories are fewer than a tree's")
        values: Array = super().predict(rows, known_cat_bitsets, f_idx_map, n_threads)
        return values


def bind_trees(root: Any) -> None:
    """Check all trees within an estimator, and put bounded ones in their places.

    Raises:
        ValueError: one could be led out of its arrays.
    """
    seen, left = {}, [root]
    while left:
        each = left.pop()
        if id(each) not in seen:
            seen[id(each)] = each  # kept, as an id is only its own while it lives
            _bind(each)
            left.extend(_parts(each))


def _parts(value: Any) -> Iterator[Any]:
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


def _bind(value: Any) -> None:
    own = getattr(value, "__dict__", {})
    require(type(value) is not Tree, "a tree belongs to no estimator")
    if type(own.get("tree_")) is Tree:
        own["tree_"] = _checked(own["tree_"], own.get("n_features_in_"))
    elif type(value) is TreePredictor:
        _check_predictor(value)
    elif isinstance(value, BaseGradientBoosting) and "estimators_" in own:
        features = max(each.tree_.n_features for each in value.estimators_.flat)
        own["_raw_predict_init"] = partial(_first_guess, value._raw_predict_init, features, value.estimators_.shape[1])


def _checked(tree: Any, features: Any) -> BoundedTree:
    require(0 < tree.node_count <= tree.capacity and tree.value.size, "a tree lacks nodes or values")
    inner = np.flatnonzero(tree.children_left != TREE_LEAF)
    children = np.concatenate([tree.children_left[inner], tree.children_right[inner]])
    check_links(np.arange(tree.node_count), np.tile(inner, 2), children)
    require(tree.n_features == features, "a tree has other features than its estimator")
    check_features(tree.feature[inner], features)
    _, arguments, state = tree.__reduce__()
    bounded = BoundedTree(*arguments)
    bounded.__setstate__(state)
    return bounded


def _check_predictor(predictor: Any) -> None:
    nodes = predictor.nodes = np.array(predictor.nodes)  # a copy: nobody writes into it afterwards
    require(nodes.dtype == PREDICTOR_RECORD_DTYPE and nodes.ndim == 1, "a tree's nodes are of another kind")
    inner = np.flatnonzero(nodes["is_leaf"] == 0)
    splits = nodes[inner]
    check_links(np.arange(len(nodes)), np.tile(inner, 2), np.concatenate([splits["left"], splits["right"]]))
    predictor.n_features = splits["feature_idx"].max(initial=-1) + 1
    check_features(splits["feature_idx"], predictor.n_features)
    categorical = splits[splits["is_categorical"] != 0]
    sets, words = predictor.raw_left_cat_bitsets.shape
    require(words == 8 and np.all(categorical["bitset_idx"] < sets), "a tree lacks sets of categories")
    predictor.categorical_features = categorical["feature_idx"]
    predictor.__class__ = BoundedPredictor


def _first_guess(original: Callable[[Any], Array], features: int, columns: int, rows: Any) -> Array:
    """Return what boosting adds its trees' values to: in native code, wherever that may lie."""
    guess = original(rows)
    fits = guess.shape == (rows.shape[0], columns) and rows.shape[1] >= features
    require(fits, "rows or first guesses are fewer than the trees'")
    return guess
