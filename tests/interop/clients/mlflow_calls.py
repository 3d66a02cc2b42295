"""What the tests do with MLflow's clients, unmodified: the scoring client, and the deployments plugin."""

import json
from importlib.metadata import version
from typing import Any

import numpy as np
import pandas as pd
from mlflow.pyfunc.scoring_server.client import ScoringServerClient


def client_version() -> str:
    return version("mlflow-skinny")


def _client(url: str) -> Any:
    host, port = url.removeprefix("http://").split(":")
    return ScoringServerClient(host, port)


def wait(url: str) -> None:
    _client(url).wait_server_ready(timeout=5)


def invoke(url: str, form: str, rows: Any, params: dict[str, Any] | None = None) -> Any:
    made: dict[str, Any] = {
        "frame": lambda: pd.DataFrame(rows),
        "array": lambda: np.array(rows),
        "records": lambda: json.dumps({"dataframe_records": pd.DataFrame(rows).to_dict(orient="records")}),
        "list": lambda: rows,
    }
    return _client(url).invoke(made[form](), params=params)["predictions"]
