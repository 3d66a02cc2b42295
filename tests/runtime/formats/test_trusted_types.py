import io
import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import skops.io
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import (
    AdaBoostRegressor,
    BaggingClassifier,
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    IsolationForest,
    RandomForestClassifier,
    StackingClassifier,
)
from sklearn.feature_selection import SelectKBest
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier

from shoal_runtime.errors import LoadError
from tests.runtime.formats import rejected
from tests.runtime.formats.rounds import assert_answers_as

if TYPE_CHECKING:
    from shoal_runtime.loading import Model
    from shoal_schema.wire.datatypes import Array

Load = Callable[..., "Model"]
Members = dict[str, Any]
Change = Callable[[Members], None]
X = np.random.default_rng(5).standard_normal((64, 4))
X[:, 3] = np.arange(64) % 5
KINDS = np.where(X[:, 3] < 2, np.argmax(X[:, :3], axis=1), X[:, 3] // 2)


def pipeline(final: Any) -> Pipeline:
    return make_pipeline(SimpleImputer(), SelectKBest(k=3), final)


@pytest.mark.parametrize(
    "estimator",
    [
        DecisionTreeClassifier(random_state=0),
        RandomForestClassifier(10, random_state=0),
        ExtraTreesClassifier(10, random_state=0),
        GradientBoostingClassifier(n_estimators=5, random_state=0),
        GradientBoostingClassifier(n_estimators=5, init=LogisticRegression(), random_state=0),
        HistGradientBoostingClassifier(max_iter=5, categorical_features=[3], min_samples_leaf=2, random_state=0),
        AdaBoostRegressor(n_estimators=5, random_state=0),
        BaggingClassifier(n_estimators=5, max_features=0.5, random_state=0),
        IsolationForest(n_estimators=5, max_features=0.5, random_state=0),
        StackingClassifier([("forest", RandomForestClassifier(5, random_state=0)), ("linear", LogisticRegression())]),
        HistGradientBoostingRegressor(max_iter=5, loss="poisson"),
        MLPClassifier((8,), max_iter=300, tol=1e-2, random_state=0),
        MLPClassifier((8,), solver="sgd", max_iter=300, tol=1e-2, random_state=0),
        CalibratedClassifierCV(LinearSVC(random_state=0)),
        GaussianProcessClassifier(1.0 * RBF(), optimizer=None, random_state=0),
        GaussianProcessRegressor(RBF() + WhiteKernel(), optimizer=None),
        GridSearchCV(LogisticRegression(), {"C": [1, 2]}),
        pipeline(LogisticRegression()),
        pipeline(RandomForestClassifier(10, random_state=0)),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
def test_ordinary_estimators_need_no_trusted_types(tmp_path: Path, load: Load, estimator: Any) -> None:
    estimator.fit(X, KINDS)
    skops.io.dump(estimator, tmp_path / "model.skops")

    model = load(tmp_path, max_batch_size=64)

    assert_answers_as(model, {"input-0": X}, lambda rows: {"output-0": estimator.predict(X[:rows])})


def members(estimator: Any) -> Members:
    """Return the members of the estimator's skops file: arrays, and the schema as Python objects."""
    with zipfile.ZipFile(io.BytesIO(skops.io.dumps(estimator))) as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    arrays = {name: np.load(io.BytesIO(content)) for name, content in held.items() if name.endswith(".npy")}
    return {**held, **arrays, "schema.json": json.loads(held["schema.json"])}


def write(folder: Path, held: Members) -> None:
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / "model.skops", "w") as archive:
        for name, content in held.items():
            with archive.open(name, "w") as member:
                if isinstance(content, np.ndarray):
                    np.save(member, content)
                else:
                    member.write(json.dumps(content).encode() if isinstance(content, dict) else content)


def found(node: Any, **wanted: Any) -> list[dict[str, Any]]:
    """Return the nodes of a schema with these values."""
    own = [node] if isinstance(node, dict) and wanted.items() <= node.items() else []
    parts = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return own + [each for part in parts for each in found(part, **wanted)]


def plain(value: Any) -> dict[str, Any]:
    """Return the node of a number or text."""
    content = {"content": json.dumps(value), "is_json": True}
    return {"__class__": "str", "__module__": "builtins", "__loader__": "JsonNode", **content}


def nodes(**fields: Any) -> Change:
    """Set these values in all nodes of all trees."""

    def change(held: Members) -> None:
        for array in held.values():
            if isinstance(array, np.ndarray) and array.dtype.names:
                for name, value in fields.items():
                    array[name] = value

    return change


def state_of_trees(**entries: Any) -> Change:
    def change(held: Members) -> None:
        for tree in found(held["schema.json"], __loader__="TreeNode"):
            tree["content"]["content"].update({key: plain(value) for key, value in entries.items()})

    return change


def attributes(**values: Any) -> Change:
    """Set attributes of the estimator itself."""

    def change(held: Members) -> None:
        held["schema.json"]["content"]["content"].update({key: plain(value) for key, value in values.items()})

    return change


def without_state(held: Members) -> None:
    for tree in found(held["schema.json"], __loader__="TreeNode"):
        tree["content"] = plain(None)


def elsewhere(held: Members) -> None:
    """Put the tree where a check of `tree_` would not find it, and predictions would."""
    attributes = held["schema.json"]["content"]["content"]
    attributes["trees"] = {"__class__": "set", "__module__": "builtins", "__loader__": "SetNode"}
    attributes["trees"]["content"] = [attributes["tree_"]]
    del attributes["tree_"]


def narrow_rows(held: Members) -> None:
    """Declare one feature for the forest, and replace its trees' check by another trusted function."""
    attributes(n_features_in_=1)(held)
    [maximum] = found(members(FunctionTransformer(np.maximum))["schema.json"], __loader__="FunctionNode")
    for node in found(held["schema.json"], __loader__="DictNode"):
        if "tree_" in node["content"]:
            node["content"]["_validate_X_predict"] = maximum
            node["key_types"]["content"] += node["key_types"]["content"][:1]


def wide_stages(held: Members) -> None:
    """Give each stage more trees than there are columns."""
    for array in found(held["schema.json"], __loader__="NdArrayNode", type="json"):
        for row in array["content"]:
            row["content"] += [{"__id__": row["content"][0]["__id__"]}] * 2000


def arrays_like(dtype: Any, ndim: int, make: Callable[["Array"], "Array"]) -> Change:
    def change(held: Members) -> None:
        for name, array in held.items():
            if isinstance(array, np.ndarray) and array.dtype == dtype and array.ndim == ndim:
                held[name] = make(array)

    return change


FOREST = pipeline(RandomForestClassifier(3, random_state=0))
TREE = DecisionTreeClassifier(random_state=0)
BOOSTING = GradientBoostingRegressor(n_estimators=5, random_state=0)
HISTOGRAM = HistGradientBoostingClassifier(max_iter=2, categorical_features=[3], min_samples_leaf=2, random_state=0)
LINKS = "child of an earlier node"
FEATURE = "a feature that does not exist"
FEWER = "more rows or categories than there are"
CRAFTED: Mapping[str, tuple[Any, Change, str]] = {
    "child-out-of-range": (FOREST, nodes(left_child=10**9, right_child=10**9), LINKS),
    "child-below-none": (FOREST, nodes(left_child=-(10**9), right_child=-(10**9)), LINKS),
    "cycle": (FOREST, nodes(left_child=0, right_child=0), LINKS),
    "one-child": (TREE, nodes(right_child=-(10**9)), LINKS),
    "feature-out-of-range": (FOREST, nodes(feature=10**9), FEATURE),
    "feature-below-none": (FOREST, nodes(feature=-(10**9)), FEATURE),
    "narrow-rows": (RandomForestClassifier(3, random_state=0), narrow_rows, "more features than the rows have"),
    "features-of-another": (TREE, attributes(n_features_in_=2), "features of a tree"),
    "no-nodes": (TREE, without_state, "no nodes or values"),
    "fewer-than-none": (TREE, state_of_trees(node_count=-3), "no nodes or values"),
    "elsewhere": (TREE, elsewhere, "does not belong to an estimator"),
    "wide-stages": (BOOSTING, wide_stages, "fewer rows or initial values"),
    "histogram-child": (HISTOGRAM, nodes(left=2**31, right=2**31), LINKS),
    "histogram-cycle": (HISTOGRAM, nodes(left=0, right=0), LINKS),
    "histogram-feature": (HISTOGRAM, nodes(feature_idx=10**9), FEWER),
    "histogram-feature-below": (HISTOGRAM, nodes(feature_idx=-(10**9)), FEATURE),
    "histogram-set": (HISTOGRAM, nodes(is_categorical=1, bitset_idx=10**9), "sets of categories"),
    "histogram-narrow-set": (
        HISTOGRAM,
        arrays_like(np.uint32, 2, lambda array: array[:, :1]),
        "sets of categories",
    ),
    "histogram-categories": (HISTOGRAM, arrays_like(np.uint8, 1, np.zeros_like), FEWER),
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the message for each crafted file, until a file ends the process."""
    folders = {name: tmp_path_factory.mktemp("crafted") / name for name in CRAFTED}
    for name, (estimator, change, _) in CRAFTED.items():
        held = members(estimator.fit(X, KINDS))
        change(held)
        write(folders[name], held)
    return rejected.outcomes(folders)


@pytest.mark.parametrize("name", CRAFTED)
def test_trees_with_indices_out_of_range_are_rejected(name: str, outcomes: dict[str, str]) -> None:
    said = outcomes.get(name, "the process ended")

    assert CRAFTED[name][2] in said
    assert "\n" not in said


def test_the_number_of_nodes_is_that_in_the_file(tmp_path: Path, load: Load) -> None:
    held = members(TREE.fit(X, KINDS))
    state_of_trees(node_count=10**9)(held)
    write(tmp_path, held)

    model = load(tmp_path, max_batch_size=64)

    assert_answers_as(model, {"input-0": X}, lambda rows: {"output-0": TREE.predict(X[:rows])})


def misuse(loader: str, kind: str, **content: Any) -> Change:
    """Use a trusted type with another loader."""
    module, _, name = kind.rpartition(".")

    def change(held: Members) -> None:
        node = {"__class__": name, "__module__": module, "__loader__": loader, **content}
        held["schema.json"]["content"]["content"]["more"] = node

    return change


def of_old(held: Members) -> None:
    held["schema.json"]["protocol"] = 0


F_CLASSIF = "sklearn.feature_selection._univariate_selection.f_classif"


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (misuse("LossNode", "numpy.dtype", content=plain([]), __reduce__={"args": plain(["V8"])}), "numpy.dtype"),
        (misuse("ConstructorFromReduceNode", F_CLASSIF, content=plain([[[1]], [1]])), F_CLASSIF),
        (misuse("TypeNode", "sklearn.tree._tree.Tree"), r"sklearn\.tree\._tree\.Tree"),
        (misuse("FunctionNode", "os.system"), r"os\.system"),
        (of_old, r"sklearn\.tree\._tree\.Tree"),
    ],
)
def test_a_type_is_trusted_only_with_the_loader_of_skops(tmp_path: Path, load: Load, change: Change, kind: str) -> None:
    held = members(TREE.fit(X, KINDS))
    change(held)
    write(tmp_path, held)

    with pytest.raises(LoadError, match=f"not trusted: {kind}"):
        load(tmp_path)
