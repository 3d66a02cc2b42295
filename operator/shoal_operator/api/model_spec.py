"""The model: where it lies and how it is read."""

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from shoal_operator.api import passthrough
from shoal_operator.api.fields import Json, Rule, spec_field

RUNTIME = ("runtime",)
MODEL_READERS = ("model", "runtime")
BOTH = ("proxy", "runtime")


class ModelFormat(StrEnum):
    """How a model is stored."""

    AUTO = "Auto"
    TORCH_EXPORT = "TorchExport"
    TORCH_SCRIPT = "TorchScript"
    SAFETENSORS = "Safetensors"
    HANDLER = "Handler"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A PersistentVolumeClaim in the service's namespace."""

    claim_name: str = spec_field("Name of the claim.", max_length=253)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPath:
    """A folder of the node."""

    path: str = spec_field("Absolute path on the node.", pattern="^/", max_length=1024)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageVolume:
    """An OCI image whose files are the model."""

    reference: str = spec_field("Image reference, best by digest.", max_length=1024)
    pull_policy: str | None = spec_field(
        "Always, IfNotPresent or Never.", default=None, pattern="^(Always|IfNotPresent|Never)$"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelVolume:
    """A volume that holds the model, mounted read-only. Give exactly one source."""

    RULES: ClassVar = (
        Rule(
            "[has(self.persistentVolumeClaim), has(self.hostPath), has(self.image)].filter(given, given).size() == 1",
            "give exactly one of persistentVolumeClaim, hostPath and image",
            "",
        ),
    )

    mount_path: str = spec_field(
        "Where the volume appears in the runtime container.",
        default="/models",
        pattern="^/",
        max_length=256,
    )
    persistent_volume_claim: Claim | None = spec_field("A PersistentVolumeClaim of this namespace.", default=None)
    host_path: HostPath | None = spec_field(
        "A folder of the node. The restricted Pod Security level refuses it.", default=None
    )
    image: ImageVolume | None = spec_field("An OCI image; Kubernetes mounts its files (image volumes).", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """The model: where it lies and how it is read."""

    RULES: ClassVar = (
        Rule(
            "!has(self.volume) || !has(self.uri) || self.uri.startsWith('file://')",
            "model.volume has no effect on a model that is downloaded: "
            "use a file:// uri below volume.mountPath, or remove the volume",
            ".volume",
        ),
        Rule(
            "!has(self.handler) || self.format in ['Auto', 'Handler']",
            "model.handler needs model.format Auto or Handler",
            ".handler",
        ),
    )

    uri: str | None = spec_field(
        "Where the model lies: `file://` (inside the image, or below `volume.mountPath`), `http://`"
        " or `https://`. A downloaded model is fetched by the init container `model`. Required"
        " unless `runtime.port` names a foreign runtime.",
        default=None,
        pattern="^(file|https?)://.+",
        max_length=2048,
        env="SHOAL_MODEL_URI",
        containers=MODEL_READERS,
    )
    version: str = spec_field(
        "The version that callers see in paths and answers.",
        default="1",
        pattern=r"^[A-Za-z0-9._-]+$",
        max_length=63,
        env="SHOAL_MODEL_VERSION",
        containers=BOTH,
    )
    checksum: str | None = spec_field(
        "`sha256:` and 64 hex digits of the file; the pod refuses any other file.",
        default=None,
        pattern="^sha256:[0-9a-f]{64}$",
        max_length=71,
        env="SHOAL_MODEL_CHECKSUM",
        containers=MODEL_READERS,
    )
    format: ModelFormat = spec_field(
        "How the model is stored. `Auto` looks at the files.",
        default=ModelFormat.AUTO,
        env="SHOAL_MODEL_FORMAT",
        containers=RUNTIME,
    )
    handler: str | None = spec_field(
        "`package.module:Class` or `path.py:Class` that loads and runs the model; default: what `model.toml` names.",
        default=None,
        pattern=r"^[A-Za-z0-9_./-]+:[A-Za-z_][A-Za-z0-9_]*$",
        max_length=256,
        env="SHOAL_MODEL_HANDLER",
        containers=RUNTIME,
    )
    parameters: Json | None = spec_field(
        "A JSON object, handed to the handler as it is.",
        default=None,
        raw=passthrough.OPEN_OBJECT,
        env="SHOAL_MODEL_PARAMETERS",
        containers=RUNTIME,
    )
    allow_pickle: bool = spec_field(
        "Load weights that are stored as pickles. A pickle can run any code: only for files you trust.",
        default=False,
        env="SHOAL_MODEL_ALLOW_PICKLE",
        containers=RUNTIME,
    )
    resources: Json | None = spec_field(
        "Requests and limits of the init container `model`, which downloads; default: 100m CPU and 128Mi memory, at"
        " most 1 CPU and 512Mi.",
        default=None,
        raw=passthrough.RESOURCES,
    )
    volume: ModelVolume | None = spec_field("A volume that holds the model of a `file://` uri.", default=None)
