"""Build Shoal's container images, print their sizes, and fail if one exceeds its limit.

``make images`` calls it. A build downloads the base image, Debian packages and Python packages. ``--pip-conf`` is a pip
configuration file for the builds, which no image contains.
"""

import argparse
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent
BUILDERS = ("docker", "podman", "buildah")


@dataclass(frozen=True)
class Image:
    """Contents of an image, and the megabytes it may add to its base; None if torch determines its size."""

    component: str
    extras: str
    mark_mb: int | None
    compiled: bool = True
    system_packages: str = ""


# LightGBM's wheel needs the system's OpenMP (libgomp1).
IMAGES: Mapping[str, Image] = {
    "operator": Image("operator", "operator", 120, compiled=False),
    # Of these gRPC takes 19 MB, tokens (cryptography) and the store of asynchronous requests (obstore) 16 MB each.
    "proxy": Image("proxy", "proxy,grpc,jwt,s3,tracing", 150),
    "runtime": Image("runtime", "runtime,stores,batch", None, system_packages="libgomp1"),
    "runtime-light": Image("runtime", "runtime-light,trees,onnx,stores", 550, system_packages="libgomp1"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Build images, or print the requirements of extras; return the exit status."""
    options = parser().parse_args(arguments)
    if options.command == "requirements":
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        say("\n".join(requirements(options.extras.split(","), project["optional-dependencies"])))
        return 0
    builder = options.builder or next(filter(works, BUILDERS), None)
    if builder is None:
        sys.stderr.write(f"images: none of {', '.join(BUILDERS)} works\n")
        return 1
    try:
        return build_all(options, builder)
    except subprocess.CalledProcessError as error:
        sys.stderr.write(f"images: {builder} failed with exit status {error.returncode}\n")
        return 1


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = argparse.ArgumentParser("images.py", description=__doc__)
    commands = found.add_subparsers(dest="command", required=True)
    asks = commands.add_parser("requirements", help="print the requirements of extras in pyproject.toml")
    asks.add_argument("extras", help="separated by commas")
    build = commands.add_parser("build", help="build images")
    build.add_argument("images", nargs="*", metavar="IMAGE", help=f"of {', '.join(IMAGES)}; default: all")
    build.add_argument("--base", help="base image with Python 3.11 or later; default: the Dockerfile's")
    build.add_argument("--cuda", default="", help="build of torch: cpu, cu128, ...; default: pip's")
    build.add_argument("--extras", help="extras of pyproject.toml; default: the image's own")
    build.add_argument("--registry", default="", help="prefix of shoal/IMAGE")
    build.add_argument("--tag", help="default: the version")
    build.add_argument("--builder", help=f"default: the first of {', '.join(BUILDERS)} that works")
    build.add_argument("--pip-conf", type=Path, help="pip's configuration during the build")
    build.add_argument("--flags", default="", help="more options of the builder, parsed as by a shell")
    return found


def version() -> str:
    """Return the version of this checkout."""
    text = (ROOT / "schema" / "shoal_schema" / "version.py").read_text()
    return text.partition('VERSION = "')[2].partition('"')[0]


def requirements(extras: Iterable[str], declared: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the requirements of extras, including extras that they refer to, sorted."""
    found: set[str] = set()
    for extra in extras:
        for line in declared[extra]:
            own = re.fullmatch(r"[\w-]+\[(.+)\]", line)
            found.update(requirements(own[1].split(","), declared) if own else [line])
    return sorted(found)


def works(builder: str) -> bool:
    """Return whether a builder works; docker may be installed without a daemon."""
    if shutil.which(builder) is None:
        return False
    return subprocess.run([builder, "info"], capture_output=True, check=False).returncode == 0


def build_all(options: argparse.Namespace, builder: str) -> int:
    """Build images and print a table of sizes; return 1 if one exceeds its limit."""
    prefix = f"{options.registry}/shoal" if options.registry else "shoal"
    base = f"shoal/base:{options.tag or version()}"
    run([*build_command(options, builder), "--target", "base", "--tag", base, str(ROOT)])
    base_mb = size_mb(builder, base)
    rows = [f"{'image':{len(prefix) + 20}} {'MB':>7} {'of the base':>12} {'added':>7} {'mark':>6}"]
    over = []
    for name in options.images or IMAGES:
        image, tag = IMAGES[name], f"{prefix}/{name}:{options.tag or version()}"
        run([*build_command(options, builder), *arguments_of(image, options), "--tag", tag, str(ROOT)])
        added_mb = size_mb(builder, tag) - base_mb
        mark_mb = None if options.extras else image.mark_mb
        rows.append(
            f"{tag:{len(prefix) + 20}} {base_mb + added_mb:7.0f} {base_mb:12.0f} {added_mb:7.0f} {mark_mb or 'none':>6}"
        )
        over += [name] if mark_mb is not None and added_mb > mark_mb else []
    say("\n".join(rows))
    if over:
        sys.stderr.write(f"images: over the mark: {', '.join(over)}\n")
    return 1 if over else 0


def build_command(options: argparse.Namespace, builder: str) -> list[str]:
    """Return the common part of every build command."""
    base = ["--build-arg", f"BASE={options.base}"] if options.base else []
    secret = ["--secret", f"id=pip,src={options.pip_conf}"] if options.pip_conf else []
    return [builder, "build", *base, *secret, *shlex.split(options.flags)]


def arguments_of(image: Image, options: argparse.Namespace) -> list[str]:
    """Return the arguments of an image's build."""
    values = {
        "COMPONENT": image.component,
        "EXTRAS": options.extras or image.extras,
        "COMPILE": str(int(image.compiled)),
        "SYSTEM_PACKAGES": image.system_packages,
        "CUDA": options.cuda,
        "VERSION": version(),
        "REVISION": revision(),
    }
    pairs = (("--build-arg", f"{name}={value}") for name, value in values.items())
    return ["--target", image.component, *(each for pair in pairs for each in pair)]


def revision() -> str:
    """Return the git commit; empty outside a clone."""
    asked = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()


def size_mb(builder: str, tag: str) -> float:
    """Return the unpacked size of an image."""
    if builder == "buildah":
        [found] = json.loads(output([builder, "images", "--json", tag]))
        number, unit = found["size"].split()
        return float(number) * {"KB": 1e-3, "MB": 1, "GB": 1e3}[unit]
    return int(output([builder, "image", "inspect", "--format", "{{.Size}}", tag])) / 1e6


def output(command: Sequence[str]) -> str:
    """Return the output of a command."""
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def run(command: Sequence[str]) -> None:
    """Print a command and run it."""
    say(shlex.join(command))
    subprocess.run(command, check=True)


def say(text: str) -> None:
    """Print text without buffering."""
    print(text, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
