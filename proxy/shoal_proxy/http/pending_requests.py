"""Pending requests, made of decoded ones: their deadlines and batch keys. Pure: the time is an argument."""

from shoal_proxy.batching.batch import check_lengths, shape_key
from shoal_proxy.batching.pending import NEVER_S, PLAIN_KEY, BatchKey, PendingRequest, discard
from shoal_proxy.codecs.base import DecodedRequest
from shoal_proxy.http.header_cache import QueueParameters
from shoal_proxy.http.parameters import limited_timeout_s
from shoal_proxy.model.signature import ModelSignature
from shoal_proxy.model.sizes import byte_size_of


class PendingRequests:
    """Makes pending requests of decoded ones.

    Args:
        queue_timeout_s: time in the queue of a request whose client states none.
        longest_s: limit of each request's time in the queue.
        padding_factor: largest ratio of lengths that are padded to one another in a batch.
    """

    def __init__(self, queue_timeout_s: float, longest_s: float, padding_factor: float) -> None:
        self._queue_timeout_s = queue_timeout_s
        self._longest_s = longest_s
        self._padding_factor = padding_factor

    def make(
        self, decoded: DecodedRequest, parameters: QueueParameters, signature: ModelSignature, now_s: float
    ) -> PendingRequest:
        """Return a request for the queue, whose ``deliver`` is not set yet.

        Raises:
            ProxyError: the lengths of its rows do not fit the signature.
        """
        if signature.pads:
            # The rows of a rectangular tensor all have its length.
            for name, array in decoded.inputs.items():
                axis = signature.inputs[name].pad_axis
                if axis is not None and name not in decoded.lengths:
                    decoded.lengths[name] = [array.shape[axis]] * decoded.rows
            check_lengths(decoded.lengths, signature)
        # The shorter one of the header's timeout and the body's counts; 0 stands for none.
        timeout_s = parameters.timeout_s
        if decoded.timeout_ms is not None:
            own_s = limited_timeout_s(decoded.timeout_ms)
            timeout_s = min(timeout_s, own_s) if timeout_s else own_s
        if signature.fixed and not (decoded.parameters or decoded.tensors or parameters.forwarded_headers):
            key = PLAIN_KEY
        else:
            shapes = shape_key(decoded.inputs, signature, self._padding_factor) if signature.batches else ()
            key = BatchKey(shapes, decoded.parameters, decoded.tensors, parameters.forwarded_headers)
            if not signature.batches:
                key = key.alone()
        pending = PendingRequest(
            inputs=decoded.inputs,
            rows=decoded.rows,
            size_bytes=byte_size_of(decoded.inputs),
            arrived_s=now_s,
            # The deadline in the queue; without a client's timeout there is none for the response.
            deadline_s=now_s + min(timeout_s or self._queue_timeout_s, self._longest_s),
            soft_deadline_s=now_s + timeout_s if timeout_s else NEVER_S,
            deliver=discard,
            key=key,
            lane=parameters.lane,
            lengths=decoded.lengths,
            trace=parameters.trace,
        )
        if parameters.forwarded:
            pending.forwarded = True
            if parameters.return_before_s:
                pending.return_s = pending.deadline_s - parameters.return_before_s
        if parameters.shadow:
            pending.shadow = pending.forwarded = True
        if parameters.sticky:
            pending.sticky = parameters.sticky
        return pending
