"""The spec of a ``BatchInference``: a model, rows that lie somewhere, and where their answers go."""

import re
from enum import StrEnum
from typing import Annotated, ClassVar

from msgspec import Meta

from shoal_schema.declaring import BATCH, GIB, KIB, Env, FieldFault, Rule, Section
from shoal_schema.resource.locations import CREDENTIALS, shown
from shoal_schema.resource.model import ModelSpec
from shoal_schema.resource.passthrough import SECRET_NAME, StringMap, Text
from shoal_schema.resource.pod import PodSpec
from shoal_schema.resource.runtime import RuntimeSpec

STORES = ("file", "s3", "gs", "az", "abfss")
STORED = rf"^({'|'.join(STORES)})://[^\x00-\x20?#]+\Z"
FOLDER = rf"^({'|'.join(STORES)})://[^\x00-\x20?#*\[\]]+\Z"
IN_WORDS = ", ".join(f"{each}://" for each in STORES)
SHARE = r"^(0([.][0-9]{1,9})?|1([.]0{1,9})?)\Z"
ERRORS_IN_COLUMN = "Column"


class RowFormat(StrEnum):
    """How rows are stored."""

    AUTO = "Auto"
    PARQUET = "Parquet"
    CSV = "CSV"
    JSON_LINES = "JSONLines"
    FILES = "Files"


class AnswerFormat(StrEnum):
    """How answers are stored."""

    PARQUET = "Parquet"
    JSON_LINES = "JSONLines"


class Engine(StrEnum):
    """What runs the pods."""

    JOB = "Job"
    RAY = "Ray"


class BatchInput(Section, frozen=True):
    """The rows: where they lie, and what of them the model is given."""

    uri: Annotated[
        str,
        Meta(
            pattern=STORED,
            max_length=2048,
            description="One file, a folder, or a pattern of names (`*`, `?`, `[...]`; `**` is any number of folders):"
            f" {IN_WORDS}.",
        ),
        Env("SHOAL_BATCH_INPUT", BATCH, reads=str, allowed=f"a path, or one of {IN_WORDS}"),
    ]
    format: Annotated[
        RowFormat,
        Meta(
            description="`Auto` goes by the names: `.parquet`, `.csv`, `.jsonl`, `.ndjson`; of all others each file is"
            " one row, as a picture or a text is."
        ),
        Env("SHOAL_BATCH_INPUT_FORMAT", BATCH),
    ] = RowFormat.AUTO
    columns: Annotated[
        StringMap,
        Meta(
            max_length=64,
            description="The model's inputs, each with the column that it is made of, or several, separated by commas,"
            " whose numbers become one row. Default: the column of the same name; of one input and one column, that.",
        ),
        Env("SHOAL_BATCH_COLUMNS", BATCH, allowed="a JSON object of texts"),
    ] = {}  # noqa: RUF012 (msgspec copies it)
    where: (
        Annotated[
            str,
            Meta(
                max_length=4096,
                description="Which rows: comparisons of columns with numbers, texts, `true`, `false` and `null`, joined"
                " by `and`, `or`, `not`: `label == 'cat' and size >= 10`. Default: all.",
            ),
            Env("SHOAL_BATCH_WHERE", BATCH, allowed="an expression"),
        ]
        | None
    ) = None


class BatchOutput(Section, frozen=True):
    """The answers: where they go, and what stands beside them."""

    uri: Annotated[
        str,
        Meta(
            pattern=FOLDER,
            max_length=2048,
            description=f"A folder for the answers of this job alone: {IN_WORDS}.",
        ),
        Env("SHOAL_BATCH_OUTPUT", BATCH, reads=str, allowed=f"a path, or one of {IN_WORDS}"),
    ]
    format: Annotated[
        AnswerFormat, Meta(description="How answers are stored."), Env("SHOAL_BATCH_OUTPUT_FORMAT", BATCH)
    ] = AnswerFormat.PARQUET
    keep: (
        Annotated[
            tuple[Text, ...],
            Meta(
                max_length=1024,
                description="Columns of the input that stand beside the answers, each by its name or as NEW=NAME."
                " Default: all but the bytes that the model reads.",
            ),
            Env("SHOAL_BATCH_KEEP", BATCH, allowed="comma-separated columns; - is none"),
        ]
        | None
    ) = None
    errors: Annotated[
        str,
        Meta(
            max_length=2048,
            description="`Column`: a row that failed has no answer, and the reason in the column `shoal_error`. A"
            " folder instead: such rows go there, and are not among the answers.",
        ),
        Env("SHOAL_BATCH_ERRORS", BATCH, allowed=f"Column, a path, or one of {IN_WORDS}"),
    ] = ERRORS_IN_COLUMN


class BatchLimits(Section, frozen=True):
    """How much at a time, and how many errors."""

    batch_size: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=65_536,
                description="Rows of one forward. Default: what gives the most rows a second of 1, 2, 4, ..., tried on"
                " the first rows; halved where memory runs out.",
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
            description="Where more rows fail than this share, and more than ten, the job stops and says why; `1` lets"
            " all fail.",
        ),
        Env("SHOAL_BATCH_MAX_ERROR_SHARE", BATCH, allowed="0 to 1"),
    ] = "0.01"
    shard_bytes: Annotated[
        int,
        Meta(
            ge=KIB,
            le=64 * GIB,
            description="About so many bytes of input are one shard: what one pod takes at a time, and what is done"
            " again after a crash.",
        ),
        Env("SHOAL_BATCH_SHARD_BYTES", BATCH),
    ] = 64 * 2**20


CHANGEABLE = ("suspend", "activeDeadlineSeconds", "ttlSecondsAfterFinished")
"""What a Job takes while it runs; all else its pods were told."""
# A worker that is taken away would keep the shards that it had taken.
_FIXED = (
    *("model", "input", "output", "runtime", "engine", "parallelism"),
    *("maxErrorShare", "shardBytes", "backoffLimit", "pod"),
)
_FIXED_OPTIONAL = ("secretName", "batchSize")
_ANEW = "cannot be changed, as pods are told it once: delete the BatchInference and create it anew"


def _unchanged(name: str, same: str) -> Rule:
    return Rule(same, f"{name} {_ANEW}", f".{name}")


class BatchInferenceSpec(BatchLimits, frozen=True, kw_only=True):
    """What a user asks for; later, only what the pods are not told can be changed."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.engine != 'Ray' || has(self.runtime.image)",
            "engine: Ray needs runtime.image: an image that holds Ray beside Shoal's runtime",
            ".runtime",
        ),
        *(_unchanged(each, f"self.{each} == oldSelf.{each}") for each in _FIXED),
        *(
            _unchanged(
                each,
                f"has(self.{each}) == has(oldSelf.{each}) && (!has(self.{each}) || self.{each} == oldSelf.{each})",
            )
            for each in _FIXED_OPTIONAL
        ),
        Rule("has(self.model.uri)", "model.uri is required", ".model.uri"),
        *(
            Rule(
                f"!self.{name}.matches(r'{CREDENTIALS}')",
                f"{name} must not hold credentials: they belong into the Secret of secretName",
                f".{name}",
            )
            for name in ("input.uri", "output.uri", "output.errors")
        ),
        Rule(
            "!has(self.runtime.port)",
            "runtime.port has no effect here: batches are run by Shoal's own runtime; remove it",
            ".runtime.port",
        ),
        Rule(
            "self.model.follow == 'Never'",
            "model.follow has no effect here: one job runs one version of its model; remove it",
            ".model.follow",
        ),
    )

    model: ModelSpec
    input: BatchInput
    output: BatchOutput
    runtime: RuntimeSpec = RuntimeSpec()
    secret_name: (
        Annotated[
            str,
            Meta(
                pattern=SECRET_NAME,
                max_length=253,
                description="A Secret of the namespace whose entries are environment variables of the container that"
                " reads the rows and writes the answers: credentials for the stores of `input` and `output`. The"
                " model's own code runs in that container and can read them.",
            ),
        ]
        | None
    ) = None
    engine: Annotated[
        Engine,
        Meta(
            description="`Job`: one Indexed Job of Kubernetes. `Ray`: a RayJob, where KubeRay is installed, that runs"
            " the same work on Ray."
        ),
    ] = Engine.JOB
    parallelism: Annotated[int, Meta(ge=1, le=1000, description="Pods at once, each with a model of its own.")] = 1
    suspend: Annotated[bool, Meta(description="No pods run while it is true; what was done stays done.")] = False
    backoff_limit: Annotated[
        int, Meta(ge=0, le=100, description="How often each of the pods may fail and be replaced.")
    ] = 3
    active_deadline_seconds: (
        Annotated[int, Meta(ge=1, le=2**31 - 1, description="The job fails when it runs for longer.")] | None
    ) = None
    ttl_seconds_after_finished: (
        Annotated[
            int,
            Meta(
                ge=0, le=2**31 - 1, description="The pods of a job that has ended go after so long; default: they stay."
            ),
        ]
        | None
    ) = None
    pod: PodSpec = PodSpec()

    def __post_init__(self) -> None:
        """Refuse credentials in an address, and errors among the answers, where nobody could tell them apart."""
        for name, uri in (("input", self.input.uri), ("output", self.output.uri), ("output", self.output.errors)):
            if re.match(CREDENTIALS, uri):
                raise FieldFault(name, f"({shown(uri)}) must not hold credentials: they belong into a Secret")
        if self.output.errors.rstrip("/") == self.output.uri.rstrip("/"):
            raise FieldFault("output", "errors must be another folder than uri")
