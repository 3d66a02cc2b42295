"""Location and format of the model."""

from enum import StrEnum
from typing import Annotated, ClassVar

from msgspec import Meta

from shoal_schema.fields.declaring import (
    BATCH,
    MODEL,
    NAME,
    NAME_IN_WORDS,
    PROXY,
    RUNTIME,
    Env,
    FieldFault,
    SettingsSection,
)
from shoal_schema.fields.rules import Given, In, Matches, Not, Rule, all_of, any_of, broken_among, one_of
from shoal_schema.resource.locations import CLAIM, FIXED, IN_WORDS, NAKED, LocationError, parse, scheme_of
from shoal_schema.resource.passthrough import HIDES_OURS, OWN_PATHS, SET, OpenObject, Resources, object_name
from shoal_schema.resource.uris import (
    ANY_SCHEME,
    AUTHORITY,
    BAD_AUTHORITY,
    PRINTABLE,
    SCHEME,
    URI,
    WITH_HOST,
)

PATH = rf"^/{PRINTABLE}*\Z"
TYPE = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*\Z"


class ModelFormat(StrEnum):
    """Format of a model."""

    AUTO = "Auto"
    TORCH_EXPORT = "TorchExport"
    TORCH_SCRIPT = "TorchScript"
    SAFETENSORS = "Safetensors"
    HANDLER = "Handler"
    ONNX = "ONNX"
    SKOPS = "Skops"
    JOBLIB = "Joblib"
    XGBOOST = "XGBoost"
    LIGHTGBM = "LightGBM"
    MLFLOW = "MLflow"
    TORCH_SERVE = "TorchServe"
    KERAS = "Keras"
    TRANSFORMERS = "Transformers"


class Follow(StrEnum):
    """Handling of a new version behind a moving model name."""

    NEVER = "Never"
    ROLLOUT = "Rollout"


class ExtraColumns(StrEnum):
    """Handling of columns that the model does not have."""

    AUTO = "Auto"
    IGNORE = "Ignore"
    REJECT = "Reject"


class Claim(SettingsSection, frozen=True):
    """A PersistentVolumeClaim in the service's namespace."""

    claim_name: Annotated[str, Meta(max_length=253, description="Name of the claim.")]


class HostPath(SettingsSection, frozen=True):
    """A directory of the node. The restricted Pod Security level rejects it."""

    path: Annotated[str, Meta(pattern=PATH, max_length=1024, description="Absolute path on the node.")]


class ImageVolume(SettingsSection, frozen=True):
    """An OCI image whose files are the model, mounted by Kubernetes (image volumes)."""

    reference: Annotated[str, Meta(max_length=1024, description="Image reference, preferably with a digest.")]
    pull_policy: (
        Annotated[str, Meta(pattern=r"^(Always|IfNotPresent|Never)\Z", description="Always, IfNotPresent or Never.")]
        | None
    ) = None


class ModelVolume(SettingsSection, frozen=True):
    """A volume with the model of a `file://` URI, mounted read-only. Set exactly one source."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        one_of(("persistentVolumeClaim", "hostPath", "image"), "volume"),
        Rule(Not(Matches("mountPath", OWN_PATHS)), f"mountPath {HIDES_OURS}", "mountPath"),
    )

    mount_path: Annotated[
        str, Meta(pattern=PATH, max_length=256, description="Path of the volume in the runtime container.")
    ] = "/models"
    persistent_volume_claim: Claim | None = None
    host_path: HostPath | None = None
    image: ImageVolume | None = None


class CaBundle(SettingsSection, frozen=True):
    """Certificate authorities to trust beside the system's when the model, or a job's rows, are fetched."""

    RULES: ClassVar[tuple[Rule, ...]] = (one_of(("configMapName", "secretName"), "model.caBundle"),)

    config_map_name: (
        Annotated[str, object_name("A ConfigMap of the namespace with the authorities, in PEM.")] | None
    ) = None
    secret_name: Annotated[str, object_name("A Secret of the namespace with the authorities, in PEM.")] | None = None
    key: Annotated[
        str,
        Meta(
            pattern=r"^[-._a-zA-Z0-9]+\Z",
            max_length=253,
            description="Key of the ConfigMap or Secret whose value holds the authorities.",
        ),
    ] = "ca.crt"


class ModelSpec(SettingsSection, frozen=True):
    """Location and format of the model."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            any_of(Not(Given("volume")), Not(Matches("uri", SCHEME)), Matches("uri", "^file://")),
            "model.volume has no effect on a model that is downloaded, or that oci:// or pvc:// mounts: "
            "use a file:// uri below volume.mountPath, or remove the volume",
            "volume",
        ),
        Rule(
            any_of(Not(Given("secretName")), Not(Matches("uri", "^(file|oci|pvc):"))),
            "model.secretName has no effect on a model that is not downloaded: remove it (pod.imagePullSecrets is for"
            " images)",
            "secretName",
        ),
        Rule(
            any_of(In("follow", ("Never",)), all_of(Matches("uri", "^(hf|models):"), Not(Matches("uri", FIXED)))),
            "model.follow Rollout requires a moving name, not a version: hf://OWNER/NAME or models:/NAME@ALIAS",
            "follow",
        ),
        Rule(
            any_of(Not(Given("handler")), In("format", ("Auto", "Handler"))),
            "model.handler requires model.format Auto or Handler",
            "handler",
        ),
        Rule(
            any_of(Not(Matches("uri", ANY_SCHEME)), Matches("uri", SCHEME)),
            f"model.uri must begin with one of {IN_WORDS}, in lower case",
            "uri",
        ),
        Rule(any_of(Not(Matches("uri", WITH_HOST)), Matches("uri", AUTHORITY)), f"model.uri {BAD_AUTHORITY}", "uri"),
        Rule(
            Not(Matches("uri", NAKED)),
            "model.uri must not hold credentials or a query: put them into a Secret",
            "uri",
        ),
        Rule(
            any_of(
                Not(Matches("uri", "^pvc:")),
                all_of(Matches("uri", f"^pvc://{CLAIM}(/.*)?$"), Not(Matches("uri", "/([.]|%2[eE]){2}(/|$)"))),
            ),
            "model.uri pvc://CLAIM/PATH requires the name of a claim, and a PATH without ..",
            "uri",
        ),
    )

    # Which model.
    uri: (
        Annotated[
            str,
            Meta(
                pattern=URI,
                max_length=2048,
                description="Location of the model: `file://` (in the image or below `volume.mountPath`), `http://`,"
                " `https://`, `s3://`, `gs://`, `az://`, `abfss://`, `hf://OWNER/NAME[@REVISION]`,"
                " `models:/NAME/VERSION`, `models:/NAME@ALIAS`, `runs:/RUN/PATH`, `oci://IMAGE` or"
                " `pvc://CLAIM/PATH`. Required unless `runtime.port` is set.",
            ),
            Env("SHOAL_MODEL_URI", MODEL, RUNTIME, reads=str, allowed=f"a path, or one of {IN_WORDS}"),
        ]
        | None
    ) = None
    version: Annotated[
        str,
        Meta(pattern=NAME, max_length=63, description="Version in paths and responses."),
        Env("SHOAL_MODEL_VERSION", PROXY, RUNTIME, allowed=NAME_IN_WORDS),
    ] = "1"
    checksum: (
        Annotated[
            str,
            Meta(
                pattern=r"^sha256:[0-9a-fA-F]{64}\Z",
                max_length=71,
                description="`sha256:` and 64 hex digits: the checksum of the file, or of the list of checksums of a"
                " directory. The pod rejects other files.",
            ),
            Env("SHOAL_MODEL_CHECKSUM", MODEL, RUNTIME, allowed="sha256: and 64 hex digits"),
        ]
        | None
    ) = None
    # How it is loaded.
    format: Annotated[
        ModelFormat,
        Meta(description="Format of the model. `Auto` detects it from the files."),
        Env("SHOAL_MODEL_FORMAT", RUNTIME),
    ] = ModelFormat.AUTO
    handler: (
        Annotated[
            str,
            Meta(
                pattern=r"^[^\s:\x00-\x1f\x7f]+:[A-Za-z_][A-Za-z0-9_]*\Z",
                max_length=256,
                description="Class that loads and runs the model: `package.module:Class` or `path.py:Class`. Default:"
                " the one in `model.toml`.",
            ),
            Env("SHOAL_MODEL_HANDLER", RUNTIME, allowed="package.module:Class or path.py:Class"),
        ]
        | None
    ) = None
    parameters: (
        Annotated[
            OpenObject,
            Meta(description="A JSON object that the handler receives, of less than 128 KiB."),
            Env("SHOAL_MODEL_PARAMETERS", RUNTIME),
        ]
        | None
    ) = None
    allow_pickle: Annotated[
        bool,
        Meta(
            description="Load weights stored as pickles. A pickle can run any code, so enable it only for trusted"
            " files."
        ),
        Env("SHOAL_MODEL_ALLOW_PICKLE", RUNTIME),
    ] = False
    # What it may do, and which tables it accepts.
    trusted_types: Annotated[
        tuple[Annotated[str, Meta(pattern=TYPE, max_length=256)], ...],
        Meta(
            max_length=64,
            extra_json_schema=SET,
            description="Types that a skops file may hold besides scikit-learn's, as `package.module.Name`. A type's"
            " code runs when the file is loaded, so list only trusted ones.",
        ),
        Env("SHOAL_MODEL_TRUSTED_TYPES", RUNTIME, allowed="comma-separated types, package.module.Name"),
    ] = ()
    extra_columns: Annotated[
        ExtraColumns,
        Meta(
            description="Columns of a request or file that the model does not have: `Ignore` drops them, `Reject` fails"
            " the request. `Auto` ignores them in `/invocations` and batch jobs, and rejects them in V1 and"
            " V2."
        ),
        Env("SHOAL_MODEL_EXTRA_COLUMNS", PROXY, BATCH),
    ] = ExtraColumns.AUTO
    # How it is fetched.
    resources: (
        Annotated[
            Resources,
            Meta(
                description="Requests and limits of the init container `model`, which downloads the model. Default:"
                " requests of 100m CPU and 128Mi memory, limits of 1 CPU and 512Mi."
            ),
        ]
        | None
    ) = None
    volume: ModelVolume | None = None
    secret_name: (
        Annotated[
            str,
            object_name(
                "A Secret of the namespace whose entries become environment variables of the init container"
                " `model` only (`AWS_ACCESS_KEY_ID`, `HF_TOKEN`, `MLFLOW_TRACKING_TOKEN`). Entries named"
                " `SHOAL_*` do not override those that the operator sets."
            ),
        ]
        | None
    ) = None
    ca_bundle: (
        Annotated[
            CaBundle,
            Meta(
                description="Certificate authorities of a private model server. The init container `model` trusts them,"
                " and so do a job's containers that read and write rows."
            ),
        ]
        | None
    ) = None
    follow: Annotated[
        Follow,
        Meta(
            description="Response to a new version of a moving name (branch, tag, alias): `Never` keeps the"
            " version in `status.model.resolved` until `uri` changes. `Rollout` checks every few minutes and"
            " rolls out new versions."
        ),
    ] = Follow.NEVER

    def __post_init__(self) -> None:
        """Check the parts of the URI that CEL rules cannot check."""
        if self.uri is None or any(broken_among(self.RULES, self)):
            return  # a broken rule is the clearer error
        try:
            if scheme_of(self.uri):
                parse(self.uri)
        except LocationError as error:
            raise FieldFault("uri", f"cannot be used: {error}") from None
