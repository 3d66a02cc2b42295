from pathlib import Path

import pytest

from shoal_runtime.settings import Settings, help_text
from shoal_schema.fields.addresses import Address
from shoal_schema.fields.declaring import RUNTIME
from shoal_schema.process.environment import SettingsError, variables
from shoal_schema.process.settings.log import Level, LogForm, LogSettings
from shoal_schema.process.settings.model import Metadata
from shoal_schema.process.settings.runtime import RuntimeProcess
from shoal_schema.resource.model import ModelFormat, ModelSpec
from shoal_schema.resource.runtime import DType, Precision, PrecisionSpec, RuntimeSpec
from shoal_schema.resource.traffic import BatchingSpec

REQUIRED = {"SHOAL_MODEL_URI": "/models/m"}


def test_an_empty_environment_gives_the_defaults() -> None:
    assert Settings.from_env(REQUIRED) == Settings(model=ModelSpec(uri="/models/m"))


def test_every_variable_is_read() -> None:
    settings = Settings.from_env(
        given := {
            "SHOAL_MODEL_URI": "https://host/m.zip",
            "SHOAL_MODEL_NAME": "m",
            "SHOAL_MODEL_VERSION": "v2",
            "SHOAL_MODEL_CHECKSUM": "sha256:" + "aB" * 32,
            "SHOAL_MODEL_CACHE_DIR": "/cache",
            "SHOAL_MODEL_CA_BUNDLE": "/ca.pem",
            "SHOAL_MODEL_FETCHED": "true",
            "SHOAL_MODEL_FORMAT": "Handler",
            "SHOAL_MODEL_HANDLER": "handler.py:Model",
            "SHOAL_MODEL_PARAMETERS": '{"a": 1}',
            "SHOAL_MODEL_ALLOW_PICKLE": "true",
            "SHOAL_MODEL_TRUSTED_TYPES": "package.module.Kind,another.Type",
            "SHOAL_BATCHING_MAX_BATCH_SIZE": "8",
            "SHOAL_BATCHING_ALLOWED_BATCH_SIZES": "1,4,8",
            "SHOAL_LOG_LEVEL": "debug",
            "SHOAL_LOG_FORMAT": "json",
            "SHOAL_MODEL_MAX_BYTES": "1048576",
            "SHOAL_MODEL_MAX_FILES": "7",
            "SHOAL_MODEL_MAX_RATIO": "8",
            "SHOAL_MODEL_FETCH_TIMEOUT_S": "9",
            "SHOAL_MODEL_LOAD_TIMEOUT_S": "10",
            "SHOAL_RUNTIME_LISTEN": "[::1]:8001",
            "SHOAL_RUNTIME_DEVICE": "CUDA:1",
            "SHOAL_RUNTIME_DTYPE": "BFloat16",
            "SHOAL_RUNTIME_PRECISION_ABS_ERROR": "1e-3",
            "SHOAL_RUNTIME_PRECISION_REL_ERROR": "0.1",
            "SHOAL_RUNTIME_PRECISION_AGREEMENT": "1",
            "SHOAL_RUNTIME_COMPILE": "true",
            "SHOAL_RUNTIME_TENSORRT": "true",
            "SHOAL_RUNTIME_THREADS": "4",
            "SHOAL_RUNTIME_INSTANCES": "2",
            "SHOAL_RUNTIME_MEMORY_FRACTION": "0.25",
            "SHOAL_RUNTIME_INSTANCE": "1",
            "SHOAL_RUNTIME_CHOSEN_PRECISION": "TF32",
            "SHOAL_RUNTIME_MODEL_DIGEST": "0a" * 32,
            "SHOAL_RUNTIME_PREPROCESS_THREADS": "3",
            "SHOAL_RUNTIME_FORWARD_TIMEOUT_S": "0.5",
            "SHOAL_RUNTIME_MAX_BODY_BYTES": "1024",
            "SHOAL_RUNTIME_MAX_HEAD_BYTES": "2048",
            "SHOAL_RUNTIME_HEAD_TIMEOUT_S": "1.5",
            "SHOAL_RUNTIME_TRANSFER_TIMEOUT_S": "7",
            "SHOAL_RUNTIME_MIN_BYTES_PER_S": "100",
            "SHOAL_RUNTIME_SHUTDOWN_TIMEOUT_S": "0",
        }
    )

    assert set(given) == {name for name, each in variables().items() if each.env and RUNTIME in each.env.readers}
    assert settings == Settings(
        metadata=Metadata(name="m"),
        model=ModelSpec(
            uri="https://host/m.zip",
            version="v2",
            checksum="sha256:" + "aB" * 32,
            format=ModelFormat.HANDLER,
            handler="handler.py:Model",
            parameters={"a": 1},
            allow_pickle=True,
            trusted_types=("package.module.Kind", "another.Type"),
        ),
        runtime=RuntimeSpec(
            device="CUDA:1",  # type: ignore[arg-type]  # a process takes more than a spec
            dtype=DType.BFLOAT16,
            compile=True,
            tensorrt=True,
            threads=4,
            instances=2,
            memory_fraction="0.25",
            preprocess_threads=3,
            forward_timeout_seconds=0.5,
        ),
        precision=PrecisionSpec("1e-3", "0.1", "1"),
        batching=BatchingSpec(max_batch_size=8, allowed_batch_sizes=(1, 4, 8)),
        process=RuntimeProcess(
            listen=Address("::1", 8001),
            instance=1,
            chosen_precision=Precision.TF32,
            model_digest="0a" * 32,
            cache_dir="/cache",
            model_ca_bundle="/ca.pem",
            model_fetched=True,
            model_max_bytes=2**20,
            model_max_files=7,
            model_max_ratio=8,
            fetch_timeout_s=9,
            load_timeout_s=10,
            max_body_bytes=1024,
            max_head_bytes=2048,
            head_timeout_s=1.5,
            transfer_timeout_s=7,
            min_bytes_per_s=100,
            shutdown_timeout_s=0,
        ),
        logging=LogSettings(level=Level.DEBUG, form=LogForm.JSON),
    )
    assert settings.cache_dir == Path("/cache")


def test_sizes_may_come_in_any_order() -> None:
    assert Settings.from_env({**REQUIRED, "SHOAL_BATCHING_ALLOWED_BATCH_SIZES": "32, 4,8"}).batch_sizes == (4, 8, 32)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SHOAL_RUNTIME_LISTEN", "8080"),
        ("SHOAL_RUNTIME_LISTEN", "unix:"),
        ("SHOAL_RUNTIME_LISTEN", "host:99999"),
        ("SHOAL_MODEL_NAME", "my model"),
        ("SHOAL_MODEL_CHECKSUM", "md5:abc"),
        ("SHOAL_MODEL_FORMAT", "TensorFlow"),
        ("SHOAL_MODEL_HANDLER", "handler"),
        ("SHOAL_MODEL_PARAMETERS", "[1]"),
        ("SHOAL_MODEL_PARAMETERS", "{"),
        ("SHOAL_MODEL_ALLOW_PICKLE", "yes"),
        ("SHOAL_BATCHING_MAX_BATCH_SIZE", "0"),
        ("SHOAL_BATCHING_MAX_BATCH_SIZE", "many"),
        ("SHOAL_BATCHING_ALLOWED_BATCH_SIZES", "0,4"),
        ("SHOAL_RUNTIME_DEVICE", "tpu"),
        ("SHOAL_RUNTIME_DTYPE", "int8"),
        ("SHOAL_RUNTIME_FORWARD_TIMEOUT_S", "0"),
        ("SHOAL_RUNTIME_FORWARD_TIMEOUT_S", "nan"),
        ("SHOAL_RUNTIME_SHUTDOWN_TIMEOUT_S", "-1"),
    ],
)
def test_a_value_out_of_range_is_named_with_its_key(variable: str, value: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.from_env({**REQUIRED, variable: value})

    assert variable in str(caught.value)
    assert repr(value) in str(caught.value)


def test_all_faults_are_reported_at_once() -> None:
    with pytest.raises(SettingsError, match=r"SHOAL_MODEL_URI is required.*SHOAL_RUNTIME_DTYPE"):
        Settings.from_env({"SHOAL_RUNTIME_DTYPE": "int8"})


def test_the_last_allowed_size_is_the_maximum() -> None:
    with pytest.raises(SettingsError, match="SHOAL_BATCHING_ALLOWED_BATCH_SIZES: "):
        Settings.from_env({**REQUIRED, "SHOAL_BATCHING_ALLOWED_BATCH_SIZES": "4,8"})


def test_an_empty_value_means_the_default() -> None:
    assert Settings.from_env({**REQUIRED, "SHOAL_RUNTIME_DTYPE": ""}).runtime.dtype is DType.AUTO


def test_help_names_every_variable_and_its_default() -> None:
    text = help_text()

    for name, each in variables().items():
        assert (f"  {name}\n" in text) == (each.env is not None and RUNTIME in each.env.readers)
    assert "1 to 65536; default 32" in text
    assert "true or false; default false" in text
