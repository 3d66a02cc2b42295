"""ASGI application of the inference port, with all routes but inference.

The routes serve health, metadata and model management in the clients' protocols.
"""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from shoal_proxy.access.control import AccessControl, AuthenticatedClient
from shoal_proxy.balance.orca import load_value, requested_format
from shoal_proxy.bodies.compression import Compression
from shoal_proxy.codecs.protocols import codec_for
from shoal_proxy.codecs.tensors import wire_axis, wire_shape
from shoal_proxy.dispatch.dispatcher import Dispatcher
from shoal_proxy.dispatch.link import ModelLink
from shoal_proxy.errors import NotFound, NotImplementedHere, ProxyError, ResultMissing, Unauthenticated
from shoal_proxy.http.cors import Cors
from shoal_proxy.lifecycle.drain import unready_reason
from shoal_proxy.model.signature import InputSpec, ModelSignature, OutputSpec
from shoal_proxy.observe.metrics import Metrics
from shoal_proxy.routes.docs import docs_routes
from shoal_proxy.routes.management import describe_model, registration_advice
from shoal_proxy.routes.model_statistics import model_statistics
from shoal_proxy.routes.repository import index, read_index_request
from shoal_proxy.routes.results import Results
from shoal_proxy.settings import Settings
from shoal_schema.interfaces.headers import EXECUTED, FORWARDED, INSTANCE, LOAD, LOAD_FORMAT, REVISION
from shoal_schema.interfaces.protocols import DOCS, HTTP, HealthCheck, expand
from shoal_schema.wire.columns import encode_columns

EXTENSIONS = ("binary_tensor_data", "classification", "statistics")
_CLIENT = "shoal.client"
"""Key of the authenticated client in the ASGI scope."""
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


class PublicRoutes:
    """Handlers of the inference port's routes other than inference."""

    def __init__(
        self,
        settings: Settings,
        link: ModelLink,
        dispatcher: Dispatcher,
        metrics: Metrics,
        version: str,
        access_control: AccessControl | None = None,
    ) -> None:
        self._settings = settings
        self._link = link
        self._dispatcher = dispatcher
        self._metrics = metrics
        self._version = version
        self.access_control = access_control
        """Authenticates all requests but health checks; None: all clients are allowed."""
        self.results: Results | None = None
        """The results of asynchronous requests; None if the service accepts none."""

    def routes(self) -> Sequence[Route]:
        """Return all routes of the inference port except the infer routes."""
        name, version = self._settings.name, self._settings.version
        routes = [Route(check.path, self._health_check(check)) for check in HTTP.checks]
        for protocol in HTTP.protocols:
            others = [method for method in _METHODS if method not in protocol.methods]
            for path in protocol.infer_paths:
                routes.append(Route(path, self.unknown_model, methods=protocol.methods))
                # Without this one, V1's "NAME:predict" would match as a model's name below.
                routes.append(Route(path, self.method_not_allowed, methods=others))
        paths = [(path, page) for page in HTTP.pages for path in expand(page.path)]
        # A model named "stats" has its metadata at that path, not the statistics of all models.
        taken = {path.format(model=name, version=version, id="") for path, _ in paths if "{" in path}
        for path, page in paths:
            if path not in taken:
                routes.append(Route(path, getattr(self, page.handler), methods=page.methods))
        if self._settings.proxy.docs:
            routes += docs_routes(self._dispatcher.signature, name=name, version=version)
        return routes

    def reason(self) -> str:
        """Return why this replica is not ready; empty if it is ready."""
        # A replica without keys would reject every request, so it is not ready.
        closed = "" if self.access_control is None else self.access_control.reason
        return unready_reason(self._dispatcher.phase, closed or self._link.reason)

    def _health_check(self, check: HealthCheck) -> Callable[[Request], Awaitable[Response]]:
        async def respond(request: Request) -> Response:
            # A person who opens the server in a browser gets the page instead of V1's liveness.
            if check.path == "/" and self._settings.proxy.docs and "text/html" in request.headers.get("accept", ""):
                return RedirectResponse(DOCS[0].removeprefix("/"))
            return JSONResponse(*check.response(self.reason()))

        return respond

    async def list_models(self, request: Request) -> Response:
        """Respond with TorchServe's list of models, which has one entry."""
        name = self._settings.name
        return JSONResponse({"models": [{"modelName": name, "modelUrl": name}]})

    async def describe_model(self, request: Request) -> Response:
        """Respond with TorchServe's description of the served model."""
        if request.path_params.get("version") == "all":  # TorchServe's name for all versions
            request.path_params.pop("version")
        self._check_model(request)
        link, queue = self._link, self._dispatcher.scheduler.queue
        most = self._settings.batching.max_batch_size
        # TorchServe's `batchSize` is the largest batch that the model accepts.
        document = describe_model(
            self._settings.name,
            self._settings.version,
            batch_size=link.signature.largest_batch(most) if link.signature is not None else most,
            ready=not self.reason(),
            waiting=queue.rows,
            capacity=self._settings.queue_rows,
        )
        return JSONResponse([document])

    async def register_model(self, request: Request) -> Response:
        """Reject the registration of a model.

        The error contains the Kubernetes resource to apply instead.
        """
        raise HTTPException(405, registration_advice(request.query_params), headers={"allow": "GET"})

    async def model_ready(self, request: Request) -> Response:
        """Respond to V2's readiness check; a peer also receives the load."""
        self._check_model(request)
        reason = self.reason()
        document = {"name": self._settings.name, "ready": not reason}
        headers: dict[str, str] = {}
        form = requested_format(request.headers.get(LOAD_FORMAT, "").encode("latin-1"))
        peer = FORWARDED in request.headers
        if form and (load := self._dispatcher.load(time.monotonic(), peer=peer)) is not None:
            headers[LOAD] = load_value(load, form).decode()
        if peer:
            headers[INSTANCE] = self._dispatcher.instance.decode()
            # Peers and the stable revision check that they know this pod.
            if revision := self._settings.process.revision:
                headers[REVISION] = revision
        return JSONResponse({**document, "reason": reason} if reason else document, 503 if reason else 200, headers)

    async def result(self, request: Request) -> Response:
        """Respond to a request for the result of an asynchronous request, or to its deletion."""
        self._check_model(request)
        if self.results is None:
            raise NotFound("this service accepts no asynchronous requests: the field asynchronous is not set")
        client: AuthenticatedClient | None = request.scope.get(_CLIENT)
        return await self.results.respond(
            request,
            "" if client is None else client.name,
            () if client is None else client.credentials,
            only_here=FORWARDED in request.headers,
        )

    async def server(self, request: Request) -> Response:
        """Respond with V2's server metadata."""
        return JSONResponse(self.server_metadata())

    def server_metadata(self) -> dict[str, Any]:
        """Return V2's server metadata."""
        return {"name": "shoal", "version": self._version, "extensions": list(EXTENSIONS)}

    async def metadata(self, request: Request) -> Response:
        """Respond with V2's metadata of the model."""
        self._check_model(request)
        return JSONResponse(self.model_metadata())

    def model_metadata(self) -> dict[str, Any]:
        """Return V2's metadata of the served model."""
        return describe(self._dispatcher.signature(), self._settings)

    async def repository_index(self, request: Request) -> Response:
        """Respond with Triton's index of models, which has one entry."""
        return JSONResponse(self.triton_index(ready=await read_index_request(request)))

    def triton_index(self, *, ready: bool) -> list[dict[str, str]]:
        """Return Triton's index of models.

        With ``ready`` the index contains ready models only.
        """
        return index(self._settings.name, self._settings.version, self.reason(), ready=ready)

    async def reject_loading(self, request: Request) -> Response:
        """Reject a request to load or unload a model."""
        raise self.loading_error()

    def loading_error(self) -> ProxyError:
        """Return the error for requests to load or unload a model."""
        return NotImplementedHere(
            f"this server serves only {self._settings.name!r} and does not load or unload models."
            " Apply another InferenceService, or delete this one"
        )

    async def statistics(self, request: Request) -> Response:
        """Respond with the model's statistics in Triton's format."""
        if "model" in request.path_params:
            self._check_model(request)
        return JSONResponse(self.triton_statistics())

    def triton_statistics(self) -> dict[str, Any]:
        """Return the model's statistics in Triton's format."""
        settings = self._settings
        statistics = model_statistics(
            settings.name,
            settings.version,
            self._metrics,
            now_s=time.monotonic(),
            wall_s=time.time(),  # noqa: TID251 (Triton reports a date)
        )
        return {"model_stats": [statistics]}

    async def v1_models(self, request: Request) -> Response:
        """Respond with the list of models, valid for V1 and OpenAI clients."""
        model = {"id": self._settings.name, "object": "model", "created": 0, "owned_by": "shoal"}
        return JSONResponse({"models": [self._settings.name], "object": "list", "data": [model]})

    async def v1_model(self, request: Request) -> Response:
        """Respond to V1's readiness check of one model."""
        self._check_model(request)
        reason = self.reason()
        return JSONResponse({"name": self._settings.name, "ready": not reason}, 503 if reason else 200)

    async def unknown_model(self, request: Request) -> Response:
        """Reject an infer request for another model or version."""
        if "model" in request.path_params:
            self._check_model(request)
        raise NotFound(f"no such path: {request.url.path}")

    async def method_not_allowed(self, request: Request) -> Response:
        """Reject a method that an infer path does not support."""
        raise HTTPException(405, headers={"allow": ", ".join(HTTP.owner(request.url.path).methods)})

    def _check_model(self, request: Request) -> None:
        model, version = (
            request.path_params["model"],
            request.path_params.get("version", self._settings.version),
        )
        if model != self._settings.name:
            raise NotFound(f"unknown model {model!r}; this server has {self._settings.name!r}")
        if version != self._settings.version:
            raise NotFound(
                f"unknown version {version!r} of model {model!r}; this server has {self._settings.version!r}"
            )


def describe(signature: ModelSignature, settings: Settings) -> dict[str, Any]:
    """Return the V2 metadata of a model as clients receive it."""
    inputs, outputs = [], []
    for each in signature.inputs.values():
        parameters = _set_parameters(
            batch_dim=each.batch_dim,
            content_type=",".join(each.content_types),
            optional=each.optional,
            columns=encode_columns(each.columns) if each.columns else "",
            nullable=each.nullable,
            logical_type=each.logical_type,
            unit=each.unit,
            pad_axis=None if each.pad_axis is None else wire_axis(each, each.pad_axis),
            pad_value=each.pad_value,
            pad_buckets=",".join(map(str, each.pad_buckets)),
            pad_mask=each.pad_mask,
            carries=each.carries,
            example=each.example,
        )
        inputs.append(_tensor(each, parameters))
    for spec in signature.outputs.values():
        parameters = _set_parameters(
            batch_dim=spec.batch_dim,
            content_type=spec.content_type if spec.datatype == "BYTES" else "",
            unpad_axis=None if spec.unpad_axis is None else wire_axis(spec, spec.unpad_axis),
            unpad_input=spec.unpad_input,
            carries=spec.carries,
            columns=encode_columns(spec.columns) if spec.columns else "",
        )
        outputs.append(_tensor(spec, parameters))
    return {
        "name": settings.name,
        "versions": [settings.version],
        "platform": signature.platform,
        "inputs": inputs,
        "outputs": outputs,
        "parameters": _set_parameters(
            max_batch_size=signature.largest_batch(settings.batching.max_batch_size),
            allowed_batch_sizes=",".join(map(str, signature.allowed_batch_sizes)),
            graphs=signature.graphs,
            precision=signature.precision,
        ),
    }


def _tensor(spec: InputSpec | OutputSpec, parameters: Mapping[str, Any]) -> dict[str, Any]:
    tensor = {"name": spec.name, "datatype": spec.datatype, "shape": wire_shape(spec, spec.shape)}
    return {**tensor, "parameters": parameters} if parameters else tensor


_AXES = ("pad_axis", "unpad_axis")


def _set_parameters(**parameters: Any) -> dict[str, Any]:
    """Return the parameters that differ from their defaults. Axes have no default, so an axis of 0 stays."""
    return {key: value for key, value in parameters.items() if value or (value is not None and key in _AXES)}


async def _proxy_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ProxyError)
    response = codec_for(request.url.path).error(error)
    # Other errors of pages occur before anything runs.
    headers = {EXECUTED: "maybe" if isinstance(error, ResultMissing) else "no"}
    if error.status == Unauthenticated.status:
        headers["www-authenticate"] = "Bearer"
    if error.retry_after_s is not None:
        headers["retry-after"] = str(error.retry_after_s)
    return Response(b"".join(map(bytes, response.body)), response.status, headers, "application/json")


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    shown = NotFound(f"no such path: {request.url.path}") if error.status_code == 404 else ProxyError(error.detail)
    shown.status = error.status_code
    response = await _proxy_error(request, shown)
    response.headers.update(error.headers or {})
    return response


def make_app(pages: PublicRoutes, cors: Cors | None = None, compression: Compression | None = None) -> Starlette:
    """Return the ASGI application of the inference port."""
    handlers = {ProxyError: _proxy_error, HTTPException: _http_error}
    # Browsers send no key with a preflight request, so CORS comes before authentication.
    middleware = [] if compression is None else [compression.middleware()]
    middleware += [] if cors is None else [cors.middleware()]
    middleware += (
        [] if pages.access_control is None else [Middleware(_Authentication, access_control=pages.access_control)]
    )
    return Starlette(routes=list(pages.routes()), exception_handlers=handlers, middleware=middleware)


class _Authentication:
    """ASGI middleware that rejects requests without a valid key."""

    def __init__(self, app: ASGIApp, access_control: AccessControl) -> None:
        self._app = app
        self._access_control = access_control

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Load balancers and peers send health checks without a key.
        if not (HTTP.is_open(scope["path"]) and scope["method"] in ("GET", "HEAD")):
            try:
                scope[_CLIENT] = self._access_control.identify(dict(scope["headers"]))
            except ProxyError as error:
                await (await _proxy_error(Request(scope), error))(scope, receive, send)
                return
        await self._app(scope, receive, send)
