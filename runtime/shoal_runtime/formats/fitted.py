"""Columns that a fitted scikit-learn estimator was trained on.

The parts of an estimator determine them: encoders store the values of their columns, vectorizers read text, imputers
accept nulls, and composites assign columns to other parts. Any other column holds numbers.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from shoal_runtime.formats.columns import Column, category, is_missing
from shoal_runtime.formats.lightgbm_columns import booster_columns as lightgbm_columns
from shoal_runtime.formats.xgboost_columns import booster_columns as xgboost_columns

Columns = dict[str, Column]
_INNER: Final = ("best_estimator_", "regressor_", "estimator_", "classifier_")
"""Attributes of meta-estimators that hold the fitted estimator."""
_SEVERAL: Final = ("estimators_", "calibrated_classifiers_")
"""Attributes of ensembles that hold their estimators."""


def fitted_columns(estimator: Any, names: Sequence[str]) -> list[Column]:
    """Return the columns of a fitted estimator, in the order of training.

    Args:
        estimator: fitted estimator.
        names: names of its columns.

    Raises:
        LoadError: the categories of a column cannot be served.
    """
    known = _columns_of(estimator, list(names))
    return [known.get(name, Column(name, example=0.0)) for name in names]


def _columns_of(estimator: Any, names: list[str]) -> Columns:
    """Return the columns that a part of an estimator describes.

    A part describes a column if it determines the column's datatype, valid values or nulls. Columns of ``names`` that
    are not described are omitted.
    """
    for read in _READERS:
        if (known := read(estimator, names)) is not None:
            return known
    return {}


def _pipeline(estimator: Any, names: list[str]) -> Columns | None:
    """Return the columns that the steps of a scikit-learn pipeline describe.

    The first step receives the columns. Later steps also receive them if only imputers and functions come before.

    Returns:
        Columns by name; None if the estimator is not a pipeline.
    """
    if not hasattr(estimator, "named_steps"):
        return None
    known: Columns = {}
    computed = False
    for _, step in estimator.steps:
        if step in (None, "passthrough"):
            continue
        found = _columns_of(step, names)
        if computed:  # a function computes with exact numbers; a later step rounds only its result
            found = _unrounded(found)
        computed = computed or hasattr(step, "func")
        # The imputer's null, and everything else from the later step.
        known |= {
            name: replace(column, missing=known[name].missing) if name in known else column
            for name, column in found.items()
        }
        if not hasattr(step, "statistics_") and not hasattr(step, "func"):
            break
    return known


def _unrounded(known: Columns) -> Columns:
    wide = {name: replace(column, datatype="FP64") for name, column in known.items() if column.datatype == "FP32"}
    return {**known, **wide}


def _column_transformer(estimator: Any, names: list[str]) -> Columns | None:
    parts = getattr(estimator, "transformers_", None)
    if parts is None:
        return None
    known: Columns = {}
    for _, part, chosen in parts:
        # Columns are selected by a slice, a mask, names or positions.
        if isinstance(chosen, slice):
            places = [names.index(end) if isinstance(end, str) else end for end in (chosen.start, chosen.stop)]
            if isinstance(chosen.stop, str):  # slices of names include the end
                places[1] += 1
            own = names[slice(*places)]
        else:
            several = [chosen] if isinstance(chosen, str | int) else list(chosen)
            if several and all(isinstance(each, bool | np.bool_) for each in several):
                own = [name for name, taken in zip(names, several, strict=True) if taken]
            else:
                own = [each if isinstance(each, str) else names[each] for each in several]
        if isinstance(part, str):
            dropped = part == "drop"
            found = {name: Column(name, example=0.0, used=not dropped) for name in own}
        else:
            found = {name: Column(name, example=0.0) for name in own} | _columns_of(part, own)
        for name, column in found.items():
            # If several parts use a column, prefer the one that knows its values.
            specific = column.datatype != "FP64" or column.categories is not None
            if name not in known or specific:
                known[name] = column
    return known


def _union(estimator: Any, names: list[str]) -> Columns | None:
    parts = getattr(estimator, "transformer_list", None)
    if parts is None:
        return None
    known: Columns = {}
    for _, part in parts:
        known = {**_columns_of(part, names), **known}
    return known


def _encoder(estimator: Any, names: list[str]) -> Columns | None:
    values = getattr(estimator, "categories_", None)
    if values is None or len(values) != len(names):
        return None
    columns: Columns = {}
    for name, held in zip(names, values, strict=True):
        columns[name] = Column(name, example=0.0)
        missing = next((value for value in held if is_missing(value)), np.nan)
        known = [value for value in held if not is_missing(value)]
        if known:
            # Numbers stay numbers: an encoder compares them in the precision of training.
            columns[name] = replace(category(name, known), categories=None, known=tuple(known), missing=missing)
            if getattr(held, "dtype", None) == np.float32:
                columns[name] = replace(columns[name], datatype="FP32")
    return columns


def _imputer(estimator: Any, names: list[str]) -> Columns | None:
    statistics = getattr(estimator, "statistics_", None)
    if statistics is None or len(statistics) != len(names):
        return None
    # With another marker for missing values, requests send that marker as a value.
    missing = None if getattr(estimator, "missing_values", np.nan) is None else np.nan
    known: Columns = {}
    for name, value in zip(names, statistics, strict=True):
        text = isinstance(value, str)
        known[name] = Column(name, "BYTES" if text else "FP64", missing=missing, example=value if text else 0.0)
    return known


def _vectorizer(estimator: Any, names: list[str]) -> Columns | None:
    takes_texts = hasattr(estimator, "build_analyzer") and len(names) == 1
    words = tuple(word for word in getattr(estimator, "vocabulary_", None) or () if isinstance(word, str))
    return {names[0]: Column(names[0], "BYTES", example="", known=words)} if takes_texts else None


def _gradient_boosting(estimator: Any, names: list[str]) -> Columns | None:
    if getattr(estimator, "is_categorical_", None) is None:
        return None
    # No public attribute has the type of the categories. Without the encoder they count as numbers, and are tried.
    encoder = getattr(estimator, "_preprocessor", None)
    return _columns_of(encoder, names) if encoder is not None else {}


def _boosters(estimator: Any, names: list[str]) -> Columns | None:
    found: Sequence[Column] | None = None
    if hasattr(estimator, "booster_"):
        found = lightgbm_columns(estimator.booster_)
    elif callable(getattr(estimator, "get_booster", None)):
        found = xgboost_columns(estimator.get_booster())
    if found is None or len(found) != len(names):
        return None
    return {name: replace(column, name=name) for name, column in zip(names, found, strict=True)}


def _inner(estimator: Any, names: list[str]) -> Columns | None:
    inner = [getattr(estimator, name) for name in _INNER if getattr(estimator, name, None) is not None]
    # Each of these is trained on the same columns.
    for name in _SEVERAL:
        several = np.ravel(np.asarray(getattr(estimator, name, ()), dtype=object))
        inner += [getattr(each, "estimator", each) for each in several]
    found = [_columns_of(each, names) for each in inner]
    known = next(filter(None, found), None)
    if known is None:
        return None
    # If the members differ, a member that takes exact numbers must not get them rounded for another.
    alike = all(each.keys() == known.keys() for each in found)
    return known if alike else _unrounded(known)


_READERS: Final[Sequence[Callable[[Any, list[str]], Columns | None]]] = (
    _pipeline,
    _column_transformer,
    _union,
    _boosters,
    _gradient_boosting,
    _encoder,
    _imputer,
    _vectorizer,
    _inner,
)
"""Readers by kind of estimator; the first that recognizes the estimator returns its columns."""
