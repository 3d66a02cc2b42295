"""Client protocols: the paths of each, and lookups by path.

A new protocol is one entry in `HTTP`, and its codec under the same label in ``shoal_proxy/codecs/protocols.py``.
Routing, access control, metrics, error formats, the OpenAPI document, the activator and the port shared by several
models read this table.

In a path, ``{model}`` and ``{version}`` stand for one segment, and a part in brackets is optional.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final


def expand(pattern: str) -> tuple[str, ...]:
    """Return the paths of a pattern, without and with each optional part."""
    before, _, rest = pattern.partition("[")
    part, optional, after = rest.partition("]")
    if not optional:
        return (pattern,)
    return tuple(before + middle + end for middle in ("", part) for end in expand(after))


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """A health check of the whole server, which needs no access key.

    Args:
        path: path of the GET request.
        healthy: the response of a server that passes.
        unhealthy: the response with status 503; None for a liveness check, which every running server passes.
        has_reason: whether ``unhealthy`` also states the reason.
        summary: text for the OpenAPI document; empty to omit the path there.
    """

    path: str
    healthy: Mapping[str, Any]
    unhealthy: Mapping[str, Any] | None = None
    has_reason: bool = False
    summary: str = ""

    def response(self, reason: str) -> tuple[Mapping[str, Any], int]:
        """Return the document and the status of a response.

        ``reason`` states why the server is not ready; it is empty for a ready server.
        """
        if self.unhealthy is None or not reason:
            return self.healthy, 200
        return {**self.unhealthy, **({"reason": reason} if self.has_reason else {})}, 503


@dataclass(frozen=True, slots=True)
class Page:
    """A path for metadata or management.

    Args:
        path: pattern of the paths.
        handler: name of the method of the proxy's ``PublicRoutes`` that handles requests.
        methods: allowed HTTP methods.
        is_open: whether a GET request needs no access key.
        reads_body: whether the handler reads the request's body.
        summary: text for the OpenAPI document; empty to omit the path there.
    """

    path: str
    handler: str
    methods: tuple[str, ...] = ("GET",)
    is_open: bool = False
    reads_body: bool = False
    summary: str = ""


@dataclass(frozen=True, slots=True)
class ClientProtocol:
    """A client protocol, such as V2: its paths, and the properties they share.

    Args:
        label: the protocol's value in metrics, logs and traces.
        title: the protocol's name in documents.
        infer: patterns of the inference paths, which bypass ASGI.
        methods: HTTP methods of the inference paths.
        checks: health checks.
        pages: other paths. A path belongs to one protocol only, even if clients of several protocols use it.
        any_model: whether the protocol can serve every model; otherwise only models with a certain signature.
        asynchronous: whether clients may request the result later (``Prefer: respond-async``).
    """

    label: str
    title: str
    infer: tuple[str, ...]
    methods: tuple[str, ...] = ("POST",)
    checks: tuple[HealthCheck, ...] = ()
    pages: tuple[Page, ...] = ()
    any_model: bool = True
    asynchronous: bool = False

    @property
    def patterns(self) -> tuple[str, ...]:
        """The patterns of all paths."""
        return (*self.infer, *(check.path for check in self.checks), *(page.path for page in self.pages))

    @property
    def infer_paths(self) -> tuple[str, ...]:
        """The paths of inference, expanded."""
        return tuple(path for pattern in self.infer for path in expand(pattern))


class ProtocolTable:
    """The protocols of the HTTP port, with lookups by path."""

    def __init__(self, *protocols: ClientProtocol) -> None:
        self.protocols = protocols
        self.checks = tuple(check for each in protocols for check in each.checks)
        self.pages = tuple(page for each in protocols for page in each.pages)
        self.nameless = frozenset(path for each in protocols for path in each.infer if "{model}" not in path)
        """Paths of inference that do not name a model."""
        patterns = {pattern: each for each in protocols for pattern in each.patterns}
        named = {re.escape(pattern.partition("{model}")[0]) for pattern in patterns if "{model}" in pattern}
        self._model = re.compile(f"(?:{'|'.join(sorted(named))})([^/:]+)")
        checks = [check.path for check in self.checks]
        checks += [path for page in self.pages if page.is_open for path in expand(page.path)]
        self._open = re.compile("|".join(re.sub(r"\\{\w+\\}", "[^/:]+", re.escape(path)) for path in checks))
        # The longest prefix comes first.
        prefixes = {re.split(r"/?[{[]", pattern)[0].rstrip("/"): each for pattern, each in patterns.items()}
        self._owners = sorted(prefixes.items(), key=lambda owner: -len(owner[0]))

    def owner(self, path: str) -> ClientProtocol:
        """Return the protocol in whose format errors for a path are sent.

        It is the first protocol for an unknown path.
        """
        return next((each for prefix, each in self._owners if path.startswith(prefix)), self.protocols[0])

    def is_open(self, path: str) -> bool:
        """Return whether a GET request to the path needs no access key: a liveness or readiness check."""
        return self._open.fullmatch(path) is not None

    def model_of(self, path: str) -> str:
        """Return the model that a decoded path names; empty if it names none."""
        found = self._model.match(path)
        return found[1] if found else ""


_READY: Final = "Whether the model is ready"
RESULT: Final = "/v2/models/{model}/results/{id}"
"""The result of an asynchronous request."""
TORCHSERVE: Final = ClientProtocol(
    "torchserve",
    "TorchServe",
    infer=("/predictions/{model}[/{version}]",),
    methods=("POST", "PUT"),
    checks=(HealthCheck("/ping", {"status": "Healthy"}, {"status": "Unhealthy"}),),
    pages=(
        Page("/models", "list_models"),
        Page("/models", "register_model", methods=("POST",)),
        Page("/models/{model}[/{version}]", "describe_model"),
    ),
)
HTTP: Final = ProtocolTable(
    ClientProtocol(
        "v1",
        "KServe V1",
        infer=("/v1/models/{model}[/versions/{version}]:predict",),
        checks=(HealthCheck("/", {"status": "alive"}),),
        pages=(
            Page("/v1/models", "v1_models"),
            Page("/v1/models/{model}[/versions/{version}]", "v1_model", is_open=True),
        ),
    ),
    ClientProtocol(
        "v2",
        "Open Inference Protocol V2",
        infer=("/v2/models/{model}[/versions/{version}]/infer",),
        checks=(
            HealthCheck("/v2/health/live", {"live": True}),
            HealthCheck("/v2/health/ready", {"ready": True}, {"ready": False}, has_reason=True, summary=_READY),
        ),
        pages=(
            Page("/v2", "server"),
            # Triton's extensions. Its statistics of all models come before the metadata of a model named "stats".
            Page("/v2/repository/index", "repository_index", methods=("GET", "POST"), reads_body=True),
            Page("/v2/repository/models/{model}/load", "reject_loading", methods=("POST",)),
            Page("/v2/repository/models/{model}/unload", "reject_loading", methods=("POST",)),
            Page("/v2/models/stats", "statistics"),
            Page("/v2/models/{model}[/versions/{version}]/stats", "statistics"),
            Page("/v2/models/{model}[/versions/{version}]/ready", "model_ready", is_open=True),
            Page("/v2/models/{model}[/versions/{version}]", "metadata", summary="The model's inputs and outputs"),
            Page(RESULT, "result", methods=("GET", "DELETE")),
        ),
        asynchronous=True,
    ),
    TORCHSERVE,
    ClientProtocol("invocations", "MLflow, SageMaker", infer=("/invocations",), asynchronous=True),
    ClientProtocol("embeddings", "OpenAI", infer=("/v1/embeddings",), any_model=False),
    ClientProtocol("rerank", "Cohere, Jina", infer=("/v1/rerank", "/v2/rerank"), any_model=False),
)
"""The protocols that share the HTTP port."""
SHADOW_LABEL: Final = "shadow"
"""Label, instead of the protocol's, of batches that a candidate runs for comparison only."""
GRPC_SERVICE: Final = "inference.GRPCInferenceService"
GRPC: Final = ClientProtocol(
    "grpc",
    "V2 over gRPC",
    infer=(f"/{GRPC_SERVICE}/ModelInfer", f"/{GRPC_SERVICE}/ModelStreamInfer"),
    pages=tuple(
        Page(f"/{GRPC_SERVICE}/{method}", method, is_open=method in ("ServerLive", "ServerReady", "ModelReady"))
        for method in (
            "ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelStatistics",
            "RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload",
        )
    ),
)  # fmt: skip
"""The protocol of the gRPC port."""
DOCS: Final = ("/docs", "/openapi.json")
"""The page and the OpenAPI document of a model: at the root, and below ``/v2/models/NAME``."""
