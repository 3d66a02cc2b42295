"""Environment variables of containers, from fields of the spec."""

from shoal_schema.fields.declaring import Json, Process
from shoal_schema.fields.quantities import parse_quantity
from shoal_schema.interfaces.instances import MAX_INSTANCES
from shoal_schema.process.environment import variables_of_spec
from shoal_schema.resource.offline import BatchInferenceSpec
from shoal_schema.resource.runtime import Device, RuntimeSpec
from shoal_schema.resource.service import InferenceServiceSpec

SOCKET_DIR = "/run/shoal"
SOCKET = f"unix:{SOCKET_DIR}/runtime.sock"
KEYS_DIR = "/var/run/shoal/api-keys"
WEBHOOK_KEYS_DIR = "/var/run/shoal/webhook-keys"
CACHE_DIR = "/var/cache/shoal"
TLS_DIR, CLIENT_CA_DIR = "/etc/shoal/tls", "/etc/shoal/client-ca"
CA_DIR, CA_FILE = "/etc/shoal/ca", "ca.crt"
HTTP_PORT = 8080
ADMIN_PORT = 9090
GPU = "nvidia.com/gpu"


def variable(name: str, value: str) -> Json:
    """Return one entry of a container's ``env``."""
    return {"name": name, "value": value}


def literal(name: str, text: str) -> Json:
    """Return an entry of ``env`` without expansion of variables.

    Kubernetes expands ``$(NAME)`` and replaces ``$$`` by ``$``, so each ``$`` is doubled.
    """
    return variable(name, text.replace("$", "$$"))


def spec_variables(spec: InferenceServiceSpec | BatchInferenceSpec, process: Process) -> list[Json]:
    """Return the environment variables of a process, from the spec's fields."""
    return [literal(name, text) for name, text in variables_of_spec(spec, process)]


def runtime_concurrency(spec: InferenceServiceSpec) -> int:
    """Return the number of batches that a pod runs at a time."""
    return spec.batching.in_flight if spec.runtime.port is not None else runtime_instances(spec.runtime)


def runtime_instances(runtime: RuntimeSpec) -> int:
    """Return the number of runtime processes in a pod: as the spec says, else one per GPU."""
    if runtime.port is not None or runtime.device is Device.CPU:
        return runtime.instances or 1
    limits = runtime.resources.limits if runtime.resources else {}
    gpus = int(parse_quantity(limits[GPU].written)) if GPU in limits else 0
    return runtime.instances or min(MAX_INSTANCES, max(1, gpus))
