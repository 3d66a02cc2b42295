"""How each server is started for a job: command, environment, files. Pure.

Every server predicts one batch at a time, as one accelerator would: more workers would make the
waits of two batches overlap, and measure the number of workers.
"""

import json
import sysconfig
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

from benchmarks.peers.workload import COLUMNS, MLP, Job
from benchmarks.rows import random_rows, v2_request

ROOT = Path(__file__).parents[2]
SERVERS = "benchmarks.peers.servers"
OURS = ("shoal", "shoal_proxy", "shoal_runtime", "shoal_schema")
ROWS = random_rows(64, COLUMNS)
PLAIN_BODIES = [json.dumps({"x": row}) for row in ROWS]
BATCH_BODIES = [json.dumps({"x": [row]}) for row in ROWS]
V2_BODIES = [json.dumps(v2_request(row)) for row in ROWS]


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start one server, and where to post what.

    Args:
        command: arguments after the interpreter of its environment.
        path: of a request.
        bodies: each of one request with one row.
        environment: beside PATH and HOME.
        files: to be written into an empty folder first, which is where it starts.
    """

    command: tuple[str, ...]
    path: str
    bodies: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)


def launch(peer: str, job: Job, free_ports: tuple[int, int]) -> Launch:
    """Return how a server starts; it may use two more ports than the job's own."""
    made = {**LAUNCHES, **COMPOSITIONS}[peer](job, free_ports)
    return replace(made, environment={**job.environment(), "PYTHONPATH": str(ROOT), **made.environment})


def shoal(job: Job, free_ports: tuple[int, int]) -> Launch:
    """Return ``shoal serve`` with the example that the job's model is."""
    workload = job.workload
    example = "mlp" if workload.name == MLP.name else "adder"
    fields: dict[str, Any] = {"batching.maxBatchSize": workload.max_batch_size, "runtime.threads": 1, **job.settings}
    if example == "adder":
        fields["model.parameters.baseMicroseconds"] = round(1000 * workload.base_ms)
        fields["model.parameters.perRowMicroseconds"] = round(1000 * workload.per_row_ms)
    options = [f"--set={name}={value}" for name, value in fields.items()]
    ports = [f"--port={job.port}", f"--admin-port={free_ports[0]}"]
    return Launch(
        ("-m", "shoal", "serve", str(ROOT / "examples" / example), *ports, *options),
        f"/v2/models/{example}/infer",
        V2_BODIES,
        {"PYTHONPATH": ":".join(dict.fromkeys(map(found_in, OURS)))},
    )


def found_in(package: str) -> str:
    """Return the folder from which this process imports a package: the compiled one where it is measured with that."""
    found = find_spec(package)
    assert found is not None
    assert found.origin is not None
    return str(Path(found.origin).parents[1])


def script(name: str, path: str, bodies: Sequence[str]) -> Callable[[Job, tuple[int, int]], Launch]:
    """Return the launch of a server that is a program of its own."""
    return lambda _job, _ports: Launch(("-m", f"{SERVERS}.{name}"), path, bodies)


def triton(_job: Job, _ports: tuple[int, int]) -> Launch:
    """Return PyTriton, whose stub must find the library of this Python rather than the system's."""
    environment = {"LD_LIBRARY_PATH": str(sysconfig.get_config_var("LIBDIR"))}
    return Launch(("-m", f"{SERVERS}.serve_triton"), "/v2/models/model/infer", V2_BODIES, environment)


def ray(_job: Job, _ports: tuple[int, int], server: str = "serve_ray") -> Launch:
    """Return Ray Serve, without usage reports and with enough time to start on two cores."""
    environment = {
        "RAY_USAGE_STATS_ENABLED": "0",
        # What Ray does on desktops: its many ports stay on the loopback address.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        # Its workers would yield to the load generator, with which they share the cores.
        "RAY_worker_niceness": "0",
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    }
    return Launch(("-m", f"{SERVERS}.{server}"), "/", PLAIN_BODIES, environment)


def ray_graph(job: Job, ports: tuple[int, int]) -> Launch:
    """Return Ray Serve with a composition of two models."""
    return ray(job, ports, "serve_ray_graph")


def bentoml(job: Job, _ports: tuple[int, int]) -> Launch:
    """Return BentoML's own command."""
    options = ("--host=127.0.0.1", f"--port={job.port}")
    environment = {"BENTOML_DO_NOT_TRACK": "True", "BENTOML_HOME": "bentoml"}
    command = ("-m", "bentoml", "serve", f"{SERVERS}.serve_bentoml:Model", *options)
    return Launch(command, "/predict", BATCH_BODIES, environment)


def mlserver(job: Job, free_ports: tuple[int, int]) -> Launch:
    """Return MLServer's own command, and the two files that configure it."""
    server = {
        "host": "127.0.0.1",
        "http_port": job.port,
        "grpc_port": free_ports[0],
        "metrics_port": free_ports[1],
        "parallel_workers": job.settings["parallel_workers"],
        "debug": False,
        "use_structured_logging": False,
    }
    model = {
        "name": "model",
        "implementation": f"{SERVERS}.serve_mlserver.Model",
        "max_batch_size": job.workload.max_batch_size,
        "max_batch_time": job.settings["max_batch_time_s"],
    }
    files = {"settings.json": json.dumps(server).encode(), "model-settings.json": json.dumps(model).encode()}
    command = ("-c", "from mlserver.cli import main; main()", "start", ".")
    return Launch(command, "/v2/models/model/infer", V2_BODIES, files=files)


def torchserve(job: Job, free_ports: tuple[int, int]) -> Launch:
    """Return TorchServe's own command, its properties and an archive with the handler."""
    model = {
        "defaultVersion": True,
        "marName": "model.mar",
        "minWorkers": 1,
        "maxWorkers": 1,
        "batchSize": job.workload.max_batch_size,
        "maxBatchDelay": job.settings["max_batch_delay_ms"],
    }
    properties = {
        "inference_address": f"http://127.0.0.1:{job.port}",
        "management_address": f"http://127.0.0.1:{free_ports[0]}",
        "metrics_address": f"http://127.0.0.1:{free_ports[1]}",
        "job_queue_size": job.settings["job_queue_size"],
        "enable_grpc_ot": "false",
        "enable_metrics_api": "false",
        "disable_token_authorization": "true",
        "disable_system_metrics": "true",
        "models": json.dumps({"model": {"1.0": model}}),
        "load_models": "model.mar",
        "model_store": ".",
        "default_workers_per_model": 1,
    }
    text = "".join(f"{name}={value}\n" for name, value in properties.items())
    files = {"config.properties": text.encode(), "model.mar": archive(), "log4j2.xml": QUIET.encode()}
    options = ("--start", "--foreground", "--ts-config=config.properties", "--log-config=log4j2.xml")
    command = ("-c", "from ts.model_server import start; start()", *options, "--model-store=.", "--no-config-snapshots")
    return Launch(
        command, "/predictions/model", PLAIN_BODIES, {"LOG_LOCATION": "logs", "METRICS_LOCATION": "logs"}, files
    )


QUIET = """<Configuration><Appenders><Console name="out"><PatternLayout pattern="%m%n"/></Console></Appenders>
<Loggers><Root level="error"><AppenderRef ref="out"/></Root></Loggers></Configuration>
"""


def archive() -> bytes:
    """Return a model archive: the handler, and the manifest that names it."""
    source = (Path(__file__).parent / "servers/serve_torchserve.py").read_text()
    model = {"modelName": "model", "handler": "serve_torchserve.py", "modelVersion": "1.0"}
    manifest = {"createdOn": "", "runtime": "python", "model": model, "archiverVersion": "0.12.0"}
    packed = BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        file.writestr("MAR-INF/MANIFEST.json", json.dumps(manifest))
        file.writestr("serve_torchserve.py", source)
    return packed.getvalue()


LAUNCHES: Mapping[str, Callable[[Job, tuple[int, int]], Launch]] = {
    "shoal": shoal,
    "mosec": script("serve_mosec", "/inference", PLAIN_BODIES),
    "triton": triton,
    "bentoml": bentoml,
    "ray": ray,
    "litserve": script("serve_litserve", "/predict", PLAIN_BODIES),
    "mlserver": mlserver,
    "torchserve": torchserve,
}
COMPOSITIONS: Mapping[str, Callable[[Job, tuple[int, int]], Launch]] = {"ray-graph": ray_graph}
"""Of two models: what a graph is measured beside."""
