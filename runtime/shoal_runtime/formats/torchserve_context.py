"""TorchServe's `context` object for handlers: request headers, responses, and discarded metrics."""

import os
import uuid
from collections.abc import Mapping, Sequence
from typing import Any


class RequestProcessor:
    """Headers of one request, and the status and headers of its response.

    Args:
        headers: request headers, names in lower case.
        parts: properties of each part of the request body, by name.
    """

    def __init__(self, headers: Mapping[str, Any], parts: Mapping[str, Any] | None = None) -> None:
        # TorchServe keeps both in one dict; headers take precedence.
        self._request_header = {**(parts or {}), **headers}
        self._status_code = 200
        self._reason_phrase: str | None = None
        self._response_header: dict[str, str] = {}

    def get_request_property(self, key: str) -> Any:
        """Return a request header (ignoring case), or the properties of a part of the body."""
        return self._request_header.get(key, self._request_header.get(key.lower()))

    def get_request_properties(self) -> dict[str, Any]:
        """Return all request headers and properties of parts."""
        return self._request_header

    def report_status(self, code: int, reason_phrase: str | None = None) -> None:
        """Set status code and reason phrase of the response."""
        self._status_code, self._reason_phrase = code, reason_phrase

    def get_response_status_code(self) -> int:
        """Return the status code of the response."""
        return self._status_code

    def get_response_status_phrase(self) -> str | None:
        """Return the reason phrase that the handler set; responses are sent with the usual phrase."""
        return self._reason_phrase

    def add_response_property(self, key: str, value: str) -> None:
        """Set a header of the response."""
        self._response_header[key] = value

    def get_response_headers(self) -> dict[str, str]:
        """Return the headers of the response."""
        return self._response_header

    def get_response_header(self, key: str) -> str | None:
        """Return a header of the response, or None."""
        return self._response_header.get(key)


class Metrics:
    """TorchServe's metrics object for handlers, which discards all values."""

    def __init__(self) -> None:
        self.request_ids: Any = None

    def nothing(self, *args: Any, **kwargs: Any) -> "Metrics":
        """Discard the arguments."""
        return self

    # Every method of TorchServe's metrics.
    add_counter = add_error = add_metric = add_metric_to_cache = add_percent = add_size = add_time = nothing
    add_or_update = get_metric = reset = update = nothing


class Context:
    """TorchServe's context: the argument of `initialize`, and the second argument of `handle`."""

    def __init__(  # noqa: PLR0913, PLR0917 (TorchServe's)
        self,
        model_name: str | None,
        model_dir: str | None,
        manifest: Mapping[str, Any],
        batch_size: int | None,
        gpu: int | None,
        mms_version: str | None = None,
        limit_max_image_pixels: bool = True,  # noqa: FBT001, FBT002 (TorchServe's)
        metrics: Any = None,
        model_yaml_config: Mapping[str, Any] | None = None,
    ) -> None:
        self.model_name = model_name
        self.manifest = manifest
        self.metrics = metrics if metrics is not None else Metrics()
        self.model_yaml_config = dict(model_yaml_config or {})
        self.system_properties = {
            "model_dir": model_dir,
            "gpu_id": gpu,
            "batch_size": batch_size,
            "server_name": "MMS",
            "server_version": mms_version,
            "limit_max_image_pixels": limit_max_image_pixels,
        }
        self.request_ids: dict[int, str] | None = None
        self.request_processor: Sequence[RequestProcessor] = ()
        self.stopping_criteria = None
        self.header_key_sequence_id = os.getenv("TS_REQUEST_SEQUENCE_ID", "ts_request_sequence_id")

    def take(self, processors: Sequence[RequestProcessor]) -> None:
        """Set the requests of the batch that the handler processes next."""
        # The ids by position, as in TorchServe.
        ids = [processor.get_request_property("x-request-id") for processor in processors]
        self.request_processor = processors
        self.request_ids = {index: given or str(uuid.uuid4()) for index, given in enumerate(ids)}
        self.metrics.request_ids = self.request_ids

    def get_request_id(self, idx: int = 0) -> str | None:
        """Return a request's `x-request-id`, or the generated id."""
        return None if self.request_ids is None else self.request_ids.get(idx)

    def get_request_header(self, idx: int, key: str) -> Any:
        """Return a header of one request, or None."""
        return self.request_processor[idx].get_request_property(key)

    def get_all_request_header(self, idx: int) -> dict[str, Any]:
        """Return all headers of one request."""
        return self.request_processor[idx].get_request_properties()

    def get_sequence_id(self, idx: int) -> Any:
        """Return a request's header that identifies its sequence."""
        return self.get_request_header(idx, self.header_key_sequence_id)

    def set_response_status(self, code: int = 200, phrase: str = "", idx: int = 0) -> None:
        """Set the status of one response."""
        if self.request_processor:
            self.request_processor[idx].report_status(code, reason_phrase=phrase)

    def set_all_response_status(self, code: int = 200, phrase: str = "") -> None:
        """Set the status of every response of the batch."""
        for processor in self.request_processor:
            processor.report_status(code, reason_phrase=phrase)

    def get_response_status(self, idx: int) -> tuple[int, str | None]:
        """Return status code and reason phrase of one response."""
        processor = self.request_processor[idx]
        return processor.get_response_status_code(), processor.get_response_status_phrase()

    def set_response_header(self, idx: int, key: str, value: str) -> None:
        """Set a header of one response."""
        self.request_processor[idx].add_response_property(key, value)

    def get_response_headers(self, idx: int) -> dict[str, str]:
        """Return the headers of one response."""
        return self.request_processor[idx].get_response_headers()

    def set_response_content_type(self, idx: int, value: str) -> None:
        """Set the media type of one response."""
        self.set_response_header(idx, "content-type", value)

    def get_response_content_type(self, idx: int) -> str | None:
        """Return the media type that the handler set for one response, or None."""
        return self.get_response_headers(idx).get("content-type")
