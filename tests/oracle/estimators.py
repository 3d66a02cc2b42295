"""scikit-learn's estimators, saved by skops and joblib, with and without the names of columns."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.oracle.entries import Entry, Predict, is_numbers, predictions, target
from tests.oracle.frames import Column, columns

NUMBERS = columns(a="float", b="float", c="float")
INTS = columns(b="int", a="int", zeta_alpha="float", größe="float")
HOLES = columns(x="nan", n="nanint", y="float")
MIXED = columns(colour="text", size="float", count="int", member="bool")
MISSING = columns(colour="nantext", size="nan", count="int")
WORDS = columns(text="document", size="float")
TEXT = columns(text="document")
DATES = columns(when="date", size="float")
Make = Callable[[tuple[Column, ...]], Any]


def _kinds(given: tuple[Column, ...], *kinds: str) -> list[str]:
    return [column.name for column in given if column.kind in kinds]


def encoded(final: Callable[[], Any], *, unknown: str = "ignore", ordinal: bool = False) -> Make:
    """Return a pipeline that encodes texts and flags and fills holes, before an estimator."""

    def make(given: tuple[Column, ...]) -> Any:
        from sklearn.compose import ColumnTransformer
        from sklearn.impute import SimpleImputer
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

        known = {"handle_unknown": "use_encoded_value", "unknown_value": -1} if unknown == "ignore" else {}
        encoder: Any = OrdinalEncoder(**known) if ordinal else OneHotEncoder(handle_unknown=unknown)
        numbers = make_pipeline(SimpleImputer(), StandardScaler())
        texts = _kinds(given, "text", "nantext", "bool")
        rest = _kinds(given, "float", "int", "nan", "nanint")
        return make_pipeline(ColumnTransformer([("texts", encoder, texts), ("numbers", numbers, rest)]), final())

    return make


def worded(given: tuple[Column, ...]) -> Any:
    """Return a pipeline of a column of documents beside a number."""
    from sklearn.compose import ColumnTransformer
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    parts = [("words", TfidfVectorizer(), given[0].name), ("rest", "passthrough", [given[1].name])]
    return make_pipeline(ColumnTransformer(parts), LogisticRegression())


def dated(given: tuple[Column, ...]) -> Any:
    """Return a pipeline that computes with dates."""
    from sklearn.compose import ColumnTransformer
    from sklearn.linear_model import LinearRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

    from tests.oracle.parts import months

    parts = [("dates", FunctionTransformer(months), ["when"]), ("rest", "passthrough", ["size"])]
    return make_pipeline(ColumnTransformer(parts), LinearRegression())


def plain(name: str, **options: Any) -> Make:
    """Return how an estimator of scikit-learn is made, imported when it is."""

    def make(_: tuple[Column, ...]) -> Any:
        from importlib import import_module

        module, cls = name.rsplit(".", 1)
        return getattr(import_module(f"sklearn.{module}"), cls)(**options)

    return make


def scaled(name: str, **options: Any) -> Make:
    """Return the same behind a scaler."""

    def make(given: tuple[Column, ...]) -> Any:
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        return make_pipeline(StandardScaler(), plain(name, **options)(given))

    return make


FOREST = {"n_estimators": 8, "max_depth": 4, "random_state": 0}
LOGISTIC = {"max_iter": 500}
KINDS: dict[str, tuple[Make, str, tuple[Column, ...], bool]] = {
    "linear": (plain("linear_model.LinearRegression"), "number", NUMBERS, False),
    "linear-ints": (plain("linear_model.LinearRegression"), "number", INTS, False),
    "linear-several": (plain("linear_model.LinearRegression"), "numbers", INTS, False),
    "logistic": (plain("linear_model.LogisticRegression", **LOGISTIC), "class", NUMBERS, True),
    "logistic-classes": (scaled("linear_model.LogisticRegression", **LOGISTIC), "classes", INTS, True),
    "logistic-names": (scaled("linear_model.LogisticRegression", **LOGISTIC), "names", INTS, True),
    "logistic-flags": (scaled("linear_model.LogisticRegression", **LOGISTIC), "flags", INTS, True),
    "forest": (plain("ensemble.RandomForestClassifier", **FOREST), "classes", INTS, True),
    "forest-number": (plain("ensemble.RandomForestRegressor", **FOREST), "number", INTS, False),
    "forest-several": (plain("ensemble.RandomForestRegressor", **FOREST), "numbers", NUMBERS, False),
    "tree-names": (plain("tree.DecisionTreeClassifier", max_depth=3), "names", NUMBERS, True),
    "boosting": (plain("ensemble.HistGradientBoostingClassifier", max_iter=8), "classes", HOLES, True),
    "boosting-number": (plain("ensemble.HistGradientBoostingRegressor", max_iter=8), "number", HOLES, False),
    "means": (plain("cluster.KMeans", n_clusters=3, random_state=0, n_init=1), "number", NUMBERS, False),
    "outliers": (plain("ensemble.IsolationForest", n_estimators=8, random_state=0), "number", NUMBERS, False),
    "perceptron": (scaled("neural_network.MLPRegressor", max_iter=50, random_state=0), "number", INTS, False),
}
PIPELINES: dict[str, tuple[Make, str, tuple[Column, ...], bool]] = {
    "mixed": (encoded(lambda: plain("linear_model.LogisticRegression", **LOGISTIC)(())), "class", MIXED, True),
    "mixed-strict": (
        encoded(lambda: plain("linear_model.Ridge")(()), unknown="error"), "number", MIXED, False,
    ),
    "mixed-ordinal": (
        encoded(lambda: plain("ensemble.RandomForestClassifier", **FOREST)(()), ordinal=True), "names", MIXED, True,
    ),
    "missing": (encoded(lambda: plain("linear_model.Ridge")(())), "number", MISSING, False),
    "words": (worded, "classes", WORDS, True),
}  # fmt: skip


def loaded(path: Path) -> Any:
    """Load an estimator with the library that saved it."""
    if path.suffix == ".joblib":
        import joblib

        return joblib.load(path)
    import skops.io

    return skops.io.load(path, trusted=skops.io.get_untrusted_types(file=path))


def dumped(model: Any, path: Path) -> None:
    """Save an estimator with the library that its suffix names."""
    if path.suffix == ".joblib":
        import joblib

        joblib.dump(model, path)
    else:
        import skops.io

        skops.io.dump(model, path)


def _entry(
    name: str, kind: tuple[Make, str, tuple[Column, ...], bool], suffix: str, *, named: bool, toml: bool = False
) -> Entry:
    make, wanted, given, proba = kind

    def save(table: Any, directory: Path) -> Path:
        path = directory / f"{name}{suffix}"
        fitted = make(given).fit(table if named else table.to_numpy(), target(wanted, table))
        dumped(fitted, path)
        if not toml:
            return path
        (directory / "model.toml").write_text(declared(given))
        return directory

    def load(path: Path) -> Predict:
        model = loaded(path if path.is_file() else next(path.glob(f"*{suffix}")))
        predict = predictions(model, proba=proba)
        return predict if named else lambda table: predict(table.to_numpy(float))

    return Entry(name, given, save, load, named=named, positional=is_numbers(given) and not toml)


def _texts(name: str, suffix: str) -> Entry:
    """Return a pipeline of texts alone, trained on a list of them."""

    def save(table: Any, directory: Path) -> Path:
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline

        path = directory / f"{name}{suffix}"
        dumped(make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(table["text"], target("names", table)), path)
        return path

    def load(path: Path) -> Predict:
        predict = predictions(loaded(path), proba=True)
        return lambda table: predict(list(table["text"]))

    return Entry(name, TEXT, save, load, named=False, positional=True)


DATATYPES = {"float": "FP64", "nan": "FP64", "nanint": "FP64", "int": "INT64", "bool": "BOOL"}


def declared(given: tuple[Column, ...]) -> str:
    """Return a model.toml that declares the columns, in another order than that of training."""
    parts = []
    for column in sorted(given, key=lambda column: column.name):
        datatype = DATATYPES.get(column.kind, "BYTES")
        lines = [f"name = {json.dumps(column.name)}", f'datatype = "{datatype}"', "shape = [-1]"]
        if datatype == "BYTES":
            lines.append('content_type = "text/plain"')
        if column.kind.startswith("nan"):
            lines.append("nullable = true")
        if column.kind == "date":
            lines.append('logical_type = "datetime"')
        parts.append("\n".join(["[[inputs]]", *lines]))
    return "\n".join(parts) + "\n"


def entries() -> Iterator[Entry]:
    """Yield the models."""
    for suffix in (".skops", ".joblib"):
        form = suffix[1:]
        for name, kind in KINDS.items():
            yield _entry(f"{form}-{name}", kind, suffix, named=True)
        for name in ("linear", "logistic-names", "boosting", "forest-several", "linear-several"):
            yield _entry(f"{form}-{name}-array", KINDS[name], suffix, named=False)
        for name, kind in PIPELINES.items():
            yield _entry(f"{form}-{name}", kind, suffix, named=True)
            yield _entry(f"{form}-{name}-toml", kind, suffix, named=True, toml=True)
        yield _entry(f"{form}-logistic-toml", KINDS["logistic"], suffix, named=True, toml=True)
        yield _texts(f"{form}-texts", suffix)
    dates: tuple[Make, str, tuple[Column, ...], bool] = (dated, "number", DATES, False)
    yield _entry("joblib-dates-toml", dates, ".joblib", named=True, toml=True)
    yield _entry(
        "joblib-labels", (plain("neighbors.KNeighborsClassifier"), "labels", NUMBERS, False), ".joblib", named=True
    )
