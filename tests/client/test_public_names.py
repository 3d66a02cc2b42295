import inspect
import subprocess
import sys

import shoal
from shoal import errors


def test_all_is_what_the_package_shows() -> None:
    names = [name for name in dir(shoal) if not name.startswith("_") and name not in {"import_module", "TYPE_CHECKING"}]
    public = {name for name in names if not inspect.ismodule(getattr(shoal, name))}

    assert public == set(shoal.__all__)


def test_every_error_is_public() -> None:
    kinds = {name for name, value in vars(errors).items() if inspect.isclass(value)} - {"dataclass"}

    assert kinds <= set(shoal.__all__)


def test_both_clients_have_the_same_methods() -> None:
    def methods(kind: type) -> dict[str, list[str]]:
        return {
            name: list(inspect.signature(value).parameters)
            for name, value in vars(kind).items()
            if callable(value) and not name.startswith("__") and not name.endswith("close")
        }

    assert methods(shoal.Client) == methods(shoal.AsyncClient)


def test_importing_the_client_is_light() -> None:
    script = "import shoal, shoal.commands, sys; shoal.Client; print(*sys.modules)"
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    heavy = {
        "torch",
        "uvicorn",
        "starlette",
        "yaml",
        "shoal_proxy",
        "shoal_runtime",
        "prometheus_client",
    }
    assert not heavy & set(output.stdout.split())


def test_arguments_are_read_before_anything_slow_is_imported() -> None:
    script = "import shoal.__main__, sys; print(*sys.modules)"
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert not {"numpy", "httpx", "click"} & set(output.stdout.split())
