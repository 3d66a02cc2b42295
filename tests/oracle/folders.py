"""MLflow's folders, with a signature and without one."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.oracle.entries import Entry, Predict, is_numbers, predictions, target
from tests.oracle.estimators import DATES, KINDS, PIPELINES, Make, dated
from tests.oracle.frames import Column
from tests.oracle.trees import LIGHTGBM, QUIET, SMALL, TABLES, XGBOOST, unspaced

ALONE: Mapping[str, Any] = {"pip_requirements": []}
"""MLflow would import the model in a process of its own to find them."""
Kind = tuple[Make, str, tuple[Column, ...], bool]
SKLEARN: Mapping[str, Kind] = {
    "linear": KINDS["linear"],
    "logistic": KINDS["logistic-names"],
    "forest-several": KINDS["forest-several"],
    "boosting": KINDS["boosting"],
    "mixed": PIPELINES["mixed"],
    "mixed-ordinal": PIPELINES["mixed-ordinal"],
    "missing": PIPELINES["missing"],
    "words": PIPELINES["words"],
}


def _signature(table: Any, answer: Any) -> Any:
    from mlflow.models import infer_signature

    return infer_signature(table, np.asarray(answer))


def _sklearn(name: str, kind: Kind, *, signature: bool, pickled: bool = False) -> Entry:
    make, wanted, given, proba = kind

    def save(table: Any, directory: Path) -> Path:
        import mlflow.sklearn

        model = make(given).fit(table, target(wanted, table))
        extra = {"signature": _signature(table, model.predict(table))} if signature else {}
        form = "cloudpickle" if pickled else "skops"
        trusted = {} if pickled else {"skops_trusted_types": _types(model)}
        mlflow.sklearn.save_model(model, directory / name, **ALONE, serialization_format=form, **extra, **trusted)
        return directory / name

    def load(path: Path) -> Predict:
        import mlflow.sklearn

        return predictions(mlflow.sklearn.load_model(str(path)), proba=proba)

    positional = is_numbers(given) and not signature
    return Entry(name, given, save, load, positional=positional)


def _types(model: Any) -> list[str]:
    import skops.io

    return list(skops.io.get_untrusted_types(data=skops.io.dumps(model)))


def _xgboost(name: str, kind: str, given: tuple[Column, ...], *, signature: bool) -> Entry:
    cls, parameters, wanted = XGBOOST[kind]

    def save(table: Any, directory: Path) -> Path:
        import mlflow.xgboost
        import xgboost

        model = getattr(xgboost, cls)(**SMALL, **parameters, enable_categorical=True).fit(table, target(wanted, table))
        extra = {"signature": _signature(table, model.predict(table))} if signature else {}
        mlflow.xgboost.save_model(model, directory / name, **ALONE, **extra)
        return directory / name

    def load(path: Path) -> Predict:
        import mlflow.xgboost

        return predictions(mlflow.xgboost.load_model(str(path)), proba="Classifier" in cls)

    return Entry(name, given, save, load, positional=is_numbers(given) and not signature)


def _lightgbm(name: str, kind: str, given: tuple[Column, ...], *, signature: bool) -> Entry:
    _, parameters, wanted = LIGHTGBM[kind]

    def save(table: Any, directory: Path) -> Path:
        import lightgbm
        import mlflow.lightgbm

        model = lightgbm.train({**QUIET, **parameters}, lightgbm.Dataset(table, target(wanted, table)), 8)
        extra = {"signature": _signature(table, model.predict(table))} if signature else {}
        mlflow.lightgbm.save_model(model, directory / name, **ALONE, **extra)
        return directory / name

    def load(path: Path) -> Predict:
        import mlflow.lightgbm

        return predictions(mlflow.lightgbm.load_model(str(path)), proba=False)

    return Entry(name, given, save, load, positional=is_numbers(given) and not signature)


def entries() -> Iterator[Entry]:
    """Yield the models."""
    for signature, suffix in ((True, ""), (False, "-bare")):
        for name, kind in SKLEARN.items():
            yield _sklearn(f"mlflow-{name}{suffix}", kind, signature=signature)
        for table in ("floats", "mixed", "holes"):
            yield _xgboost(f"mlflow-xgboost-{table}{suffix}", "classifier", TABLES[table], signature=signature)
            given = TABLES[table] if signature else unspaced(TABLES[table])
            yield _lightgbm(f"mlflow-lightgbm-{table}{suffix}", "number", given, signature=signature)
        for table in ("cat-ascii", "cat-int"):
            yield _xgboost(f"mlflow-xgboost-{table}{suffix}", "regressor", TABLES[table], signature=signature)
            yield _lightgbm(f"mlflow-lightgbm-{table}{suffix}", "binary", TABLES[table], signature=signature)
    yield _sklearn("mlflow-dates", (dated, "number", DATES, False), signature=True, pickled=True)
    yield _sklearn("mlflow-linear-pickle", KINDS["linear-ints"], signature=True, pickled=True)
