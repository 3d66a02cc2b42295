"""XGBoost's and LightGBM's models: boosters, their estimators, and their estimators' pickles."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.oracle.entries import Entry, Predict, is_numbers, predictions, target
from tests.oracle.estimators import dumped, loaded
from tests.oracle.frames import Column, columns

TABLES: Mapping[str, tuple[Column, ...]] = {
    "floats": columns(b="float", a="float", c="float"),
    "mixed": columns(size="float", count="int", member="bool", hole="nan"),
    "holes": columns(x="nan", n="nanint", f_1="float"),
    "cat-text": columns(colour="category_text", size="float", count="int"),
    "cat-int": columns(size="float", code="category_int"),
    "cat-float": columns(level="category_float", size="float"),
    "cat-bool": columns(flag="category_bool", size="float"),
    "cat-ascii": columns(colour="category_ascii", size="float", count="int"),
    "cat-nan": columns(colour="category_nan", size="nan"),
    "cats": columns(code="category_int", colour="category_ascii", flag="bool", n="nanint", größe="float"),
}
SMALL = {"n_estimators": 8, "max_depth": 3}


def unspaced(given: tuple[Column, ...]) -> tuple[Column, ...]:
    """Return columns under names that LightGBM's files keep: it writes `_` for a space."""
    return tuple(Column(column.name.replace(" ", "_"), column.kind) for column in given)


def _booster(parameters: Mapping[str, Any], table: Any, labels: Any) -> Any:
    import xgboost

    data = xgboost.DMatrix(table, labels, enable_categorical=True)
    return xgboost.train({"max_depth": 3, **parameters}, data, 8)


XGBOOST: Mapping[str, tuple[str, Mapping[str, Any], str]] = {
    "classifier": ("XGBClassifier", {}, "class"),
    "classes": ("XGBClassifier", {}, "classes"),
    "regressor": ("XGBRegressor", {}, "number"),
    "several": ("XGBRegressor", {}, "numbers"),
    "labels": ("XGBClassifier", {}, "labels"),
    "ranker": ("XGBRanker", {}, "rank"),
    "linear": ("XGBRegressor", {"booster": "gblinear"}, "number"),
    "dart": ("XGBRegressor", {"booster": "dart"}, "number"),
    "forest": ("XGBRFClassifier", {}, "class"),
    "booster": ("", {"objective": "binary:logistic"}, "class"),
    "softprob": ("", {"objective": "multi:softprob", "num_class": 3}, "classes"),
    "softmax": ("", {"objective": "multi:softmax", "num_class": 3}, "classes"),
}


def _xgboost_fitted(kind: str, table: Any, *, array: bool = False) -> Any:
    import xgboost

    cls, parameters, wanted = XGBOOST[kind]
    given = table.to_numpy(float) if array else table
    if not cls:
        return _booster(parameters, given, target(wanted, table))
    options = {**SMALL, **parameters}
    if parameters.get("booster") == "gblinear":
        options.pop("max_depth")
    else:
        options["enable_categorical"] = True
    if cls == "XGBRanker":
        groups = np.arange(len(table)) // 12
        return xgboost.XGBRanker(**options).fit(given, target(wanted, table), qid=groups)
    return getattr(xgboost, cls)(**options).fit(given, target(wanted, table))


def _xgboost_entry(name: str, kind: str, given: tuple[Column, ...], suffix: str, *, array: bool = False) -> Entry:
    cls = XGBOOST[kind][0]

    def save(table: Any, directory: Path) -> Path:
        path = directory / f"{name}{suffix}"
        model = _xgboost_fitted(kind, table, array=array)
        if suffix == ".joblib":
            dumped(model, path)
        else:
            model.save_model(path)
        return path

    def load(path: Path) -> Predict:
        import xgboost

        if not cls:
            booster = xgboost.Booster(model_file=str(path))
            return lambda table: {
                "output-0": booster.predict(
                    xgboost.DMatrix(table.to_numpy(float) if array else table, enable_categorical=True)
                )
            }
        if suffix == ".joblib":
            model = loaded(path)
        else:
            model = getattr(xgboost, cls)()
            model.load_model(path)
        predict = predictions(model, proba="Classifier" in cls and kind != "labels")
        return predict if not array else lambda table: predict(table.to_numpy(float))

    positional = is_numbers(given)
    return Entry(name, given, save, load, named=not array, positional=positional)


def _xgboost() -> Iterator[Entry]:
    for kind in XGBOOST:
        yield _xgboost_entry(f"xgboost-{kind}-floats-ubj", kind, TABLES["floats"], ".ubj")
        if kind != "linear":
            yield _xgboost_entry(f"xgboost-{kind}-holes-json", kind, TABLES["holes"], ".json")
    for suffix in (".ubj", ".json"):
        for table in ("mixed", "cat-ascii", "cat-int", "cat-nan", "cats"):
            for kind in ("classifier", "regressor", "booster"):
                yield _xgboost_entry(f"xgboost-{kind}-{table}-{suffix[1:]}", kind, TABLES[table], suffix)
    yield from _xgboost_others()


def _xgboost_others() -> Iterator[Entry]:
    for kind in ("classifier", "regressor", "booster"):
        yield _xgboost_entry(f"xgboost-{kind}-array", kind, TABLES["floats"], ".ubj", array=True)
    for kind in ("classifier", "regressor", "ranker", "several"):
        yield _xgboost_entry(f"xgboost-{kind}-pickle", kind, TABLES["holes"], ".joblib")
    for table in ("cat-ascii", "cat-int", "mixed", "cats"):
        yield _xgboost_entry(f"xgboost-classifier-{table}-pickle", "classifier", TABLES[table], ".joblib")


LIGHTGBM: Mapping[str, tuple[str, Mapping[str, Any], str]] = {
    "binary": ("LGBMClassifier", {"objective": "binary"}, "class"),
    "classes": ("LGBMClassifier", {"objective": "multiclass", "num_class": 3}, "classes"),
    "number": ("LGBMRegressor", {"objective": "regression"}, "number"),
    "ranker": ("LGBMRanker", {"objective": "lambdarank"}, "rank"),
    "names": ("LGBMClassifier", {}, "names"),
}
QUIET = {"verbose": -1, "min_data_in_leaf": 5, "num_threads": 1}


def _lightgbm_entry(
    name: str, kind: str, given: tuple[Column, ...], suffix: str, *, array: bool = False, wrapped: bool = False
) -> Entry:
    cls, parameters, wanted = LIGHTGBM[kind]

    def fitted(table: Any) -> Any:
        import lightgbm

        data, labels = table.to_numpy(float) if array else table, target(wanted, table)
        groups = [12] * (len(table) // 12) if cls == "LGBMRanker" else None
        if not wrapped:
            made = lightgbm.Dataset(data, labels, group=groups)
            return lightgbm.train({**QUIET, **parameters}, made, 8)
        model = getattr(lightgbm, cls)(n_estimators=8, min_child_samples=5, verbose=-1, n_jobs=1)
        return model.fit(data, labels, **({"group": groups} if groups else {}))

    def save(table: Any, directory: Path) -> Path:
        path, model = directory / f"{name}{suffix}", fitted(table)
        if suffix == ".joblib":
            dumped(model, path)
        else:
            (model.booster_ if wrapped else model).save_model(str(path))
        return path

    def load(path: Path) -> Predict:
        import lightgbm

        model = loaded(path) if suffix == ".joblib" else lightgbm.Booster(model_file=str(path))
        predict = predictions(model, proba=suffix == ".joblib" and cls == "LGBMClassifier")
        return predict if not array else lambda table: predict(table.to_numpy(float))

    return Entry(name, given, save, load, named=not array, positional=is_numbers(given))


def _lightgbm() -> Iterator[Entry]:
    for kind in ("binary", "classes", "number", "ranker"):
        for table in ("floats", "holes"):
            yield _lightgbm_entry(f"lightgbm-{kind}-{table}", kind, unspaced(TABLES[table]), ".lgb")
    for table in ("mixed", "cat-text", "cat-int", "cat-float", "cat-bool", "cat-nan", "cats"):
        for kind in ("binary", "number"):
            yield _lightgbm_entry(f"lightgbm-{kind}-{table}", kind, TABLES[table], ".txt")
        yield _lightgbm_entry(f"lightgbm-wrapped-{table}", "binary", TABLES[table], ".txt", wrapped=True)
    for kind in ("binary", "number"):
        yield _lightgbm_entry(f"lightgbm-{kind}-array", kind, TABLES["floats"], ".lgb", array=True)
    for kind in ("binary", "names", "number", "ranker"):
        yield _lightgbm_entry(f"lightgbm-{kind}-pickle", kind, unspaced(TABLES["holes"]), ".joblib", wrapped=True)
    for table in ("mixed", "cat-text", "cat-int", "cat-float", "cats"):
        yield _lightgbm_entry(f"lightgbm-names-{table}-pickle", "names", TABLES[table], ".joblib", wrapped=True)


def entries() -> Iterator[Entry]:
    """Yield the models."""
    yield from _xgboost()
    yield from _lightgbm()
