"""Example values for the inputs of a table model, with which warm-up tries the model.

They are values that the trained model knows, such as its categories.
"""

from collections.abc import Sequence
from typing import Any, Final

from shoal_runtime.formats.columns import DATETIME, INPUT, Column, is_missing
from shoal_runtime.signature.spec import TensorSpec

Values = Sequence[Any]
MOST: Final = 32
"""Maximum values per column."""


def trial_values(inputs: Sequence[TensorSpec], columns: Sequence[Column]) -> dict[str, list[Values]]:
    """Return values from training with which to test a model, by input.

    For each input there is one list of values per column. Inputs whose columns have no such values are omitted.

    Args:
        inputs: the model's inputs: one per column, or one tensor of all columns.
        columns: columns in the model's order.
    """
    by_name = {column.name: column for column in columns}
    by_input = {column.input or column.name: column for column in columns}
    chosen: dict[str, list[Values]] = {}
    for spec in inputs:
        # One input per column, else one tensor of named or all columns.
        if len(spec.shape) == 1:
            found = [by_input.get(spec.name)]
        elif spec.columns:
            found = [by_name.get(name) for name in spec.columns]
        else:
            found = list(columns) if [len(columns)] == list(spec.row_shape) else []
        values: list[Values] = []
        texts = spec.datatype == "BYTES"
        for column in found:
            if column is None or DATETIME in (spec.logical_type, column.logical_type):
                values.append(())
                continue
            # Trials of nulls are separate.
            known = [value for value in column.categories or column.known if not is_missing(value)]
            if not known and texts and column.example:
                known = [column.example]
            values.append(tuple(value for value in known[:MOST] if isinstance(value, str) == texts))
        if any(values):
            chosen[spec.name] = values
    return chosen


def known_words(estimator: Any) -> dict[str, list[Values]]:
    """Return trial texts for a text estimator, by input name.

    The texts are words of its vocabulary, one text that joins these words, and an empty text.
    """
    steps = [step for _, step in getattr(estimator, "steps", ())]
    for each in (estimator, *steps):
        words = [word for word in list(getattr(each, "vocabulary_", None) or ())[:MOST] if isinstance(word, str)]
        if words:
            return {INPUT: [(*words, " ".join(words), "")]}
    return {}
