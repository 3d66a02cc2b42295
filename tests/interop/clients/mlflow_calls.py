"""What the tests do with MLflow's clients, unmodified: the scoring client, and the deployments plugin."""

import json
from importlib.metadata import version
from typing import Any

import numpy as np
import pandas as pd
from mlflow.deployments import get_deploy_client
from mlflow.deployments.interface import plugin_store
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


def deployments(target: str, method: str, **arguments: Any) -> Any:
    """Call one method of the plugin's client."""
    inputs = arguments.pop("frame", None)
    more = {} if inputs is None else {"inputs": pd.DataFrame(inputs)}
    answer = getattr(get_deploy_client(target), method)(**arguments, **more)
    return answer["predictions"] if method == "predict" else answer


def target_help() -> str:
    return str(plugin_store["shoal"].target_help())


def run_local(**arguments: Any) -> Any:
    return plugin_store["shoal"].run_local(**arguments)
