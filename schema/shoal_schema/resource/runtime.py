"""The container of the runtime: Shoal's, or a foreign one."""

from enum import StrEnum
from typing import Annotated, ClassVar

from msgspec import Meta

from shoal_schema.fields.declaring import RUNTIME, Env, SettingsSection
from shoal_schema.fields.quantities import DECIMAL, POSITIVE_SHARE, SHARE, Quantity
from shoal_schema.fields.rules import Every, Given, In, Matches, Not, Rule, all_of, any_of, excludes, not_in, requires
from shoal_schema.interfaces.instances import MAX_INSTANCES
from shoal_schema.resource.passthrough import (
    HIDES_OURS,
    OWN_PATHS,
    PROXY_PORTS,
    PULL_POLICY,
    SECURITY_CONTEXT,
    Argument,
    EnvironmentVariables,
    ImagePullPolicy,
    OpenObject,
    ResourceClaims,
    Resources,
    VolumeMounts,
)

OWN_RUNTIME_ONLY = "has no effect on a foreign runtime (runtime.port is set). Remove it"


class Device(StrEnum):
    """Devices that run a model."""

    AUTO = "Auto"
    CPU = "CPU"
    CUDA = "CUDA"


class DType(StrEnum):
    """The precision of a model's weights."""

    AUTO = "Auto"
    FLOAT32 = "Float32"
    BFLOAT16 = "BFloat16"
    FLOAT16 = "Float16"


class Precision(StrEnum):
    """Precisions that are measured, the most accurate first."""

    FLOAT32 = "Float32"
    TF32 = "TF32"
    BFLOAT16 = "BFloat16"
    FLOAT16 = "Float16"
    INT8 = "Int8"


class PrecisionSpec(SettingsSection, frozen=True):
    """Limits of the deviation from Float32; a limit makes the runtime choose the precision by measurement at start."""

    max_abs_error: (
        Annotated[
            str,
            Meta(
                pattern=DECIMAL,
                max_length=24,
                description="Maximum absolute error of a number in an output, such as `0.01` or `1e-3`.",
            ),
            Env("SHOAL_RUNTIME_PRECISION_ABS_ERROR", RUNTIME, allowed="a number of at least 0"),
        ]
        | None
    ) = None
    max_rel_error: (
        Annotated[
            str,
            Meta(
                pattern=DECIMAL,
                max_length=24,
                description="Maximum absolute error, divided by the largest absolute value of the output.",
            ),
            Env("SHOAL_RUNTIME_PRECISION_REL_ERROR", RUNTIME, allowed="a number of at least 0"),
        ]
        | None
    ) = None
    min_agreement: (
        Annotated[
            str,
            Meta(
                pattern=SHARE,
                max_length=16,
                description="Minimum share of rows whose largest number stands at the same place, in outputs of scores,"
                " and of equal elements in outputs of integers and texts. Default: integers and texts must be equal.",
            ),
            Env("SHOAL_RUNTIME_PRECISION_AGREEMENT", RUNTIME, allowed="0 to 1"),
        ]
        | None
    ) = None


_LIMITS = tuple(Given(f"precision.{name}") for name in ("maxAbsError", "maxRelError", "minAgreement"))
DeviceName = Annotated[str, Meta(pattern=r"(?i)^(auto|cpu|cuda(:\d+)?)\Z")]
"""A process may select one of several GPUs, as `cuda:1`."""


class RuntimeSpec(SettingsSection, frozen=True):
    """The container that runs the model."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            Every("env", Not(Matches("name", "^SHOAL_"))),
            "variables SHOAL_* are set by the operator: use the field of the spec",
            "env",
        ),
        Rule(
            any_of(Not(Given("port")), all_of(Given("image"), Not(In("image", ("",))))),
            "a foreign runtime (runtime.port is set) requires runtime.image",
            "image",
        ),
        requires("command", "port", "the command of a foreign runtime"),
        requires("args", "port", "the arguments of a foreign runtime"),
        not_in(
            "port",
            PROXY_PORTS,
            "runtime.port cannot be 8080 or 9090, which are the proxy's in the same pod: let the runtime listen on"
            " another port",
        ),
        Rule(Every("volumeMounts", Not(Matches("mountPath", OWN_PATHS))), f"mountPath {HIDES_OURS}", "volumeMounts"),
        *(
            excludes(name, "port", f"runtime.{name} {OWN_RUNTIME_ONLY}")
            for name in (
                "device",
                "dtype",
                "compile",
                "tensorrt",
                "threads",
                "instances",
                "memoryFraction",
                "preprocessThreads",
                "forwardTimeoutSeconds",
            )
        ),
        Rule(
            any_of(Not(any_of(*_LIMITS)), Not(Given("port"))),
            f"runtime.precision {OWN_RUNTIME_ONLY}",
            "precision",
        ),
        Rule(
            any_of(Not(any_of(*_LIMITS)), In("dtype", (DType.AUTO,))),
            "runtime.precision requires dtype: Auto, because any other dtype is fixed. Remove one of them",
            "precision",
        ),
    )

    # The image and how the model runs on the device.
    image: (
        Annotated[
            str,
            Meta(
                max_length=1024,
                description="Image of the runtime. Default: the operator's `SHOAL_OPERATOR_RUNTIME_IMAGE`.",
            ),
        ]
        | None
    ) = None
    # How the model runs.
    device: Annotated[
        Device,
        Meta(description="Device of the model. `Auto` uses a GPU if the pod has one."),
        Env("SHOAL_RUNTIME_DEVICE", RUNTIME, reads=DeviceName, allowed="auto, cpu, cuda or cuda:N", lower=True),
    ] = Device.AUTO
    dtype: Annotated[
        DType,
        Meta(
            description="Precision of the weights. `Auto` keeps that of the file, or with a limit in `precision` uses"
            " the fastest precision within the limits."
        ),
        Env("SHOAL_RUNTIME_DTYPE", RUNTIME, lower=True),
    ] = DType.AUTO
    precision: PrecisionSpec = PrecisionSpec()
    compile: Annotated[
        bool,
        Meta(description="Compile the model with `torch.compile` before the pod becomes ready."),
        Env("SHOAL_RUNTIME_COMPILE", RUNTIME),
    ] = False
    tensorrt: Annotated[
        bool,
        Meta(
            description="Run an ONNX model with TensorRT on the GPU. The first start builds an engine, which can take"
            " minutes."
        ),
        Env("SHOAL_RUNTIME_TENSORRT", RUNTIME),
    ] = False
    threads: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=1024,
                description="CPU threads per operation. Default: torch's choice, at most the container's CPU limit.",
            ),
            Env("SHOAL_RUNTIME_THREADS", RUNTIME),
        ]
        | None
    ) = None
    instances: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=MAX_INSTANCES,
                description="Processes that each hold the model and run batches, behind one proxy. They share the"
                " pod's GPUs in turns, and the CPU cores evenly. For two on each of four GPUs, set 8. Default: the"
                " number of GPUs of the container, at least 1.",
            ),
            Env("SHOAL_RUNTIME_INSTANCES", RUNTIME),
        ]
        | None
    ) = None
    memory_fraction: (
        Annotated[
            str,
            Meta(
                pattern=POSITIVE_SHARE,
                max_length=24,
                description="Maximum share of each GPU's memory that PyTorch takes, such as `0.5`. Instances on one"
                " GPU divide it evenly. The memory of CUDA itself, about 0.5 GB per process, is not included. It has"
                " no effect on a CPU. Default: no maximum.",
            ),
            Env("SHOAL_RUNTIME_MEMORY_FRACTION", RUNTIME, allowed="above 0, at most 1"),
        ]
        | None
    ) = None
    preprocess_threads: Annotated[
        int,
        Meta(ge=1, le=256, description="Threads that preprocess rows while a batch runs."),
        Env("SHOAL_RUNTIME_PREPROCESS_THREADS", RUNTIME),
    ] = 2
    forward_timeout_seconds: Annotated[
        float,
        Meta(gt=0, le=3600, description="Time limit of a batch, after which the runtime restarts."),
        Env("SHOAL_RUNTIME_FORWARD_TIMEOUT_S", RUNTIME),
    ] = 60.0
    # Fields of a container, as in a pod.
    resources: (
        Annotated[
            Resources,
            Meta(
                description="Requests and limits of the runtime, including any GPU resource (`nvidia.com/gpu`,"
                " `nvidia.com/mig-1g.10gb`, `amd.com/gpu`). There is no default limit, so set CPU and"
                " memory here if a quota requires them."
            ),
        ]
        | None
    ) = None
    resource_claims: Annotated[
        ResourceClaims,
        Meta(
            description="The pod's `resourceClaims` (dynamic resource allocation), which `resources.claims` refers to."
        ),
    ] = ()
    env: Annotated[
        EnvironmentVariables,
        Meta(
            description="Additional environment variables of the runtime; `$(NAME)` is replaced as in a container,"
            " and `$$` is one `$`."
        ),
    ] = ()
    volume_mounts: Annotated[
        VolumeMounts,
        Meta(
            description=(
                "Additional volume mounts of the runtime container and the init container `model`. The volumes "
                "are in `pod.volumes`."
            )
        ),
    ] = ()
    shared_memory: (
        Annotated[
            Quantity,
            Meta(
                description="Size limit of `/dev/shm`, which counts as memory of the container. Default: the"
                " container's memory limit, else the node's memory."
            ),
        ]
        | None
    ) = None
    image_pull_policy: Annotated[ImagePullPolicy, PULL_POLICY] | None = None
    security_context: Annotated[OpenObject, SECURITY_CONTEXT] | None = None
    # A foreign runtime.
    port: (
        Annotated[
            int,
            Meta(
                ge=1024,
                le=65_535,
                description="Port of a foreign server of the Open Inference Protocol (V2 over HTTP), which"
                " replaces Shoal's runtime in the pod. Must not be 8080 or 9090, the proxy's ports.",
            ),
        ]
        | None
    ) = None
    command: (
        Annotated[
            tuple[Argument, ...],
            Meta(
                max_length=64, description="Entrypoint of a foreign runtime; `$(NAME)` is replaced as in a container."
            ),
        ]
        | None
    ) = None
    args: (
        Annotated[
            tuple[Argument, ...],
            Meta(
                max_length=256, description="Arguments of a foreign runtime; `$(NAME)` is replaced as in a container."
            ),
        ]
        | None
    ) = None
