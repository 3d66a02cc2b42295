"""Columns of a LightGBM booster: names, and the categories of pandas columns."""

import re
from collections.abc import Sequence
from typing import Any

from shoal_runtime.errors import LoadError
from shoal_runtime.formats.columns import Column, category


def has_names(booster: Any) -> bool:
    """Return whether a booster was trained with column names, rather than on an array."""
    return not all(re.fullmatch(r"Column_\d+", name) for name in booster.feature_name())


def booster_columns(booster: Any) -> Sequence[Column]:
    """Return a booster's columns in the order of training.

    Raises:
        LoadError: the file does not assign categories to columns unambiguously.
    """
    names = booster.feature_name()
    categories = booster.pandas_categorical or []
    if not categories:
        return [Column(name, example=0.0) for name in names]
    # Columns marked as categorical, by position or name.
    places = booster.params.get("categorical_feature", booster.params.get("categorical_column"))
    places = [places] if isinstance(places, int) else places
    marked: Sequence[str] = []
    if places and not isinstance(places, str):
        marked = [names[place] if isinstance(place, int) else place for place in sorted(places)]
    # A code beyond a column's categories means that they belong to another column.
    trained = booster.dump_model(num_iteration=1)["feature_infos"]
    largest = [max(trained.get(name, {}).get("values", ()), default=-1) for name in marked]
    if len(marked) != len(categories) or any(
        code >= len(values) for code, values in zip(largest, categories, strict=True)
    ):
        raise LoadError(
            f"the model holds categories of {len(categories)} columns, but marks {len(marked)} columns as "
            "categorical. Train with unordered pandas categories and categorical_feature='auto'"
        )
    by_name = dict(zip(marked, categories, strict=True))
    return [category(name, by_name[name]) if name in by_name else Column(name, example=0.0) for name in names]
