"""Types in ordinary scikit-learn estimators that Shoal trusts in addition to skops.

A type is trusted only together with the loader that skops uses for it. With another loader it would be called with
arguments from the file, or receive the state of another type.
"""

import json
from collections.abc import Set
from typing import Any, Final

_KERNELS: Final = "sklearn.gaussian_process.kernels"
_SCORES: Final = "sklearn.feature_selection"
_OBJECTS: Final = (
    # State of training, which predictions do not use.
    "sklearn.neural_network._stochastic_optimizers.AdamOptimizer",
    "sklearn.neural_network._stochastic_optimizers.SGDOptimizer",
    "sklearn.metrics._scorer._PassthroughScorer",
    "sklearn.compose._column_transformer.make_column_selector",
    "sklearn.model_selection._split.KFold",
    "sklearn.model_selection._split.StratifiedKFold",
    # Python code that computes with arrays; invalid arrays give wrong results or errors.
    "sklearn._loss.loss.HalfTweedieLoss",
    "sklearn._loss.loss.HalfTweedieLossIdentity",
    "sklearn.calibration._CalibratedClassifier",
    "sklearn.calibration._SigmoidCalibration",
    "sklearn.multiclass._ConstantPredictor",
    "sklearn.gaussian_process._gpc._BinaryGaussianProcessClassifierLaplace",
    *(f"{_KERNELS}.{name}" for name in ("CompoundKernel", "ConstantKernel", "DotProduct", "ExpSineSquared")),
    *(f"{_KERNELS}.{name}" for name in ("Exponentiation", "Matern", "PairwiseKernel", "Product", "RBF")),
    *(f"{_KERNELS}.{name}" for name in ("RationalQuadratic", "Sum", "WhiteKernel")),
    # Native code follows its nodes, which `trees` checks.
    "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
)
_FUNCTIONS: Final = (
    # Functions that selected features; at worst they compute with arrays again.
    *(f"{_SCORES}._univariate_selection.{name}" for name in ("chi2", "f_classif", "f_oneway", "f_regression")),
    f"{_SCORES}._univariate_selection.r_regression",
    f"{_SCORES}._mutual_info.mutual_info_classif",
    f"{_SCORES}._mutual_info.mutual_info_regression",
    "numpy.mean",
    # Called by histogram gradient boosting on its columns.
    "sklearn.utils.validation.check_array",
)
_LOADERS: Final = {
    **dict.fromkeys(_OBJECTS, "ObjectNode"),
    **dict.fromkeys(_FUNCTIONS, "FunctionNode"),
    # The type of a column selector.
    "builtins.object": "TypeNode",
    "functools.partial": "PartialNode",
    "sklearn.utils._bunch.Bunch": "DictNode",
    # numpy reads the type of an array without objects; its `__setstate__` would trust any layout.
    "numpy.dtype": "DTypeNode",
    # Checked in `trees`, as the predictor above.
    "sklearn.tree._tree.Tree": "TreeNode",
}
_PROTOCOL: Final = 1
"""Protocol of skops files; the first one that stores names of functions where they are checked here."""


def trusted_types(schema: bytes) -> Set[str]:
    """Return the types that are trusted in a skops file, given its schema.json."""
    misused: set[str] = set()

    def note(node: dict[str, Any]) -> dict[str, Any]:
        name, loader = f"{node.get('__module__')}.{node.get('__class__')}", node.get("__loader__")
        if _LOADERS.get(name, loader) != loader:
            misused.add(name)
        return node

    current = json.loads(schema, object_hook=note).get("protocol", 0) >= _PROTOCOL
    return _LOADERS.keys() - misused if current else frozenset()
