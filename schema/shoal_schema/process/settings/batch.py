"""Settings of the batch program."""

from typing import Annotated

from msgspec import Meta

from shoal_schema.fields.addresses import TcpAddress
from shoal_schema.fields.declaring import (
    BATCH,
    MIB,
    TIB,
    Env,
    SettingsSection,
)


class BatchProcess(SettingsSection, frozen=True):
    """Settings of the batch process."""

    # Which part of the work this process does.
    worker: Annotated[
        int, Meta(ge=0, le=100_000, description="Index of this worker."), Env("SHOAL_BATCH_WORKER", BATCH)
    ] = 0
    workers: Annotated[
        int,
        Meta(ge=1, le=100_000, description="Number of workers that share the shards."),
        Env("SHOAL_BATCH_WORKERS", BATCH),
    ] = 1
    run: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9-]*\Z",
            max_length=63,
            description="Identifier of the run, in the leases of its workers.",
        ),
        Env("SHOAL_BATCH_RUN", BATCH, allowed="letters, digits and '-'"),
    ] = ""
    # What computes.
    engines: Annotated[
        int,
        Meta(ge=1, le=1024, description="Number of engine processes, each with its own copy of the model."),
        Env("SHOAL_BATCH_ENGINES", BATCH),
    ] = 1
    engine: Annotated[
        str,
        Meta(description="Command of an engine process to use instead of the runtime's."),
        Env("SHOAL_BATCH_ENGINE", BATCH, allowed="a command"),
    ] = ""
    ahead_bytes: Annotated[
        int,
        Meta(ge=MIB, le=TIB, description="Size limit of rows read ahead, and of results that are not yet written."),
        Env("SHOAL_BATCH_AHEAD_BYTES", BATCH),
    ] = 256 * MIB
    progress_listen: (
        Annotated[
            TcpAddress,
            Meta(description="Address of `GET /v1/progress`. Default: none."),
            Env("SHOAL_BATCH_PROGRESS_LISTEN", BATCH, allowed="HOST:PORT"),
        ]
        | None
    ) = None
