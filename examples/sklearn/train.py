"""Train the model of scikit-learn's "getting started" and save it where `shoal serve examples/sklearn` finds it."""

from pathlib import Path

import skops.io
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

MODEL = Path(__file__).parent / "model"

X, y = load_iris(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)
pipe = make_pipeline(StandardScaler(), LogisticRegression())
pipe.fit(X_train, y_train)
MODEL.mkdir(exist_ok=True)
skops.io.dump(pipe, MODEL / "model.skops")
print(f"{MODEL}: {accuracy_score(pipe.predict(X_test), y_test):.2f} of the test set are right")
