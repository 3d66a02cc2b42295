"""Types that skops does not trust and Shoal does, as scikit-learn's ordinary estimators hold them.

Each is vouched for only as skops saves it: the same name under another loader would be called with arguments of the
file's choice, or given a state that is not its own.
"""

import json
from collections.abc import Set
from typing import Any, Final

_KERNELS: Final = "sklearn.gaussian_process.kernels"
_SCORES: Final = "sklearn.feature_selection"
_OBJECTS: Final = (
    # How it was trained, which a prediction does not ask.
    "sklearn.neural_network._stochastic_optimizers.AdamOptimizer",
    "sklearn.neural_network._stochastic_optimizers.SGDOptimizer",
    "sklearn.metrics._scorer._PassthroughScorer",
    "sklearn.compose._column_transformer.make_column_selector",
    "sklearn.model_selection._split.KFold",
    "sklearn.model_selection._split.StratifiedKFold",
    # Python that computes with arrays; wrong ones make it wrong, or raise.
    "sklearn._loss.loss.HalfTweedieLoss",
    "sklearn._loss.loss.HalfTweedieLossIdentity",
    "sklearn.calibration._CalibratedClassifier",
    "sklearn.calibration._SigmoidCalibration",
    "sklearn.multiclass._ConstantPredictor",
    "sklearn.gaussian_process._gpc._BinaryGaussianProcessClassifierLaplace",
    *(f"{_KERNELS}.{name}" for name in ("CompoundKernel", "ConstantKernel", "DotProduct", "ExpSineSquared")),
    *(f"{_KERNELS}.{name}" for name in ("Exponentiation", "Matern", "PairwiseKernel", "Product", "RBF")),
    *(f"{_KERNELS}.{name}" for name in ("RationalQuadratic", "Sum", "WhiteKernel")),
    # Native code goes where its nodes point: held within them in `trees`.
    "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
)
_FUNCTIONS: Final = (
    # By which features were chosen; at worst computed again, of arrays.
    *(f"{_SCORES}._univariate_selection.{name}" for name in ("chi2", "f_classif", "f_oneway", "f_regression")),
    f"{_SCORES}._univariate_selection.r_regression",
    f"{_SCORES}._mutual_info.mutual_info_classif",
    f"{_SCORES}._mutual_info.mutual_info_regression",
    "numpy.mean",
    # What histogram gradient boosting looks at its columns with.
    "sklearn.utils.validation.check_array",
)
_LOADERS: Final = {
    **dict.fromkeys(_OBJECTS, "ObjectNode"),
    **dict.fromkeys(_FUNCTIONS, "FunctionNode"),
    # Whose columns a selector chose.
    "builtins.object": "TypeNode",
    "functools.partial": "PartialNode",
    "sklearn.utils._bunch.Bunch": "DictNode",
    # That of an array, which numpy reads without objects; its own `__setstate__` would believe any layout.
    "numpy.dtype": "DTypeNode",
    # As the predictor's above.
    "sklearn.tree._tree.Tree": "TreeNode",
}
_PROTOCOL: Final = 1
"""Of skops' files: the first in which a function's name, too, stands where it is looked for here."""


def vouched(schema: bytes) -> Set[str]:
    """Return the types that are vouched for in a file of this schema.json."""
    misused: set[str] = set()

    def note(node: dict[str, Any]) -> dict[str, Any]:
        name, loader = f"{node.get('__module__')}.{node.get('__class__')}", node.get("__loader__")
        if _LOADERS.get(name, loader) != loader:
            misused.add(name)
        return node

    current = json.loads(schema, object_hook=note).get("protocol", 0) >= _PROTOCOL
    return _LOADERS.keys() - misused if current else frozenset()
