"""Train three estimators, and one that has learned from their answers whom to believe, each where it is served from."""

from pathlib import Path

import numpy as np
import skops.io
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict, train_test_split
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

HERE = Path(__file__).parent
BASE = {
    "forest": RandomForestClassifier(50, random_state=0),
    "neighbours": make_pipeline(StandardScaler(), KNeighborsClassifier(9)),
    "line": make_pipeline(StandardScaler(), LogisticRegression(C=0.1)),
}

X, y = load_breast_cancer(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)
# Predictions of rows not seen in training: otherwise the last model would trust an overfitted one.
said = [cross_val_predict(each, X_train, y_train, method="predict_proba")[:, 1] for each in BASE.values()]
meta = LogisticRegression().fit(np.column_stack(said), y_train)
for name, each in BASE.items():
    each.fit(X_train, y_train)
    (HERE / name).mkdir(exist_ok=True)
    skops.io.dump(each, HERE / name / "model.skops")
    print(f"{name}: {each.score(X_test, y_test):.3f} of the test set are right")
np.savez(HERE / "meta" / "weights.npz", weights=meta.coef_[0], bias=meta.intercept_[0])
features = np.column_stack([each.predict_proba(X_test)[:, 1] for each in BASE.values()])
weights = dict(zip(BASE, meta.coef_[0].round(2).tolist(), strict=True))
print(f"stacked: {meta.score(features, y_test):.3f}, by the weights {weights}")
