"""The model: where it lies and how it is read."""

from enum import StrEnum
from typing import Annotated, ClassVar

from msgspec import Meta

from shoal_schema.declaring import BATCH, MODEL, NAME, NAME_IN_WORDS, PROXY, RUNTIME, Env, FieldFault, Rule, Section
from shoal_schema.resource.locations import CLAIM, FIXED, IN_WORDS, NAKED, LocationError, parse, scheme_of, shown
from shoal_schema.resource.passthrough import HIDES_OURS, OWN_PATHS, SECRET_NAME, SET, OpenObject, Resources
from shoal_schema.resource.uris import (
    ANY_SCHEME,
    AUTHORITY,
    BAD_AUTHORITY,
    PRINTABLE,
    SCHEME,
    URI,
    WITH_HOST,
    has_good_authority,
)

PATH = rf"^/{PRINTABLE}*\Z"
TYPE = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*\Z"


class ModelFormat(StrEnum):
    """How a model is stored."""

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
    """What becomes of pods when the name of their model stands for another version."""

    NEVER = "Never"
    ROLLOUT = "Rollout"


class ExtraColumns(StrEnum):
    """What becomes of columns of a table that the model does not have."""

    AUTO = "Auto"
    IGNORE = "Ignore"
    REJECT = "Reject"


class Claim(Section, frozen=True):
    """A PersistentVolumeClaim in the service's namespace."""

    claim_name: Annotated[str, Meta(max_length=253, description="Name of the claim.")]


class HostPath(Section, frozen=True):
    """A folder of the node. The restricted Pod Security level refuses it."""

    path: Annotated[str, Meta(pattern=PATH, max_length=1024, description="Absolute path on the node.")]


class ImageVolume(Section, frozen=True):
    """An OCI image whose files are the model; Kubernetes mounts them (image volumes)."""

    reference: Annotated[str, Meta(max_length=1024, description="Image reference, best by digest.")]
    pull_policy: (
        Annotated[str, Meta(pattern=r"^(Always|IfNotPresent|Never)\Z", description="Always, IfNotPresent or Never.")]
        | None
    ) = None


class ModelVolume(Section, frozen=True):
    """A volume that holds the model of a `file://` uri, mounted read-only. Give exactly one source."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "[has(self.persistentVolumeClaim), has(self.hostPath), has(self.image)].filter(given, given).size() == 1",
            "give exactly one of persistentVolumeClaim, hostPath and image",
            "",
        ),
        Rule(f"!self.mountPath.matches(r'{OWN_PATHS}')", f"mountPath {HIDES_OURS}", ".mountPath"),
    )

    mount_path: Annotated[
        str, Meta(pattern=PATH, max_length=256, description="Where the volume appears in the runtime container.")
    ] = "/models"
    persistent_volume_claim: Claim | None = None
    host_path: HostPath | None = None
    image: ImageVolume | None = None


class CaBundle(Section, frozen=True):
    """Authorities that are trusted besides the usual ones where the model, and a job's rows, are fetched."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.configMapName) != has(self.secretName)",
            "model.caBundle needs either configMapName or secretName",
            ".configMapName",
        ),
    )

    config_map_name: (
        Annotated[
            str,
            Meta(pattern=SECRET_NAME, max_length=253, description="A ConfigMap of the namespace that holds them, PEM."),
        ]
        | None
    ) = None
    secret_name: (
        Annotated[
            str,
            Meta(pattern=SECRET_NAME, max_length=253, description="A Secret of the namespace that holds them, PEM."),
        ]
        | None
    ) = None
    key: Annotated[
        str, Meta(pattern=r"^[-._a-zA-Z0-9]+\Z", max_length=253, description="The entry that holds them.")
    ] = "ca.crt"


class ModelSpec(Section, frozen=True):
    """The model: where it lies and how it is read."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"!has(self.volume) || !has(self.uri) || !self.uri.matches(r'{SCHEME}') || self.uri.startsWith('file://')",
            "model.volume has no effect on a model that is downloaded, or that oci:// or pvc:// mounts: "
            "use a file:// uri below volume.mountPath, or remove the volume",
            ".volume",
        ),
        Rule(
            "!has(self.secretName) || !has(self.uri) || !self.uri.matches(r'^(file|oci|pvc):')",
            "model.secretName has no effect on a model that is not downloaded: remove it (pod.imagePullSecrets is for"
            " images)",
            ".secretName",
        ),
        Rule(
            "self.follow == 'Never' || (has(self.uri) && self.uri.matches(r'^(hf|models):')"
            f" && !self.uri.matches(r'{FIXED}'))",
            "model.follow Rollout needs a name that moves, not a version: hf://OWNER/NAME or models:/NAME@ALIAS",
            ".follow",
        ),
        Rule(
            "!has(self.handler) || self.format in ['Auto', 'Handler']",
            "model.handler needs model.format Auto or Handler",
            ".handler",
        ),
        Rule(
            f"!has(self.uri) || !self.uri.matches(r'{ANY_SCHEME}') || self.uri.matches(r'{SCHEME}')",
            f"model.uri must begin with one of {IN_WORDS}, in lower case",
            ".uri",
        ),
        Rule(
            f"!has(self.uri) || !self.uri.matches(r'{WITH_HOST}') || self.uri.matches(r'{AUTHORITY}')",
            f"model.uri {BAD_AUTHORITY}",
            ".uri",
        ),
        Rule(
            f"!has(self.uri) || !self.uri.matches(r'{NAKED}')",
            "model.uri must not hold credentials or a query: they belong into a Secret",
            ".uri",
        ),
        Rule(
            f"!has(self.uri) || !self.uri.startsWith('pvc:') || (self.uri.matches(r'^pvc://{CLAIM}(/.*)?$')"
            " && !self.uri.matches(r'/([.]|%2[eE]){2}(/|$)'))",
            "model.uri pvc://CLAIM/PATH needs the name of a claim, and a PATH without ..",
            ".uri",
        ),
    )

    uri: (
        Annotated[
            str,
            Meta(
                pattern=URI,
                max_length=2048,
                description="Where the model lies: `file://` (inside the image, or below `volume.mountPath`), `http://`,"
                " `https://`, `s3://`, `gs://`, `az://`, `abfss://`, `hf://OWNER/NAME[@REVISION]`,"
                " `models:/NAME/VERSION`, `models:/NAME@ALIAS` or `runs:/RUN/PATH` of an MLflow server; `oci://IMAGE`"
                " and `pvc://CLAIM/PATH` are mounted. A downloaded model is fetched by the init container `model`."
                " Required unless `runtime.port` names a foreign runtime.",
            ),
            Env("SHOAL_MODEL_URI", MODEL, RUNTIME, reads=str, allowed=f"a path, or one of {IN_WORDS}"),
        ]
        | None
    ) = None
    version: Annotated[
        str,
        Meta(pattern=NAME, max_length=63, description="The version that callers see in paths and answers."),
        Env("SHOAL_MODEL_VERSION", PROXY, RUNTIME, allowed=NAME_IN_WORDS),
    ] = "1"
    checksum: (
        Annotated[
            str,
            Meta(
                pattern=r"^sha256:[0-9a-fA-F]{64}\Z",
                max_length=71,
                description="`sha256:` and 64 hex digits of the file, or of a folder's list of sums; the pod refuses"
                " any other.",
            ),
            Env("SHOAL_MODEL_CHECKSUM", MODEL, RUNTIME, allowed="sha256: and 64 hex digits"),
        ]
        | None
    ) = None
    format: Annotated[
        ModelFormat,
        Meta(description="How the model is stored. `Auto` looks at the files."),
        Env("SHOAL_MODEL_FORMAT", RUNTIME),
    ] = ModelFormat.AUTO
    handler: (
        Annotated[
            str,
            Meta(
                pattern=r"^[^\s:\x00-\x1f\x7f]+:[A-Za-z_][A-Za-z0-9_]*\Z",
                max_length=256,
                description="`package.module:Class` or `path.py:Class` that loads and runs the model; default: what"
                " `model.toml` names.",
            ),
            Env("SHOAL_MODEL_HANDLER", RUNTIME, allowed="package.module:Class or path.py:Class"),
        ]
        | None
    ) = None
    parameters: (
        Annotated[
            OpenObject,
            Meta(description="A JSON object, handed to the handler as it is; as text, just under 128 KiB at the most."),
            Env("SHOAL_MODEL_PARAMETERS", RUNTIME),
        ]
        | None
    ) = None
    allow_pickle: Annotated[
        bool,
        Meta(
            description="Load weights that are stored as pickles. A pickle can run any code: only for files you trust."
        ),
        Env("SHOAL_MODEL_ALLOW_PICKLE", RUNTIME),
    ] = False
    trusted_types: Annotated[
        tuple[Annotated[str, Meta(pattern=TYPE, max_length=256)], ...],
        Meta(
            max_length=64,
            extra_json_schema=SET,
            description="Types beside scikit-learn's own that a skops file may hold, as `package.module.Name`. Trust"
            " one only if nothing it does when it is loaded can harm; what the file says of itself counts for nothing.",
        ),
        Env("SHOAL_MODEL_TRUSTED_TYPES", RUNTIME, allowed="comma-separated types, package.module.Name"),
    ] = ()
    extra_columns: Annotated[
        ExtraColumns,
        Meta(
            description="Columns of a request or file that the model does not have: `Ignore` drops them, `Reject`"
            " fails the request. `Auto` ignores them in `/invocations` and batch jobs and rejects them in V1 and V2."
        ),
        Env("SHOAL_MODEL_EXTRA_COLUMNS", PROXY, BATCH),
    ] = ExtraColumns.AUTO
    resources: (
        Annotated[
            Resources,
            Meta(
                description="Requests and limits of the init container `model`, which downloads; default: 100m CPU"
                " and 128Mi memory, at most 1 CPU and 512Mi."
            ),
        ]
        | None
    ) = None
    volume: ModelVolume | None = None
    secret_name: (
        Annotated[
            str,
            Meta(
                pattern=SECRET_NAME,
                max_length=253,
                description="A Secret of the namespace whose keys are environment variables of the init container"
                " `model` (`AWS_ACCESS_KEY_ID`, `HF_TOKEN`, `MLFLOW_TRACKING_TOKEN`, ...), and of no other. A key that"
                " starts with `SHOAL_` has no effect where the operator sets it.",
            ),
        ]
        | None
    ) = None
    ca_bundle: (
        Annotated[
            CaBundle,
            Meta(
                description="Authorities of a private server of models: the init container `model` trusts them besides"
                " the usual ones, and so do a job's containers where they read and write rows."
            ),
        ]
        | None
    ) = None
    follow: Annotated[
        Follow,
        Meta(
            description="Of a name that moves (a branch, a tag, an alias) pods get the version that it stood for when"
            " the uri was written, `status.model.resolved`. `Rollout` asks again every few minutes, and rolls out"
            " what is new."
        ),
    ] = Follow.NEVER

    def __post_init__(self) -> None:
        """Refuse an address that cannot be asked, as an API server does by the rules above."""
        if self.uri is None:
            return
        if not has_good_authority(self.uri):
            raise FieldFault("uri", f"{BAD_AUTHORITY}, not {shown(self.uri)!r:.200}")
        try:
            if scheme_of(self.uri):
                parse(self.uri)
        except LocationError as error:
            raise FieldFault("uri", f"cannot be used: {error}") from None
