"""TorchServe's utility functions for handlers: labels, classes, errors."""

import inspect
import json
from collections.abc import Iterable, Mapping
from itertools import repeat
from pathlib import Path
from types import ModuleType
from typing import Any


class PredictionException(Exception):
    """Error of a TorchServe handler with a message and an HTTP status."""

    def __init__(self, message: str, error_code: int = 500) -> None:
        super().__init__(message)
        self.message = message
        self.error_code = error_code

    def __str__(self) -> str:
        return f"{self.message} : {self.error_code}"


def list_classes_from_module(module: ModuleType, parent_class: type | None = None) -> list[type]:
    """Return the classes defined in a module; only subclasses of `parent_class`, if given."""
    own = [each for _, each in inspect.getmembers(module, inspect.isclass) if each.__module__ == module.__name__]
    return [each for each in own if parent_class is None or issubclass(each, parent_class)]


def load_label_mapping(mapping_file_path: str) -> dict[str, str] | None:
    """Read the label of each class from `index_to_name.json`; None if there is no such file."""
    path = Path(mapping_file_path)
    if not path.is_file():
        return None
    mapping = json.loads(path.read_bytes())
    if not isinstance(mapping, dict):
        raise ValueError('index->name JSON mapping should be in "class": "label" format.')
    # A list of labels, or one label per class.
    names = mapping.get("object_type_names")
    if isinstance(names, list):
        return {str(index): name for index, name in enumerate(names)}
    labels = {key: label[-1] if isinstance(label, list) else label for key, label in mapping.items()}
    if not all(isinstance(label, str) for label in labels.values()):
        raise ValueError("labels in index->name mapping must be either str or List[str]")
    return labels


def map_class_to_label(
    probs: list[Any], mapping: Mapping[str, str] | None = None, lbl_classes: Iterable[Iterable[Any]] | None = None
) -> list[dict[str, Any]]:
    """Return the probabilities of each row by label.

    Args:
        probs: for each row, its probabilities.
        mapping: label of each class; by default, the class itself is the label.
        lbl_classes: for each row, the class of each probability; by default, 0, 1, 2 and so on.
    """
    classes = repeat(range(len(probs[0])), len(probs)) if lbl_classes is None else lbl_classes
    return [
        {str(each) if mapping is None else mapping[str(each)]: value for each, value in zip(row, values, strict=False)}
        for row, values in zip(classes, probs, strict=False)
    ]
