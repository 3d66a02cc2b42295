"""Train and log the model of MLflow's quickstart, and bring it where `shoal serve examples/mlflow` finds it."""

import os
import shutil
from pathlib import Path

import mlflow
from mlflow.models import infer_signature
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score
from sklearn.model_selection import train_test_split

HERE = Path(__file__).parent
MODEL = HERE / "model"

X, y = load_iris(return_X_y=True, as_frame=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.2, random_state=42)
# A folder will do for one run: no database, and no server.
os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
mlflow.set_tracking_uri((HERE / "mlruns").as_uri())
with mlflow.start_run():
    model = LogisticRegression(solver="lbfgs", max_iter=1000, random_state=8888)
    model.fit(X_train, y_train)
    mlflow.log_metric("accuracy", accuracy_score(y_test, model.predict(X_test)))
    logged = mlflow.sklearn.log_model(
        sk_model=model,
        name="iris_model",
        signature=infer_signature(X_train, model.predict(X_train)),
        serialization_format="skops",
        pip_requirements=["scikit-learn", "skops"],
    )
shutil.rmtree(MODEL, ignore_errors=True)
mlflow.artifacts.download_artifacts(logged.model_uri, dst_path=str(MODEL))
