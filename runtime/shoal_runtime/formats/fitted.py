"""What a fitted scikit-learn estimator says of the columns that it was trained on.

Encoders hold the values of their columns, vectorizers take texts, imputers take nulls; composites say which of their
parts gets which column. What nothing is said of is a column of numbers.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from shoal_runtime.formats.columns import Column, category, is_missing
from shoal_runtime.formats.lightgbm_columns import booster_columns as lightgbm_columns
from shoal_runtime.formats.xgboost_columns import booster_columns as xgboost_columns

Columns = dict[str, Column]
_INNER: Final = ("best_estimator_", "regressor_", "estimator_", "classifier_")
"""Where an estimator of estimators holds the one that it fitted."""
_SEVERAL: Final = ("estimators_", "calibrated_classifiers_")


def fitted_columns(estimator: Any, names: Sequence[str]) -> list[Column]:
    """Return the columns of an estimator, in the order of training.

    Args:
        estimator: fitted.
        names: of its columns.

    Raises:
        LoadError: a column's categories cannot be served.
    """
    known = _columns_of(estimator, list(names))
    return [known.get(name, Column(name, example=0.0)) for name in names]


def _columns_of(estimator: Any, names: list[str]) -> Columns:
    """Return what is known of these columns, which the estimator is given."""
    for read in _READERS:
        if (known := read(estimator, names)) is not None:
            return known
    return {}


def _pipeline(estimator: Any, names: list[str]) -> Columns | None:
    """Return what the first steps say: imputers and functions keep most columns, so the steps behind them count too."""
    if not hasattr(estimator, "named_steps"):
        return None
    known: Columns = {}
    computed = False
    for _, step in estimator.steps:
        if step in (None, "passthrough"):
            continue
        found = _columns_of(step, names)
        if computed:  # by a function, with the numbers as they come: what a later step rounds is its result
            found = _unrounded(found)
        computed = computed or hasattr(step, "func")
        known |= {name: _both(known[name], column) if name in known else column for name, column in found.items()}
        if not hasattr(step, "statistics_") and not hasattr(step, "func"):
            break
    return known


def _unrounded(known: Columns) -> Columns:
    wide = {name: replace(column, datatype="FP64") for name, column in known.items() if column.datatype == "FP32"}
    return {**known, **wide}


def _both(imputed: Column, column: Column) -> Column:
    return replace(column, missing=imputed.missing)


def _column_transformer(estimator: Any, names: list[str]) -> Columns | None:
    parts = getattr(estimator, "transformers_", None)
    if parts is None:
        return None
    known: Columns = {}
    for _, part, chosen in parts:
        own = _chosen(chosen, names)
        if isinstance(part, str):
            dropped = part == "drop"
            found = {name: Column(name, example=0.0, used=not dropped) for name in own}
        else:
            found = {name: Column(name, example=0.0) for name in own} | _columns_of(part, own)
        # Of several parts that take one column, the one that knows its values; an unused one is used elsewhere.
        known |= {name: column for name, column in found.items() if name not in known or _tells(column)}
    return known


def _tells(column: Column) -> bool:
    return column.datatype != "FP64" or column.categories is not None


def _chosen(chosen: Any, names: list[str]) -> list[str]:
    """Return the names that a ColumnTransformer's choice means: names, places, a slice or a mask."""
    if isinstance(chosen, slice):
        places = [names.index(end) if isinstance(end, str) else end for end in (chosen.start, chosen.stop)]
        if isinstance(chosen.stop, str):  # of names both ends count
            places[1] += 1
        return names[slice(*places)]
    several = [chosen] if isinstance(chosen, str | int) else list(chosen)
    if several and all(isinstance(each, bool | np.bool_) for each in several):
        return [name for name, taken in zip(names, several, strict=True) if taken]
    return [each if isinstance(each, str) else names[each] for each in several]


def _union(estimator: Any, names: list[str]) -> Columns | None:
    parts = getattr(estimator, "transformer_list", None)
    if parts is None:
        return None
    known: Columns = {}
    for _, part in parts:
        known = {**_columns_of(part, names), **known}
    return known


def _encoder(estimator: Any, names: list[str]) -> Columns | None:
    """Return the columns of an encoder, of whose categories each has a type."""
    values = getattr(estimator, "categories_", None)
    if values is None or len(values) != len(names):
        return None
    return {name: _encoded(name, held) for name, held in zip(names, values, strict=True)}


def _encoded(name: str, values: Any) -> Column:
    held = list(values)
    missing = next((value for value in held if is_missing(value)), np.nan)
    known = [value for value in held if not is_missing(value)]
    if not known:
        return Column(name, example=0.0)
    # Numbers stay such: an encoder compares them, in the precision of training.
    column = replace(category(name, known), categories=None, known=tuple(known), missing=missing)
    return replace(column, datatype="FP32") if getattr(values, "dtype", None) == np.float32 else column


def _imputer(estimator: Any, names: list[str]) -> Columns | None:
    statistics = getattr(estimator, "statistics_", None)
    if statistics is None or len(statistics) != len(names):
        return None
    # Another marker stands for what was missing in training, and is a value that clients send; null is none.
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
    """Return the columns of histogram gradient boosting, whose encoder of categories is an attribute of its own."""
    if getattr(estimator, "is_categorical_", None) is None:
        return None
    # Nothing public says of which type the categories were; without it they are taken for numbers, and tried.
    encoder = getattr(estimator, "_preprocessor", None)
    return _columns_of(encoder, names) if encoder is not None else {}


def _boosters(estimator: Any, names: list[str]) -> Columns | None:
    """Return the columns of the estimators of lightgbm and xgboost."""
    found: Sequence[Column] | None = None
    if hasattr(estimator, "booster_"):
        found = lightgbm_columns(estimator.booster_)
    elif callable(getattr(estimator, "get_booster", None)):
        found = xgboost_columns(estimator.get_booster())
    if found is None or len(found) != len(names):
        return None
    return {name: replace(column, name=name) for name, column in zip(names, found, strict=True)}


def _inner(estimator: Any, names: list[str]) -> Columns | None:
    """Return what the estimators inside of another say, which are given the same columns."""
    found = [_columns_of(inner, names) for inner in _inner_estimators(estimator)]
    known = next(filter(None, found), None)
    if known is None:
        return None
    # A member that takes numbers as they come would get them rounded to what another takes.
    alike = all(each.keys() == known.keys() for each in found)
    return known if alike else _unrounded(known)


def _inner_estimators(estimator: Any) -> Iterable[Any]:
    for attribute in _INNER:
        if (inner := getattr(estimator, attribute, None)) is not None:
            yield inner
    for attribute in _SEVERAL:
        for inner in np.ravel(np.asarray(getattr(estimator, attribute, ()), dtype=object)):
            yield getattr(inner, "estimator", inner)


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
"""The first that knows the kind of an estimator tells its columns."""
