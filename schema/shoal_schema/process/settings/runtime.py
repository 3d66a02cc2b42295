"""Settings of the runtime process."""

from typing import Annotated

from msgspec import Meta

from shoal_schema.fields.addresses import Address
from shoal_schema.fields.declaring import (
    GIB,
    KIB,
    MIB,
    MODEL,
    RUNTIME,
    TIB,
    Env,
    SettingsSection,
)
from shoal_schema.interfaces.instances import MAX_INSTANCES
from shoal_schema.process.settings.descriptions import ADDRESS, HEAD, HEAD_TIME
from shoal_schema.resource.runtime import Precision


class RuntimeProcess(SettingsSection, frozen=True):
    """Settings of the runtime process."""

    listen: Annotated[
        Address, Meta(description="Address to listen on."), Env("SHOAL_RUNTIME_LISTEN", RUNTIME, allowed=ADDRESS)
    ] = Address(path="/run/shoal/runtime.sock")
    instance: (
        Annotated[
            int,
            Meta(
                ge=0,
                le=MAX_INSTANCES - 1,
                description="Number of this process among several instances, from 0. The runtime sets it for the"
                " processes that it starts.",
            ),
            Env("SHOAL_RUNTIME_INSTANCE", RUNTIME),
        ]
        | None
    ) = None
    chosen_precision: (
        Annotated[
            Precision,
            Meta(
                description="Precision to use instead of a measurement, if a tolerance is set. The runtime sets it to"
                " the choice of the first instance, so that the results of all instances have one precision."
            ),
            Env("SHOAL_RUNTIME_CHOSEN_PRECISION", RUNTIME),
        ]
        | None
    ) = None
    model_digest: (
        Annotated[
            str,
            Meta(
                pattern="^[0-9a-f]{64}$",
                description="Digest of the model's files that the first of several instances has loaded. The runtime"
                " sets it; an instance that finds other files does not load them.",
            ),
            Env("SHOAL_RUNTIME_MODEL_DIGEST", RUNTIME),
        ]
        | None
    ) = None
    # Fetching a model: an archive must not fill the disk.
    cache_dir: (
        Annotated[
            str,
            Meta(description="Directory of downloads. Default: `shoal` in the user's cache directory."),
            Env("SHOAL_MODEL_CACHE_DIR", RUNTIME, MODEL, allowed="a directory"),
        ]
        | None
    ) = None
    model_ca_bundle: Annotated[
        str,
        Meta(
            description="File of authorities, in PEM, to trust beside the system's when a model or rows are"
            " fetched. `AWS_CA_BUNDLE`, `REQUESTS_CA_BUNDLE` and `CURL_CA_BUNDLE` add authorities too;"
            " `SSL_CERT_FILE` and `SSL_CERT_DIR` replace the system's."
        ),
        Env("SHOAL_MODEL_CA_BUNDLE", RUNTIME, MODEL, allowed="a file"),
    ] = ""
    model_max_bytes: Annotated[
        int,
        Meta(ge=MIB, le=1024 * TIB, description="Maximum size of a download, and of an unpacked archive."),
        Env("SHOAL_MODEL_MAX_BYTES", RUNTIME, MODEL),
    ] = 128 * GIB
    model_max_files: Annotated[
        int,
        Meta(ge=1, le=10_000_000, description="Maximum number of files and directories in an archive."),
        Env("SHOAL_MODEL_MAX_FILES", RUNTIME, MODEL),
    ] = 100_000
    model_max_ratio: Annotated[
        int,
        Meta(ge=1, le=100_000, description="Maximum compression ratio of an archive, beyond the first 64 MiB."),
        Env("SHOAL_MODEL_MAX_RATIO", RUNTIME, MODEL),
    ] = 100
    fetch_timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            le=86400,
            description="Time limit to download, verify and unpack the model; the process then exits with 3.",
        ),
        Env("SHOAL_MODEL_FETCH_TIMEOUT_S", RUNTIME, MODEL),
    ] = 3600.0
    model_fetched: Annotated[
        bool,
        Meta(
            description="Whether an init container has fetched the model into the cache: the runtime then makes no"
            " requests and needs no credentials."
        ),
        Env("SHOAL_MODEL_FETCHED", RUNTIME),
    ] = False
    # Loading and serving.
    load_timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            le=86400,
            description="Time limit to import, load and warm up the model; the process then exits with 3.",
        ),
        Env("SHOAL_MODEL_LOAD_TIMEOUT_S", RUNTIME),
    ] = 1800.0
    max_body_bytes: Annotated[
        int,
        Meta(ge=KIB, le=TIB, description="Maximum size of an inference request's body."),
        Env("SHOAL_RUNTIME_MAX_BODY_BYTES", RUNTIME),
    ] = GIB
    max_head_bytes: Annotated[
        int, Meta(ge=KIB, le=16 * MIB, description=HEAD), Env("SHOAL_RUNTIME_MAX_HEAD_BYTES", RUNTIME)
    ] = 32 * KIB
    head_timeout_s: Annotated[
        float, Meta(gt=0, le=3600, description=HEAD_TIME), Env("SHOAL_RUNTIME_HEAD_TIMEOUT_S", RUNTIME)
    ] = 30.0
    transfer_timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            le=3600,
            description="Time limit for a body or a response that moves more slowly than"
            " `SHOAL_RUNTIME_MIN_BYTES_PER_S`.",
        ),
        Env("SHOAL_RUNTIME_TRANSFER_TIMEOUT_S", RUNTIME),
    ] = 60.0
    min_bytes_per_s: Annotated[
        int,
        Meta(ge=1, le=TIB, description="Minimum rate of bodies and responses. Faster transfers have no time limit."),
        Env("SHOAL_RUNTIME_MIN_BYTES_PER_S", RUNTIME),
    ] = 16 * KIB
    shutdown_timeout_s: Annotated[
        float,
        Meta(ge=0, le=3600, description="On SIGTERM, time to wait for open connections."),
        Env("SHOAL_RUNTIME_SHUTDOWN_TIMEOUT_S", RUNTIME),
    ] = 60.0
