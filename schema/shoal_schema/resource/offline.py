"""The spec of a ``BatchInference``: a model, its input rows and its output."""

from enum import StrEnum
from typing import Annotated, ClassVar

from msgspec import Meta

from shoal_schema.expressions.grammar import MAX_LENGTH
from shoal_schema.fields.declaring import BATCH, GIB, KIB, Env, FieldFault, SettingsSection
from shoal_schema.fields.quantities import SHARE
from shoal_schema.fields.rules import Custom, Given, In, Matches, Not, Rule, any_of, checked_by_api_server
from shoal_schema.resource.locations import CREDENTIALS
from shoal_schema.resource.model import ModelSpec
from shoal_schema.resource.passthrough import StringMap, Text, object_name
from shoal_schema.resource.pod import PodSpec
from shoal_schema.resource.runtime import RuntimeSpec

STORES = ("file", "s3", "gs", "az", "abfss")
STORED = rf"^({'|'.join(STORES)})://[^\x00-\x20?#]+\Z"
FOLDER = rf"^({'|'.join(STORES)})://[^\x00-\x20?#*\[\]]+\Z"
IN_WORDS = ", ".join(f"{each}://" for each in STORES)
ERRORS_IN_COLUMN = "Column"


class RowFormat(StrEnum):
    """Format of the input."""

    AUTO = "Auto"
    PARQUET = "Parquet"
    CSV = "CSV"
    JSON_LINES = "JSONLines"
    FILES = "Files"


class ResultFormat(StrEnum):
    """File format of the results."""

    PARQUET = "Parquet"
    JSON_LINES = "JSONLines"


class Engine(StrEnum):
    """Controller that runs the pods."""

    JOB = "Job"
    RAY = "Ray"


class BatchInput(SettingsSection, frozen=True):
    """The rows to score."""

    uri: Annotated[
        str,
        Meta(
            pattern=STORED,
            max_length=2048,
            description="A file, a directory, or a pattern of names (`*`, `?`, `[...]`; `**` is any number of"
            f" directories): {IN_WORDS}.",
        ),
        Env("SHOAL_BATCH_INPUT", BATCH, reads=str, allowed=f"a path, or one of {IN_WORDS}"),
    ]
    format: Annotated[
        RowFormat,
        Meta(
            description="Format of the files. `Auto` uses the suffix: `.parquet`, `.csv`, `.jsonl`, `.ndjson`; each"
            " other file is one row, such as an image or a text."
        ),
        Env("SHOAL_BATCH_INPUT_FORMAT", BATCH),
    ] = RowFormat.AUTO
    columns: Annotated[
        StringMap,
        Meta(
            max_length=64,
            description="Column to read, by input of the model; or several numeric columns, separated by commas, that"
            " form one row. Default: the column with the input's name; or the only column, if the model has one input.",
        ),
        Env("SHOAL_BATCH_COLUMNS", BATCH, allowed="a JSON object of texts"),
    ] = {}  # noqa: RUF012 (msgspec copies it)
    where: (
        Annotated[
            str,
            Meta(
                max_length=MAX_LENGTH,
                description="Condition of the rows to score: comparisons of columns with numbers, texts, `true`,"
                " `false` and `null`, joined by `and`, `or` and `not` (`label == 'cat' and size >="
                " 10`). Default: all rows.",
            ),
            Env("SHOAL_BATCH_WHERE", BATCH, allowed="an expression"),
        ]
        | None
    ) = None


class BatchOutput(SettingsSection, frozen=True):
    """The results of the job."""

    uri: Annotated[
        str,
        Meta(
            pattern=FOLDER,
            max_length=2048,
            description=f"A directory for the results of this job only: {IN_WORDS}.",
        ),
        Env("SHOAL_BATCH_OUTPUT", BATCH, reads=str, allowed=f"a path, or one of {IN_WORDS}"),
    ]
    format: Annotated[
        ResultFormat, Meta(description="Format of the results."), Env("SHOAL_BATCH_OUTPUT_FORMAT", BATCH)
    ] = ResultFormat.PARQUET
    keep: (
        Annotated[
            tuple[Text, ...],
            Meta(
                max_length=1024,
                description="Columns of the input to copy into the results, as NAME or NEW=NAME. Default: all but the"
                " bytes that the model reads.",
            ),
            Env("SHOAL_BATCH_KEEP", BATCH, allowed="comma-separated columns; - is none"),
        ]
        | None
    ) = None
    errors: Annotated[
        str,
        Meta(
            max_length=2048,
            description=(
                "`Column` writes the error of a failed row into the column `shoal_error` of the results. With the "
                "URI of a directory, failed rows are written there instead."
            ),
        ),
        Env("SHOAL_BATCH_ERRORS", BATCH, allowed=f"Column, a path, or one of {IN_WORDS}"),
    ] = ERRORS_IN_COLUMN


class BatchLimits(SettingsSection, frozen=True):
    """Batch size, shard size and tolerated errors."""

    batch_size: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=65_536,
                description="Rows per batch. Default: the fastest of 1, 2, 4, ..., measured on the first rows; halved"
                " when memory runs out.",
            ),
            Env("SHOAL_BATCH_SIZE", BATCH),
        ]
        | None
    ) = None
    max_error_share: Annotated[
        str,
        Meta(
            pattern=SHARE,
            max_length=16,
            description="The job fails when more than this share of its rows, and more than ten rows, fail; `1`"
            " tolerates any number.",
        ),
        Env("SHOAL_BATCH_MAX_ERROR_SHARE", BATCH, allowed="0 to 1"),
    ] = "0.01"
    shard_bytes: Annotated[
        int,
        Meta(
            ge=KIB,
            le=64 * GIB,
            description=(
                "Approximate bytes of input per shard. A shard is a pod's unit of work and is repeated after a crash."
            ),
        ),
        Env("SHOAL_BATCH_SHARD_BYTES", BATCH),
    ] = 64 * 2**20


# A running Job accepts the other fields: its pods have read these.
# parallelism is fixed too: a removed worker would keep the shards that it had claimed.
_FIXED = (
    *("model", "input", "output", "runtime", "engine", "parallelism"),
    *("maxErrorShare", "shardBytes", "backoffLimit", "pod"),
)
_FIXED_OPTIONAL = ("secretName", "batchSize")
_ANEW = "cannot be changed while pods use it: delete the BatchInference and create it again"


def _unchanged(name: str, same: str) -> Rule:
    return Rule(checked_by_api_server(same), f"{name} {_ANEW}", name)


class BatchInferenceSpec(BatchLimits, frozen=True, kw_only=True):
    """Desired state of the job. Fields that its pods read are immutable."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            any_of(Not(In("engine", ("Ray",))), Given("runtime.image")),
            "engine: Ray requires runtime.image: an image with Ray and Shoal's runtime",
            "runtime",
        ),
        *(_unchanged(each, f"self.{each} == oldSelf.{each}") for each in _FIXED),
        *(
            _unchanged(
                each,
                f"has(self.{each}) == has(oldSelf.{each}) && (!has(self.{each}) || self.{each} == oldSelf.{each})",
            )
            for each in _FIXED_OPTIONAL
        ),
        Rule(Given("model.uri"), "model.uri is required", "model.uri"),
        *(
            Rule(
                Not(Matches(name, CREDENTIALS)),
                f"{name} must not hold credentials: put them into the Secret of secretName",
                name,
            )
            for name in ("input.uri", "output.uri", "output.errors")
        ),
        Rule(
            Not(Given("runtime.port")),
            "runtime.port has no effect here: Shoal's own runtime runs batch jobs. Remove it",
            "runtime.port",
        ),
        Rule(
            Not(Given("runtime.instances")),
            "runtime.instances has no effect here: each pod of a job has one. Raise parallelism instead",
            "runtime.instances",
        ),
        Rule(
            Not(Given("model.follow")),
            "model.follow has no effect here: a job runs one version of its model. Remove it",
            "model.follow",
        ),
    )

    model: ModelSpec
    input: BatchInput
    output: BatchOutput
    runtime: RuntimeSpec = RuntimeSpec()
    # Credentials for rows; those for the model are in `model.secretName`.
    secret_name: (
        Annotated[
            str,
            object_name(
                "A Secret of the namespace whose entries become environment variables of the container that"
                " reads rows and writes results: credentials for the stores of `input` and `output`. The"
                " model's code runs in that container and can read them."
            ),
        ]
        | None
    ) = None
    # Fields of a Job.
    engine: Annotated[
        Engine,
        Meta(description="`Job` runs an Indexed Job of Kubernetes, `Ray` a RayJob of KubeRay."),
    ] = Engine.JOB
    parallelism: Annotated[
        int, Meta(ge=1, le=1000, description="Number of pods, each with its own copy of the model.")
    ] = 1
    suspend: Annotated[bool, Meta(description="Stop all pods. Finished shards are kept.")] = False
    backoff_limit: Annotated[
        int, Meta(ge=0, le=100, description="Maximum number of replacements of each failed pod.")
    ] = 3
    active_deadline_seconds: (
        Annotated[int, Meta(ge=1, le=2**31 - 1, description="Time limit of the job, after which it fails.")] | None
    ) = None
    ttl_seconds_after_finished: (
        Annotated[
            int,
            Meta(
                ge=0, le=2**31 - 1, description="Time after which the pods of an ended job are deleted. Default: never."
            ),
        ]
        | None
    ) = None
    pod: PodSpec = PodSpec()

    def __post_init__(self) -> None:
        """Check that errors and results have separate directories."""
        if self.output.errors.rstrip("/") == self.output.uri.rstrip("/"):
            raise FieldFault("output", "`errors` and `uri` must be different directories")


_RAY_NAME_MAX_LENGTH = 47
BATCH_RULES = (
    Rule(
        Custom(
            f"self.spec.engine != 'Ray' || size(self.metadata.name) <= {_RAY_NAME_MAX_LENGTH}",
            lambda job: job["spec"].get("engine") != "Ray" or len(job["metadata"]["name"]) <= _RAY_NAME_MAX_LENGTH,
        ),
        f"KubeRay accepts names of at most {_RAY_NAME_MAX_LENGTH} characters: use a shorter name, or engine: Job",
    ),
)
"""Rules over the whole object, which compare spec and metadata."""
