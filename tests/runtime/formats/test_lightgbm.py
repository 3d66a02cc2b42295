import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightgbm
import numpy as np
import pytest

from shoal_runtime.errors import LoadError
from shoal_runtime.formats.lightgbm_trees import check
from tests.runtime.fakes import Bench
from tests.runtime.formats import rejected
from tests.runtime.formats.rounds import assert_answers_as

if TYPE_CHECKING:
    from shoal_runtime.loading import Model

Load = Callable[..., "Model"]
X = np.random.default_rng(3).standard_normal((64, 4))
KINDS = np.argmax(X[:, :3], axis=1)


def booster(objective: str, labels: Any, **more: Any) -> Any:
    parameters = {"objective": objective, "min_data_in_leaf": 2, "num_threads": 1, "verbose": -1, **more}
    return lightgbm.train(parameters, lightgbm.Dataset(X, labels), num_boost_round=5)


@pytest.mark.parametrize("suffix", ["lgb", "txt", "bst"])
@pytest.mark.parametrize(
    ("objective", "labels", "more"),
    [("regression", X[:, 0] * 2, {}), ("binary", KINDS > 0, {}), ("multiclass", KINDS, {"num_class": 3})],
)
def test_results_are_those_of_the_booster(
    tmp_path: Path, load: Load, objective: str, labels: Any, more: dict[str, Any], suffix: str
) -> None:
    made = booster(objective, labels, **more)
    made.save_model(tmp_path / f"model.{suffix}")

    model = load(tmp_path, max_batch_size=64)

    assert model.platform == "lightgbm_booster"
    (x,) = model.signature.inputs
    assert (x.name, x.datatype, x.shape) == ("input-0", "FP64", (-1, 4))
    assert_answers_as(model, {"input-0": X}, lambda rows: {"output-0": made.predict(X[:rows])}, tolerance=0)


def test_columns_are_matched_by_name_in_any_order(tmp_path: Path, load: Load) -> None:
    data = lightgbm.Dataset(X, X[:, 0] - X[:, 1], feature_name=list("abcd"))
    made = lightgbm.train({"min_data_in_leaf": 2, "num_threads": 1, "verbose": -1}, data, num_boost_round=5)
    made.save_model(tmp_path / "model.lgb")
    columns = "".join(f'[[inputs]]\nname = "{name}"\ndatatype = "FP64"\nshape = [-1]\n' for name in "dbca")
    (tmp_path / "model.toml").write_text(columns)

    with Bench.around(load(tmp_path)) as bench:
        answer = bench.run({name: X[:8, index] for index, name in enumerate("abcd")}).outputs["output-0"]

    np.testing.assert_array_equal(answer, made.predict(X[:8]))


@pytest.mark.parametrize("part", [20, 4, 2])
def test_a_truncated_file_is_rejected(tmp_path: Path, load: Load, part: int) -> None:
    booster("regression", X[:, 0]).save_model(tmp_path / "model.txt")
    whole = (tmp_path / "model.txt").read_bytes()
    (tmp_path / "model.txt").write_bytes(whole[: len(whole) // part])

    with pytest.raises(LoadError, match=r"model\.txt is not a readable LightGBM model"):
        load(tmp_path)


def test_a_corrupt_file_is_rejected(tmp_path: Path, load: Load) -> None:
    (tmp_path / "model.txt").write_text("tree\nversion=v4\nend of trees\n")

    with pytest.raises(LoadError, match=r"model\.txt is not a readable LightGBM model: "):
        load(tmp_path)


def test_another_text_file_is_not_a_model(tmp_path: Path, load: Load) -> None:
    (tmp_path / "notes.txt").write_text("a tree\n")

    with pytest.raises(LoadError, match=r"holds no \.pt2"):
        load(tmp_path)


def test_the_number_of_threads_is_that_of_the_runtime(
    tmp_path: Path, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    booster("regression", X[:, 0]).save_model(tmp_path / "model.txt")
    asked: list[Any] = []

    class Asked(lightgbm.Booster):
        def predict(self, *given: Any, **more: Any) -> Any:
            asked.append(more["num_threads"])
            return super().predict(*given, **more)

    monkeypatch.setattr(lightgbm, "Booster", Asked)
    load(tmp_path, threads=3)

    assert set(asked) == {3}


LINKS = "child of an earlier node"
FEATURE = "a feature that does not exist"
LENGTH = "num_leaves"
CATEGORIES = "categories exceed"
TREES = "num_class or num_tree_per_iteration"
MULTICLASS = ("multiclass", KINDS, {"num_class": 3})
CATEGORICAL = ("regression", X[:, 1], {"categories": 9})
LINEAR = ("regression", X[:, 0], {"linear_tree": True})
CRAFTED: dict[str, tuple[Any, str, str, str]] = {
    "cycle": (MULTICLASS, r"^left_child=\S+", "left_child=0", LINKS),
    "child-out-of-range": (MULTICLASS, r"^left_child=\S+", "left_child=100000", LINKS),
    "leaf-out-of-range": (MULTICLASS, r"^left_child=-\d+", "left_child=-100000", "a leaf is missing"),
    "leaf-least": (MULTICLASS, r"^right_child=.*?-\d+", "right_child=-2147483648", "a leaf is missing"),
    "child-no-number": (MULTICLASS, r"^left_child=", "left_child=x", "left_child"),
    "feature-out-of-range": (MULTICLASS, r"^split_feature=\d+", "split_feature=100000", FEATURE),
    "feature-beyond-the-row": (MULTICLASS, r"^split_feature=\d+", "split_feature=4", FEATURE),
    "feature-below-none": (MULTICLASS, r"^split_feature=\d+", "split_feature=-9", FEATURE),
    "leaves-2e9": (MULTICLASS, r"^num_leaves=\d+", "num_leaves=2000000000", LENGTH),
    "leaves-below-none": (MULTICLASS, r"^num_leaves=\d+", "num_leaves=-4", LENGTH),
    "short-thresholds": (MULTICLASS, r"^threshold=.*$", "threshold=1.0", LENGTH),
    "short-values": (MULTICLASS, r"^leaf_value=.*$", "leaf_value=1.0", LENGTH),
    "short-counts": (MULTICLASS, r"^leaf_count=.*$", "leaf_count=1", LENGTH),
    "classes": (MULTICLASS, r"^num_class=3", "num_class=100000000", TREES),
    "at-once": (MULTICLASS, r"^num_tree_per_iteration=3", "num_tree_per_iteration=100000000", TREES),
    "none-at-once": (MULTICLASS, r"^num_tree_per_iteration=3", "num_tree_per_iteration=0", TREES),
    "objective": (MULTICLASS, r"num_class:3", "num_class:1000", "objective"),
    "features-2e9": (MULTICLASS, r"^max_feature_idx=3", "max_feature_idx=2000000000", "more than a request may"),
    "fewer-features": (MULTICLASS, r"^max_feature_idx=3", "max_feature_idx=0", FEATURE),
    "sizes": (MULTICLASS, r"^tree_sizes=\d+", "tree_sizes=99999999", "tree_sizes"),
    "fewer-sizes": (MULTICLASS, r"^tree_sizes=.*$", "tree_sizes=", "tree_sizes"),
    "twice": (MULTICLASS, r"^num_cat=0", "num_cat=0\nnum_cat=0", "tree_sizes"),
    "twice-in-the-head": (MULTICLASS, r"^num_class=3", "num_class=3\nnum_class=3", "repeated"),
    "other-ends-of-lines": (MULTICLASS, r"^num_cat=0", "num_cat=0\rx=1", "white space"),
    "sets": (MULTICLASS, r"^num_cat=0", "num_cat=9", ""),
    "categorical": (MULTICLASS, r"^decision_type=\d+", "decision_type=1", "set of categories"),
    "linear": (MULTICLASS, r"^is_linear=0", "is_linear=1", "num_features"),
    "boundaries": (CATEGORICAL, r"^cat_boundaries=0 \d+", "cat_boundaries=0 9", CATEGORIES),
    "set-out-of-range": (CATEGORICAL, r"^threshold=\S+", "threshold=7", "set of categories"),
    "linear-feature": (LINEAR, r"^leaf_features=( *)\d", r"leaf_features=\g<1>9", FEATURE),
    "linear-count": (LINEAR, r"^num_features=\d", "num_features=9", "num_features"),
}


def text_of(objective: str, labels: Any, more: dict[str, Any]) -> str:
    rows, parameters = X.copy(), dict(more)
    if categories := parameters.pop("categories", 0):
        rows[:, 0] = np.arange(len(X)) % categories
        labels = labels + 3 * (rows[:, 0] % 2)
    parameters = {"objective": objective, "min_data_in_leaf": 2, "num_threads": 1, "verbose": -1, **parameters}
    parameters |= {"min_data_per_group": 1, "cat_smooth": 0}
    data = lightgbm.Dataset(rows, labels, categorical_feature=[0] if categories else "auto")
    made: str = lightgbm.train(parameters, data, num_boost_round=5).model_to_string()
    return made


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folders = {name: tmp_path_factory.mktemp("crafted") / name for name in CRAFTED}
    for name, (made, pattern, replacement, _) in CRAFTED.items():
        crafted, changed = re.subn(pattern, replacement, text_of(*made), count=1, flags=re.MULTILINE)
        assert changed, name
        if name not in ("sizes", "fewer-sizes", "twice"):
            crafted = re.sub(r"^tree_sizes=.*\n", "", crafted, flags=re.MULTILINE)
        folders[name].mkdir()
        (folders[name] / "model.lgb").write_text(crafted, newline="")
    return rejected.outcomes(folders)


@pytest.mark.parametrize("name", CRAFTED)
def test_indices_out_of_range_are_rejected(name: str, outcomes: dict[str, str]) -> None:
    said = outcomes.get(name, "the process ended")

    assert "model.lgb is not a readable LightGBM model" in said or "a request may" in said
    assert CRAFTED[name][3] in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("objective", "labels", "more"),
    [
        ("regression", X[:, 0], {"min_gain_to_split": 1e9}),  # one leaf
        ("regression", X[:, 0], {"min_gain_to_split": 1e9, "linear_tree": True}),
        ("regression", X[:, 0], {"linear_tree": True}),
        ("regression", X[:, 0], {"linear_tree": True, "categories": 5}),
        ("regression", X[:, 0], {"categories": 40, "max_cat_to_onehot": 1}),
        ("binary", KINDS > 0, {"boosting": "rf", "bagging_freq": 1, "bagging_fraction": 0.6}),
        ("binary", KINDS > 0, {"boosting": "dart"}),
        ("multiclassova", KINDS, {"num_class": 3}),
        ("regression", X[:, 0], {"zero_as_missing": True, "max_depth": 2}),
    ],
)
def test_files_of_lightgbm_are_accepted(objective: str, labels: Any, more: dict[str, Any]) -> None:
    text = text_of(objective, labels, more)

    assert check(text.encode()) == 4
    without_sizes = re.sub(r"^tree_sizes=.*\n", "", text, flags=re.MULTILINE)
    assert check(without_sizes.replace("\n", "\r\n").encode()) == 4


def test_a_gpu_is_not_used_and_logged(tmp_path: Path, load: Load, caplog: pytest.LogCaptureFixture) -> None:
    booster("regression", X[:, 0]).save_model(tmp_path / "model.lgb")

    assert load(tmp_path, device="cuda").machine.device == "cpu"
    assert "event=device_ignored" in caplog.text
