import json
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import xgboost
from hypothesis import given
from hypothesis import strategies as st

from shoal_runtime.errors import LoadError
from shoal_runtime.formats import ubjson
from shoal_runtime.formats.library_device import LibraryDevice
from shoal_runtime.formats.xgboost import place_booster
from shoal_runtime.formats.xgboost_trees import check
from tests.runtime.fakes import Bench
from tests.runtime.formats import rejected
from tests.runtime.formats.rounds import assert_answers_as

if TYPE_CHECKING:
    from shoal_runtime.loading import Model

Load = Callable[..., "Model"]
RANDOM = np.random.default_rng(3)
X = RANDOM.standard_normal((64, 4), dtype=np.float32)
KINDS = np.argmax(X[:, :3], axis=1)


def booster(objective: str, labels: Any, **more: Any) -> Any:
    parameters = {"objective": objective, "nthread": 1, "verbosity": 0, **more}
    return xgboost.train(parameters, xgboost.DMatrix(X, labels), num_boost_round=5)


@pytest.mark.parametrize("suffix", ["ubj", "json"])
@pytest.mark.parametrize(
    ("objective", "labels", "more"),
    [
        ("reg:squarederror", X[:, 0] * 2, {}),
        ("reg:squarederror", X[:, 0] * 2, {"booster": "gblinear"}),
        ("reg:squarederror", X[:, :2], {"multi_strategy": "multi_output_tree", "tree_method": "hist"}),
        ("binary:logistic", KINDS > 0, {}),
        ("multi:softprob", KINDS, {"num_class": 3}),
        ("multi:softmax", KINDS, {"num_class": 3}),
    ],
)
def test_results_are_those_of_the_booster(
    tmp_path: Path, load: Load, objective: str, labels: Any, more: dict[str, Any], suffix: str
) -> None:
    made = booster(objective, labels, **more)
    made.save_model(tmp_path / f"model.{suffix}")

    model = load(tmp_path, max_batch_size=64)

    assert model.platform == "xgboost_booster"
    (x,) = model.signature.inputs
    assert (x.name, x.datatype, x.shape) == ("input-0", "FP32", (-1, 4))
    assert_answers_as(model, {"input-0": X}, lambda rows: {"output-0": made.predict(xgboost.DMatrix(X[:rows]))})


@pytest.mark.parametrize("classes", [2, 3])
def test_a_classifier_returns_labels_and_probabilities_of_its_best_iteration(
    tmp_path: Path, load: Load, classes: int
) -> None:
    labels = np.minimum(KINDS, classes - 1)
    made = xgboost.XGBClassifier(n_estimators=60, learning_rate=1.0, early_stopping_rounds=2, n_jobs=1)
    made.fit(X[:40], labels[:40], eval_set=[(X[40:], RANDOM.permutation(labels[40:]))], verbose=False)
    assert made.best_iteration < made.get_booster().num_boosted_rounds() - 1
    made.save_model(tmp_path / "model.ubj")

    model = load(tmp_path / "model.ubj", max_batch_size=64)

    outputs = [(spec.name, spec.datatype, spec.shape) for spec in model.signature.outputs]
    assert outputs == [("output-0", "INT64", (-1,)), ("probabilities", "FP32", (-1, classes))]
    assert_answers_as(
        model,
        {"input-0": X},
        lambda rows: {"output-0": made.predict(X[:rows]), "probabilities": made.predict_proba(X[:rows])},
    )


def test_a_classifier_of_labels_returns_labels(tmp_path: Path, load: Load) -> None:
    made = xgboost.XGBClassifier(objective="multi:softmax", n_estimators=5, n_jobs=1).fit(X, KINDS)
    made.save_model(tmp_path / "model.ubj")

    model = load(tmp_path, max_batch_size=64)

    assert [spec.name for spec in model.signature.outputs] == ["output-0"]
    assert_answers_as(model, {"input-0": X}, lambda rows: {"output-0": made.predict(X[:rows])})


def test_a_multilabel_classifier_returns_all_labels(tmp_path: Path, load: Load) -> None:
    made = xgboost.XGBClassifier(n_estimators=5, n_jobs=1).fit(X, X[:, :2] > 0)
    made.save_model(tmp_path / "model.ubj")

    assert_answers_as(
        load(tmp_path, max_batch_size=64),
        {"input-0": X},
        lambda rows: {"output-0": made.predict(X[:rows]), "probabilities": made.predict_proba(X[:rows])},
    )


def test_columns_are_matched_by_name_in_any_order(tmp_path: Path, load: Load) -> None:
    data = xgboost.DMatrix(X, X[:, 0] - X[:, 1], feature_names=list("abcd"))
    made = xgboost.train({"nthread": 1, "verbosity": 0}, data, num_boost_round=5)
    made.save_model(tmp_path / "model.ubj")
    columns = "".join(f'[[inputs]]\nname = "{name}"\ndatatype = "FP32"\nshape = [-1]\n' for name in "dbca")
    (tmp_path / "model.toml").write_text(columns)

    with Bench.around(load(tmp_path)) as bench:
        answer = bench.run({name: X[:8, index] for index, name in enumerate("abcd")}).outputs["output-0"]

    np.testing.assert_array_equal(answer, made.predict(data)[:8])


def test_missing_numbers_are_nan(tmp_path: Path, load: Load) -> None:
    made = booster("reg:squarederror", X[:, 0])
    made.save_model(tmp_path / "model.ubj")
    holes = np.where(X > 0.5, np.nan, X).astype(np.float32)

    with Bench.around(load(tmp_path)) as bench:
        answer = bench.run({"input-0": holes[:8]}).outputs["output-0"]

    np.testing.assert_array_equal(answer, made.predict(xgboost.DMatrix(holes[:8])))


def test_declared_columns_are_the_features(tmp_path: Path, load: Load) -> None:
    made = booster("reg:squarederror", X[:, 0])
    made.save_model(tmp_path / "model.ubj")
    columns = "".join(f'[[inputs]]\nname = "{name}"\ndatatype = "FP32"\nshape = [-1]\n' for name in "abcd")
    (tmp_path / "model.toml").write_text(columns)

    with Bench.around(load(tmp_path)) as bench:
        answer = bench.run({name: X[:8, index] for index, name in enumerate("abcd")}).outputs["output-0"]

    np.testing.assert_array_equal(answer, made.predict(xgboost.DMatrix(X[:8])))


@pytest.mark.parametrize("content", [b"", b"{", b'{"learner": {}}', b"{L\0\0\0\0\0\0\0\x07learner{"], ids=range(4))
def test_a_corrupt_file_is_rejected(tmp_path: Path, load: Load, content: bytes) -> None:
    (tmp_path / "model.ubj").write_bytes(content)

    with pytest.raises(LoadError, match=r"model\.ubj is not a readable XGBoost model: "):
        load(tmp_path)


def test_a_file_of_another_format_is_recognized(tmp_path: Path, load: Load) -> None:
    (tmp_path / "model.toml").write_text('format = "XGBoost"\nfile = "iris.skops"')
    (tmp_path / "iris.skops").write_bytes(b"PK\3\4")

    with pytest.raises(LoadError, match="SHOAL_MODEL_FORMAT"):
        load(tmp_path)


@pytest.mark.parametrize("part", [20, 4, 2])
def test_a_truncated_file_is_rejected(tmp_path: Path, load: Load, part: int) -> None:
    booster("reg:squarederror", X[:, 0]).save_model(tmp_path / "model.ubj")
    whole = (tmp_path / "model.ubj").read_bytes()
    (tmp_path / "model.ubj").write_bytes(whole[: len(whole) // part])

    with pytest.raises(LoadError, match=r"model\.ubj is not a readable XGBoost model: it is truncated"):
        load(tmp_path)


def test_the_number_of_threads_is_that_of_the_runtime(
    tmp_path: Path, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    booster("reg:squarederror", X[:, 0]).save_model(tmp_path / "model.ubj")
    made: list[Any] = []

    class Kept(xgboost.Booster):
        def __init__(self, *given: Any, **more: Any) -> None:
            super().__init__(*given, **more)
            made.append(self)

    monkeypatch.setattr(xgboost, "Booster", Kept)
    load(tmp_path, threads=3)

    assert json.loads(made[0].save_config())["learner"]["generic_param"]["nthread"] == "3"


Json = dict[str, Any]
Change = Callable[[Json], None]
LINKS = "child of an earlier node"
FEATURE = "a feature that does not exist"
CLASS = "a class that does not exist"
CATEGORIES = "categories exceed"


def trees(learner: Json) -> list[Json]:
    booster = learner["gradient_booster"]
    made: list[Json] = booster.get("gbtree", booster)["model"]["trees"]
    return made


def node(**values: int) -> Change:
    """Set values of the first node of the first tree."""

    def change(learner: Json) -> None:
        for name, value in values.items():
            trees(learner)[0][name][0] = value

    return change


def tree(**values: Any) -> Change:
    return lambda learner: trees(learner)[0].update(values)


def tree_param(**values: str) -> Change:
    return lambda learner: trees(learner)[0]["tree_param"].update(values)


def model_param(**values: str) -> Change:
    return lambda learner: learner["learner_model_param"].update(values)


def model(**values: Any) -> Change:
    return lambda learner: learner["gradient_booster"]["model"].update(values)


def categories(segment: int, size: int, value: int) -> Change:
    names = ("split_type", "categories_nodes", "categories_segments", "categories_sizes", "categories")

    def change(learner: Json) -> None:
        kinds = [1, *trees(learner)[0]["split_type"][1:]]
        trees(learner)[0].update(zip(names, (kinds, [0], [segment], [size], [value]), strict=True))

    return change


def leaf_of_vectors(learner: Json) -> None:
    made = trees(learner)[0]
    made["right_children"][made["left_children"].index(-1)] = 10**6


def without_first_feature(learner: Json) -> None:
    del trees(learner)[0]["split_indices"]


SOFTPROB: tuple[str, Any, dict[str, Any]] = ("multi:softprob", KINDS, {"num_class": 3})
CATEGORICAL = ("reg:squarederror", X[:, 0], {"tree_method": "hist"})
VECTORS = ("reg:squarederror", X[:, :2], {"multi_strategy": "multi_output_tree", "tree_method": "hist"})
DART = ("reg:squarederror", X[:, 0], {"booster": "dart"})
LINEAR = ("reg:squarederror", X[:, 0], {"booster": "gblinear"})
CRAFTED: dict[str, tuple[Any, Change, str]] = {
    "feature-beyond-the-row": (SOFTPROB, node(split_indices=4), FEATURE),
    "feature-out-of-range": (SOFTPROB, node(split_indices=10**6), FEATURE),
    "feature-below-none": (SOFTPROB, node(split_indices=-1), FEATURE),
    "child-out-of-range": (SOFTPROB, node(left_children=10**6), LINKS),
    "right-child-below-none": (SOFTPROB, node(right_children=-(10**6)), LINKS),
    "cycle": (SOFTPROB, node(left_children=0, right_children=0), LINKS),
    "one-child": (SOFTPROB, node(right_children=-1), LINKS),
    "parent-out-of-range": (
        SOFTPROB,
        tree(parents=[10**6] * 99),
        "num_nodes",
    ),
    "class-out-of-range": (SOFTPROB, model(tree_info=[10**6] * 15), CLASS),
    "class-below-none": (SOFTPROB, model(tree_info=[-5] * 15), CLASS),
    "fewer-classes": (SOFTPROB, model(tree_info=[0]), "num_trees"),
    "rounds": (SOFTPROB, model(iteration_indptr=[0, 10**6, 10**7]), "its rounds"),
    "leaf-size": (SOFTPROB, tree_param(size_leaf_vector="1000000"), "width of its leaves"),
    "nodes": (SOFTPROB, tree_param(num_nodes="1000000"), "tree 0: num_nodes"),
    "nodes-below-none": (SOFTPROB, tree_param(num_nodes="-1"), "tree 0: num_nodes"),
    "short-conditions": (SOFTPROB, tree(split_conditions=[0.1]), "num_nodes"),
    "short-weights": (SOFTPROB, tree(base_weights=[0.1]), "weights contradict"),
    "missing-array": (SOFTPROB, without_first_feature, "missing or"),
    "no-numbers": (SOFTPROB, tree(split_indices={}), "whole numbers"),
    "features-2e9": (SOFTPROB, model_param(num_feature="2000000000"), "more than a request may"),
    "features-below-none": (SOFTPROB, model_param(num_feature="-1"), "negative"),
    "fewer-features": (SOFTPROB, model_param(num_feature="1"), FEATURE),
    "classes-2e9": (SOFTPROB, model_param(num_class="2000000000"), "objective"),
    "targets-2e9": (SOFTPROB, model_param(num_target="2000000000"), "base_score"),
    "scores": (SOFTPROB, model_param(base_score="[0,0]"), "base_score"),
    "targets-below-none": (SOFTPROB, model_param(num_target="-1"), "negative"),
    "split-type": (CATEGORICAL, node(split_type=5), "a split is of an unknown type"),
    "objective": (
        SOFTPROB,
        lambda learner: learner["objective"].update(softmax_multiclass_param={"num_class": "0"}),
        "objective",
    ),
    "categories-out-of-range": (CATEGORICAL, categories(10**6, 1, 1), CATEGORIES),
    "categories-too-many": (CATEGORICAL, categories(0, 10**6, 1), CATEGORIES),
    "category-huge": (CATEGORICAL, categories(0, 1, 2**31 - 1), "a category is out of range"),
    "leaf-of-vectors": (VECTORS, leaf_of_vectors, "values of a leaf"),
    "leaf-weights": (VECTORS, tree(leaf_weights=[0.5]), "values of a leaf"),
    "dart-weights": (
        DART,
        lambda learner: learner["gradient_booster"].update(weight_drop=[]),
        "weight_drop is too short",
    ),
    "linear-weights": (LINEAR, model(weights=[1.0]), "weight per feature"),
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folders = {name: tmp_path_factory.mktemp("crafted") / name for name in (*CRAFTED, "ubj", "twice")}
    for name, ((objective, labels, more), change, _) in CRAFTED.items():
        document = json.loads(booster(objective, labels, **more).save_raw("json"))
        change(document["learner"])
        folders[name].mkdir()
        (folders[name] / "model.json").write_text(json.dumps(document))
    # The first feature of the first tree in UBJSON: an array of 4-byte integers with its length.
    binary = bytes(booster(*SOFTPROB[:2], **SOFTPROB[2]).save_raw("ubj"))
    head, key, rest = binary.partition(b"split_indices[$l#L")
    text = booster(*SOFTPROB[:2], **SOFTPROB[2]).save_raw("json").decode()
    for where, content in (
        ("ubj/model.ubj", head + key + rest[:8] + (4).to_bytes(4, "big") + rest[12:]),
        ("twice/model.json", text.replace('"split_indices":', '"split_indices":[4],"split_indices":', 1).encode()),
    ):
        path = folders[where.partition("/")[0]]
        path.mkdir()
        (path / where.partition("/")[2]).write_bytes(content)
    return rejected.outcomes(folders)


@pytest.mark.parametrize(
    ("name", "why"),
    [*((name, why) for name, (_, _, why) in CRAFTED.items()), ("ubj", FEATURE), ("twice", "repeated")],
)
def test_indices_out_of_range_are_rejected(name: str, why: str, outcomes: dict[str, str]) -> None:
    said = outcomes.get(name, "the process ended")

    assert why in said
    assert "\n" not in said


def test_ubjson_is_read_as_xgboost_writes_it() -> None:
    made = booster(*SOFTPROB[:2], **SOFTPROB[2])

    read = ubjson.decode(bytes(made.save_raw("ubj")))

    written = json.loads(made.save_raw("json"))["learner"]
    for binary, text in zip(trees(read["learner"]), trees(written), strict=True):
        assert {name: len(value) for name, value in binary.items() if name != "id"} == {
            name: len(value) for name, value in text.items() if name != "id"
        }
        for name in ("left_children", "right_children", "split_indices", "parents", "default_left"):
            assert binary[name].tolist() == text[name]


WHOLE = bytes(booster("reg:squarederror", X[:, 0]).save_raw("ubj"))


@given(at=st.integers(0, 10**9), byte=st.integers(0, 255), cut=st.booleans())
def test_corrupt_ubjson_raises_value_error(at: int, byte: int, cut: bool) -> None:
    whole = WHOLE[: at % len(WHOLE)] if cut else WHOLE
    with suppress(ValueError):
        ubjson.decode(whole[: at % len(WHOLE)] + bytes([byte]) + whole[at % len(WHOLE) + 1 :])


@pytest.mark.parametrize("suffix", ["json", "ubj"])
@pytest.mark.parametrize(
    ("labels", "more"),
    [
        (X[:, 0], {"tree_method": "exact", "gamma": 0.5}),  # pruned nodes keep their places
        (X[:, 0], {"gamma": 1e9}),  # one leaf
        (X[:, 0], {"grow_policy": "lossguide", "max_leaves": 9}),
        (X[:, 0], {"booster": "dart", "one_drop": 1}),
        (KINDS, {"objective": "multi:softprob", "num_class": 3, "num_parallel_tree": 3, "subsample": 0.5}),
        (KINDS, {"objective": "multi:softprob", "num_class": 3, "booster": "gblinear"}),
        (X[:, :2], {"multi_strategy": "multi_output_tree", "tree_method": "hist", "num_parallel_tree": 2}),
        (X[:, 0], {"objective": "reg:quantileerror", "quantile_alpha": [0.1, 0.5, 0.9]}),
        (X[:, 0], {"categories": 9, "max_cat_to_onehot": 1}),
        (X[:, 0], {"categories": 3, "booster": "dart"}),
        (X[:, 0], {"rounds": 0}),
    ],
)
def test_files_of_xgboost_are_accepted(labels: Any, more: dict[str, Any], suffix: str) -> None:
    parameters = {name: value for name, value in more.items() if name not in ("categories", "rounds")}
    rows = X.copy()
    rows[:, 0] = RANDOM.integers(0, more.get("categories", 9), len(X))
    kinds = ["c" if "categories" in more else "q", "q", "q", "q"]
    data = xgboost.DMatrix(rows, labels, feature_types=kinds, enable_categorical=True)
    made = xgboost.train({"nthread": 1, "verbosity": 0, **parameters}, data, num_boost_round=more.get("rounds", 5))

    assert check(bytes(made.save_raw(suffix))) == 4


class OnGpus:
    """The functions of a booster and of xgboost that choose a device, with a number of GPUs."""

    core = xgboost.core

    def __init__(self, gpus: int, *, cuda: bool = True) -> None:
        self.device, self._gpus, self._cuda = "cpu", gpus, cuda

    def build_info(self) -> dict[str, Any]:
        return {"USE_CUDA": self._cuda}

    def config_context(self, **_: Any) -> Any:
        return nullcontext()

    def set_param(self, parameters: dict[str, str]) -> None:
        self.device = parameters["device"] if self._gpus else "cpu"

    def save_config(self) -> str:
        return json.dumps({"learner": {"generic_param": {"device": self.device}}})

    def num_features(self) -> int:
        return 4


@pytest.mark.parametrize(("wanted", "device"), [("auto", "cuda:0"), ("cuda", "cuda:0"), ("cuda:1", "cuda:1")])
def test_a_booster_predicts_on_a_gpu(wanted: str, device: str) -> None:
    library = OnGpus(2)

    assert place_booster(library, library, wanted, linear=False).name == device
    assert library.device == device


@pytest.mark.parametrize("library", [OnGpus(0), OnGpus(0, cuda=False)])
def test_a_gpu_that_xgboost_cannot_use_is_an_error_only_if_required(library: OnGpus) -> None:
    assert place_booster(library, library, "auto", linear=False).name == "cpu"
    with pytest.raises(LoadError, match=r"cannot predict on cuda.*xgboost-gpu"):
        place_booster(library, library, "cuda", linear=False)


def test_linear_models_and_the_setting_cpu_stay_on_the_cpu() -> None:
    library = SimpleNamespace()

    assert place_booster(library, library, "cpu", linear=False).name == "cpu"
    assert place_booster(library, library, "cuda", linear=True).name == "cpu"


def test_the_installed_xgboost_reports_that_it_has_no_cuda(tmp_path: Path, load: Load) -> None:
    if xgboost.build_info()["USE_CUDA"]:
        pytest.skip("this xgboost has CUDA")
    booster("reg:squarederror", X[:, 0]).save_model(tmp_path / "model.ubj")

    with pytest.raises(LoadError, match="has no CUDA"):
        load(tmp_path, device="cuda")
    assert load(tmp_path, device="auto").machine.device == "cpu"


def test_tables_for_a_gpu_are_predicted_as_on_the_cpu(
    tmp_path: Path, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = booster("multi:softprob", KINDS, num_class=3)
    made.save_model(tmp_path / "model.ubj")
    # Only the path of the table is tested: the booster stays on the CPU.
    monkeypatch.setattr("shoal_runtime.formats.xgboost.place_booster", lambda *_, **__: LibraryDevice("cuda:0"))

    model = load(tmp_path, device="cuda", max_batch_size=64)

    assert model.machine.device == "cuda:0"
    assert_answers_as(model, {"input-0": X}, lambda rows: {"output-0": made.predict(xgboost.DMatrix(X[:rows]))})
