"""What an XGBoost booster says of its columns: names, types, and the categories of pandas columns."""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from shoal_runtime.errors import LoadError
from shoal_runtime.formats.columns import Column, category, listed

CATEGORY: Final = "c"
"""The type of a categorical column."""


def booster_columns(booster: Any) -> Sequence[Column]:
    """Return the columns in the order of training; numbers may be missing.

    A model that was trained on codes, without names of columns, takes codes.

    Raises:
        LoadError: the model was trained on categories, and does not hold them, or not whole.
    """
    names = booster.feature_names or [str(place) for place in range(booster.num_features())]
    types = booster.feature_types or [""] * len(names)
    if CATEGORY not in types:
        return [Column(name, "FP32", example=0.0) for name in names]
    held = _categories(booster) or [()] * len(names)
    rows = list(zip(names, types, held, strict=True))
    unknown = [name for name, kind, values in rows if kind == CATEGORY and not values]
    if unknown and booster.feature_names:
        raise LoadError(
            f"the model was trained on pandas categories ({listed(unknown)}), and the file does not hold them: xgboost"
            " stores them from version 3.1 on. Train and save it there, or train it on codes in an array without names"
        )
    return [
        category(name, values, "FP32", rejects_unknown=True) if values else Column(name, "FP32", example=0.0)
        for name, _, values in rows
    ]


def _categories(booster: Any) -> Sequence[Sequence[Any]]:
    """Return the categories of each column, as the model's JSON holds them; releases before 3.1 store none."""
    gradient_booster = json.loads(bytes(booster.save_raw("json")))["learner"]["gradient_booster"]
    model = gradient_booster.get("gbtree", gradient_booster)["model"]
    return [_values(each) for each in model.get("cats", {}).get("enc", ())]


def _values(encoded: Mapping[str, Any]) -> Sequence[Any]:
    """Return one column's categories: numbers, or texts as bytes with the ends of each."""
    values = encoded.get("values", [])
    if "offsets" not in encoded:
        return list(values)
    text = bytes(byte & 0xFF for byte in values)
    if not text.isascii():
        # xgboost 3.2 counts characters of pandas categories where it means bytes: what follows is cut and shifted.
        raise LoadError(
            "the model was trained on pandas categories beyond ASCII, which xgboost does not store whole: train it on"
            " ASCII texts or on numbers instead"
        )
    return [text[start:end].decode() for start, end in pairwise(encoded["offsets"])]
