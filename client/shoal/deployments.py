"""MLflow's deployments plugin ``shoal``: a deployment is an InferenceService, managed through the Kubernetes API.

Imported by MLflow only, through the entry point: ``mlflow deployments create -t shoal -n NAME -m URI``.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
from mlflow.deployments import BaseDeploymentClient, PredictionsResponse
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import (
    INTERNAL_ERROR,
    INVALID_PARAMETER_VALUE,
    RESOURCE_ALREADY_EXISTS,
    RESOURCE_DOES_NOT_EXIST,
    TEMPORARILY_UNAVAILABLE,
)
from mlflow.utils.proto_json_utils import dump_input_data

from shoal_schema.fields.redaction import redacted_value
from shoal_schema.resource import API_VERSION, GROUP, KIND, PLURAL, VERSION

HELP = """\
Shoal serves a deployment as an InferenceService in the cluster of your kubeconfig.

Target: `shoal` (the kubeconfig's namespace) or `shoal:/NAMESPACE`. `shoal:/NAMESPACE?url=URL` sends predictions to URL
(a port-forward, a gateway) instead of the address in the resource's status.

Config (-C NAME=VALUE): fields of the resource's spec, such as `batching.maxBatchSize=64` or
`runtime.resources.limits={"nvidia.com/gpu": 1}`; a value is JSON, otherwise text. `timeoutSeconds` is how long create
and update wait until the deployment is ready (600; 0 does not wait). `mlflow deployments run-local` starts
`shoal serve`; its config may also have `host` and `port`.
"""
_POLL_S = 1.0
_TIMEOUT_S = 600.0
_REQUEST_TIMEOUT_S = 60.0
_SERVE_OPTIONS = ("host", "port")
_CODES: Mapping[int, int] = {
    400: INVALID_PARAMETER_VALUE,
    404: RESOURCE_DOES_NOT_EXIST,
    409: RESOURCE_ALREADY_EXISTS,
    422: INVALID_PARAMETER_VALUE,
    503: TEMPORARILY_UNAVAILABLE,
}
Config = Mapping[str, Any]


def target_help() -> str:
    """Return MLflow's help text on deployment targets and config."""
    return HELP


def run_local(name: str, model_uri: str, flavor: str | None = None, config: Config | None = None) -> None:
    """Serve a model on this machine with ``shoal serve``, until the command exits."""
    given = dict(config or {})
    options = [word for key in _SERVE_OPTIONS if key in given for word in (f"--{key}", str(given.pop(key)))]
    fields = {"metadata.name": name, **given}
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in fields.items()}
    sets = [word for key, text in texts.items() for word in ("--set", f"{key}={text}")]
    command = [sys.executable, "-P", "-m", "shoal", "serve", model_uri, *options, *sets]
    if status := subprocess.run(command, check=False).returncode:
        raise MlflowException(f"shoal serve ended with status {status}; see its last line", INTERNAL_ERROR)


class ShoalDeployments(BaseDeploymentClient):
    """MLflow's deployments client for the InferenceServices of one namespace."""

    def __init__(self, target_uri: str) -> None:
        super().__init__(target_uri)
        parts = urlsplit(target_uri)
        self._url = next(iter(parse_qs(parts.query).get("url", ())), None)
        # urlsplit parses a bare `shoal` as a path.
        self._services = _Services(parts.path.strip("/") if parts.scheme else "")

    def create_deployment(
        self,
        name: str,
        model_uri: str,
        flavor: str | None = None,
        config: Config | None = None,
        endpoint: str | None = None,
    ) -> dict[str, Any]:
        """Create an InferenceService, and wait until it is ready."""
        spec, timeout_s = _spec(model_uri, config)
        # The operator sets the rest: defaults come from the CRD.
        made = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": spec}
        self._services.create(made)
        return self._until_ready(name, timeout_s)

    def update_deployment(
        self,
        name: str,
        model_uri: str | None = None,
        flavor: str | None = None,
        config: Config | None = None,
        endpoint: str | None = None,
    ) -> dict[str, Any]:
        """Update the model or the fields of an InferenceService, and wait until it is ready."""
        spec, timeout_s = _spec(model_uri, config)
        self._services.patch(name, {"spec": spec})
        return self._until_ready(name, timeout_s)

    def delete_deployment(self, name: str, config: Config | None = None, endpoint: str | None = None) -> None:
        """Delete an InferenceService; a missing one is not an error."""
        self._services.delete(name)

    def list_deployments(self, endpoint: str | None = None) -> list[dict[str, Any]]:
        """Return every InferenceService of the namespace."""
        return [_describe(each) for each in self._services.list()]

    def get_deployment(self, name: str, endpoint: str | None = None) -> dict[str, Any]:
        """Return one InferenceService: its model, its URL, and whether it is ready."""
        return _describe(self._services.get(name))

    def predict(
        self, deployment_name: str | None = None, inputs: Any = None, endpoint: str | None = None
    ) -> PredictionsResponse:
        """Return the predictions for a data frame, an array, a list, or a dict of arrays."""
        url = self._url or self.get_deployment(deployment_name or "")["url"]
        if not url:
            raise MlflowException(f"deployment {deployment_name!r} has no address yet", TEMPORARILY_UNAVAILABLE)
        if isinstance(inputs, dict):  # MLflow's own function would send the names only
            columns = {name: value.tolist() if hasattr(value, "tolist") else value for name, value in inputs.items()}
            body = json.dumps({"inputs": columns})
        else:
            body = dump_input_data(inputs)
        try:
            response = httpx.post(
                f"{url.rstrip('/')}/invocations",
                content=body,
                headers={"content-type": "application/json"},
                timeout=_REQUEST_TIMEOUT_S,
            )
        except httpx.HTTPError as error:
            remedy = (
                f"From outside the cluster, run kubectl port-forward service/{deployment_name} 8080:80 and use the"
                " target shoal:/NAMESPACE?url=http://127.0.0.1:8080"
            )
            raise MlflowException(
                f"no response from {redacted_value(url)}: {error}. {remedy}", TEMPORARILY_UNAVAILABLE
            ) from error
        if response.status_code != 200:
            raise MlflowException(response.text, _CODES.get(response.status_code, INTERNAL_ERROR))
        predictions: PredictionsResponse = PredictionsResponse.from_json(response.text)
        return predictions

    def _until_ready(self, name: str, timeout_s: float) -> dict[str, Any]:
        end_s = time.monotonic() + timeout_s
        # timeoutSeconds=0 does not wait.
        while not (found := self.get_deployment(name))["ready"] and timeout_s:
            if time.monotonic() >= end_s:
                why = found["message"] or "the operator has not reported a status"
                raise MlflowException(f"{name} is not ready after {timeout_s:g} s: {why}", TEMPORARILY_UNAVAILABLE)
            time.sleep(_POLL_S)
        return found


class _Services:
    """The InferenceServices of a namespace, through the Kubernetes API."""

    def __init__(self, namespace: str) -> None:
        try:
            from kubernetes import client, config  # noqa: PLC0415 (an extra)
        except ImportError as error:
            raise MlflowException(f'{error}. Run pip install "shoal[mlflow]"', INTERNAL_ERROR) from error
        try:
            config.load_config()
        except config.ConfigException as error:
            raise MlflowException(f"no cluster is configured: {error}", INVALID_PARAMETER_VALUE) from error
        self._api = client.CustomObjectsApi()
        self._refused = client.ApiException
        self._where = {"group": GROUP, "version": VERSION, "plural": PLURAL}
        if not namespace:
            try:
                namespace = config.list_kube_config_contexts()[1]["context"].get("namespace") or "default"
            except config.ConfigException:
                namespace = "default"  # inside a pod there is no kubeconfig
        self._where["namespace"] = namespace

    def create(self, body: dict[str, Any]) -> None:
        self._call(self._api.create_namespaced_custom_object, body=body)

    def patch(self, name: str, body: dict[str, Any]) -> None:
        merge = "application/merge-patch+json"
        self._call(self._api.patch_namespaced_custom_object, name=name, body=body, _content_type=merge)

    def get(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self._call(self._api.get_namespaced_custom_object, name=name)
        return found

    def list(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._call(self._api.list_namespaced_custom_object)["items"]
        return found

    def delete(self, name: str) -> None:
        try:
            self._call(self._api.delete_namespaced_custom_object, name=name)
        except MlflowException as error:
            # Deleting twice is no error, as MLflow expects.
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise

    def _call(self, method: Callable[..., Any], **arguments: Any) -> Any:
        """Call a method of the Kubernetes API; raise its errors as MlflowException."""
        try:
            return method(**self._where, **arguments)
        except self._refused as error:
            try:
                message = str(json.loads(error.body or "")["message"])
            except (ValueError, TypeError, KeyError):
                message = str(error)
            raise MlflowException(message or str(error), _CODES.get(error.status, INTERNAL_ERROR)) from error


def _spec(model_uri: str | None, config: Config | None) -> tuple[dict[str, Any], float]:
    """Return an InferenceService's spec from dotted config fields, and the readiness timeout (s)."""
    given = dict(config or {})
    timeout_s = float(given.pop("timeoutSeconds", _TIMEOUT_S))
    spec: dict[str, Any] = {"model": {"uri": model_uri}} if model_uri else {}
    for name, value in given.items():
        *parents, last = name.split(".")
        holder = spec
        for parent in parents:
            holder = holder.setdefault(parent, {})
        holder[last] = value
        if isinstance(value, str):
            with suppress(ValueError):  # any text that is no JSON stays text
                holder[last] = json.loads(value)
    return spec, timeout_s


def _describe(service: Mapping[str, Any]) -> dict[str, Any]:
    metadata, status = service["metadata"], service.get("status") or {}
    ready: Mapping[str, Any] = next((each for each in status.get("conditions") or () if each["type"] == "Ready"), {})
    # A condition of an older generation says nothing about this spec.
    current = ready.get("observedGeneration") == metadata.get("generation")
    return {
        "name": metadata["name"],
        "namespace": metadata["namespace"],
        "model_uri": (service["spec"].get("model") or {}).get("uri"),
        "url": status.get("url"),
        "ready": current and ready.get("status") == "True",
        "message": ready.get("message", ""),
    }
