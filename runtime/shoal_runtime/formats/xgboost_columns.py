"""Columns of an XGBoost booster: names, types, and the categories of pandas columns."""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from shoal_runtime.errors import LoadError
from shoal_runtime.formats.columns import Column, category, listed

CATEGORY: Final = "c"
"""Type of a categorical column."""


def booster_columns(booster: Any) -> Sequence[Column]:
    """Return a booster's columns in the order of training.

    If the file stores neither column names nor categories, a categorical column holds integer codes.

    Raises:
        LoadError: the model was trained on categories that the file does not store completely.
    """
    names = booster.feature_names or [str(place) for place in range(booster.num_features())]
    types = booster.feature_types or [""] * len(names)
    if CATEGORY not in types:
        return [Column(name, "FP32", example=0.0) for name in names]
    # Releases before 3.1 do not store categories.
    gradient_booster = json.loads(bytes(booster.save_raw("json")))["learner"]["gradient_booster"]
    model = gradient_booster.get("gbtree", gradient_booster)["model"]
    held = [_values(each) for each in model.get("cats", {}).get("enc", ())] or [()] * len(names)
    rows = list(zip(names, types, held, strict=True))
    unknown = [name for name, kind, values in rows if kind == CATEGORY and not values]
    if unknown and booster.feature_names:
        raise LoadError(
            f"the model was trained on pandas categories ({listed(unknown)}) that are missing in the file. Train "
            "and save it with xgboost 3.1 or later, or train it on integer codes in an array without column names"
        )
    return [
        category(name, values, "FP32", rejects_unknown=True) if values else Column(name, "FP32", example=0.0)
        for name, _, values in rows
    ]


def _values(encoded: Mapping[str, Any]) -> Sequence[Any]:
    """Decode one column's categories: numbers, or texts stored as bytes with end offsets."""
    values = encoded.get("values", [])
    if "offsets" not in encoded:
        return list(values)
    text = bytes(byte & 0xFF for byte in values)
    if not text.isascii():
        # xgboost 3.2 counts characters instead of bytes, so texts are cut and shifted.
        raise LoadError(
            "the model was trained on pandas categories beyond ASCII, which xgboost does not store correctly. Train it"
            " on ASCII texts or numbers"
        )
    return [text[start:end].decode() for start, end in pairwise(encoded["offsets"])]
