"""Log, with MLflow's own client, what the test of its registry serves; print the run and a model's id."""

import json
import sys
from typing import Any

import mlflow
from mlflow.pyfunc import log_model
from mlflow.pyfunc.model import PythonModel


class Same(PythonModel):
    """Returns its input."""

    def predict(self, context: Any, model_input: list[str], params: dict[str, Any] | None = None) -> list[str]:
        """Return the input."""
        return model_input


client = mlflow.MlflowClient()
with mlflow.start_run() as run:
    versions = [log_model(name="model", python_model=Same(), registered_model_name="my iris") for _ in range(2)]
    mlflow.log_artifacts(sys.argv[1], "served/adder")
    mlflow.log_text("", "served/empty file")
client.set_registered_model_alias("my iris", "champion", "1")
sys.stdout.write(json.dumps({"run": run.info.run_id, "model": versions[0].model_id}) + "\n")
