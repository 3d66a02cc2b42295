from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from shoal_runtime.errors import SettingsError
from shoal_runtime.settings import Address, Format, Settings, help_text

REQUIRED = {"SHOAL_MODEL_URI": "/models/m"}


def test_the_defaults_are_those_of_the_contract() -> None:
    settings = Settings.from_env(REQUIRED)

    assert str(settings.listen) == "unix:/run/shoal/runtime.sock"
    assert settings.model_version == "1"
    assert settings.model_format is Format.AUTO
    assert settings.max_batch_size == 32
    assert settings.allowed_batch_sizes == ()
    assert settings.device == "auto"
    assert settings.forward_timeout_s == 60
    assert settings.shutdown_timeout_s == 60
    assert settings.max_body_bytes == 2**30
    assert settings.preprocess_threads == 2
    assert not settings.allow_pickle


def test_every_variable_is_read() -> None:
    settings = Settings.from_env(
        {
            "SHOAL_MODEL_URI": "https://host/m.zip",
            "SHOAL_MODEL_NAME": "m",
            "SHOAL_MODEL_VERSION": "v2",
            "SHOAL_MODEL_CHECKSUM": "sha256:" + "aB" * 32,
            "SHOAL_MODEL_CACHE_DIR": "/cache",
            "SHOAL_MODEL_FORMAT": "Handler",
            "SHOAL_MODEL_HANDLER": "handler.py:Model",
            "SHOAL_MODEL_PARAMETERS": '{"a": 1}',
            "SHOAL_MODEL_ALLOW_PICKLE": "true",
            "SHOAL_BATCHING_MAX_BATCH_SIZE": "8",
            "SHOAL_BATCHING_ALLOWED_BATCH_SIZES": "1,4,8",
            "SHOAL_RUNTIME_LISTEN": "[::1]:8001",
            "SHOAL_RUNTIME_DEVICE": "CUDA:1",
            "SHOAL_RUNTIME_DTYPE": "BFloat16",
            "SHOAL_RUNTIME_COMPILE": "true",
            "SHOAL_RUNTIME_THREADS": "4",
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

    assert settings == Settings(
        model_uri="https://host/m.zip",
        model_name="m",
        model_version="v2",
        model_checksum="sha256:" + "aB" * 32,
        cache_dir=Path("/cache"),
        model_format=Format.HANDLER,
        model_handler="handler.py:Model",
        model_parameters={"a": 1},
        allow_pickle=True,
        max_batch_size=8,
        allowed_batch_sizes=(1, 4, 8),
        listen=Address(host="::1", port=8001),
        device="cuda:1",
        dtype="bfloat16",
        compile=True,
        threads=4,
        preprocess_threads=3,
        forward_timeout_s=0.5,
        max_body_bytes=1024,
        max_head_bytes=2048,
        head_timeout_s=1.5,
        transfer_timeout_s=7,
        min_bytes_per_s=100,
        shutdown_timeout_s=0,
    )


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SHOAL_RUNTIME_LISTEN", "8080"),
        ("SHOAL_RUNTIME_LISTEN", "unix:"),
        ("SHOAL_RUNTIME_LISTEN", "host:99999"),
        ("SHOAL_MODEL_NAME", "my model"),
        ("SHOAL_MODEL_CHECKSUM", "md5:abc"),
        ("SHOAL_MODEL_FORMAT", "ONNX"),
        ("SHOAL_MODEL_HANDLER", "handler"),
        ("SHOAL_MODEL_PARAMETERS", "[1]"),
        ("SHOAL_MODEL_PARAMETERS", "{"),
        ("SHOAL_MODEL_ALLOW_PICKLE", "yes"),
        ("SHOAL_BATCHING_MAX_BATCH_SIZE", "0"),
        ("SHOAL_BATCHING_MAX_BATCH_SIZE", "many"),
        ("SHOAL_BATCHING_ALLOWED_BATCH_SIZES", "8,4"),
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


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(SettingsError, match=r"SHOAL_MODEL_URI is required.*SHOAL_RUNTIME_DTYPE"):
        Settings.from_env({"SHOAL_RUNTIME_DTYPE": "int8"})


def test_the_last_allowed_size_is_the_maximum() -> None:
    with pytest.raises(SettingsError, match="must be SHOAL_BATCHING_MAX_BATCH_SIZE, 32, not 8"):
        Settings.from_env({**REQUIRED, "SHOAL_BATCHING_ALLOWED_BATCH_SIZES": "4,8"})


def test_an_empty_value_means_the_default() -> None:
    assert Settings.from_env({**REQUIRED, "SHOAL_RUNTIME_DTYPE": ""}).dtype == "auto"


def test_help_names_every_variable_and_its_default() -> None:
    text = help_text()

    for each in fields(Settings):
        assert each.metadata["variable"] in text
    assert "1 to 65536 rows; default 32" in text
    assert "true or false; default false" in text
