"""Build Shoal's images with the builder that is here, say how large they are, and fail where one outgrew its mark.

``make images`` calls it. What a build takes from outside is the base image, Debian's packages and Python's; where pip
finds those is for its own configuration to say: ``--pip-conf`` shows a file of it to the builds, and to no image.
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
    """What an image is made of, and how many megabytes it may add to its base; None where torch is what it weighs."""

    component: str
    extras: str
    mark_mb: int | None
    compiled: bool = True
    system_packages: str = ""


# LightGBM's wheel takes OpenMP from the system.
IMAGES: Mapping[str, Image] = {
    "operator": Image("operator", "operator", 120, compiled=False),
    # Without what tokens (cryptography, 18) and gRPC (19) bring it is below 90.
    "proxy": Image("proxy", "proxy,grpc,jwt,tracing", 125),
    "runtime": Image("runtime", "runtime,stores,batch", None, system_packages="libgomp1"),
    "runtime-light": Image("runtime", "runtime-light,trees,onnx,stores", 550, system_packages="libgomp1"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Build, or print what an image's extras ask for; return the exit status."""
    options = parser().parse_args(arguments)
    if options.command == "requirements":
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        say("\n".join(requirements(options.extras.split(","), project["optional-dependencies"])))
        return 0
    builder = options.builder or next(filter(works, BUILDERS), None)
    if builder is None:
        sys.stderr.write(f"images: none of {', '.join(BUILDERS)} is here and works\n")
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
    asks = commands.add_parser("requirements", help="print what extras of pyproject.toml ask for")
    asks.add_argument("extras", help="separated by commas")
    build = commands.add_parser("build", help="build images")
    build.add_argument("images", nargs="*", metavar="IMAGE", help=f"of {', '.join(IMAGES)}; default: all")
    build.add_argument("--base", help="the base image, with python3 of at least 3.11; default: the Dockerfile's")
    build.add_argument("--cuda", default="", help="build of torch: cpu, cu128, ...; default: what pip finds")
    build.add_argument("--extras", help="of pyproject.toml, instead of the image's own")
    build.add_argument("--registry", default="", help="stands before shoal/IMAGE")
    build.add_argument("--tag", help="default: the version")
    build.add_argument("--builder", help=f"default: the first of {', '.join(BUILDERS)} that works")
    build.add_argument("--pip-conf", type=Path, help="pip's configuration during the build")
    build.add_argument("--flags", default="", help="more options for the builder, as a shell would read them")
    return found


def version() -> str:
    """Return the version of this checkout."""
    text = (ROOT / "schema" / "shoal_schema" / "version.py").read_text()
    return text.partition('VERSION = "')[2].partition('"')[0]


def requirements(extras: Iterable[str], declared: Mapping[str, Sequence[str]]) -> list[str]:
    """Return what extras ask for, those that they name in turn included, sorted."""
    found: set[str] = set()
    for extra in extras:
        for line in declared[extra]:
            own = re.fullmatch(r"shoal\[(.+)\]", line)
            found.update(requirements(own[1].split(","), declared) if own else [line])
    return sorted(found)


def works(builder: str) -> bool:
    """Say whether a builder is here and can be used: docker may be there without its daemon."""
    if shutil.which(builder) is None:
        return False
    return subprocess.run([builder, "info"], capture_output=True, check=False).returncode == 0


def build_all(options: argparse.Namespace, builder: str) -> int:
    """Build images one after the other and print a table of sizes; return 1 where one is over its mark."""
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
    """Return what every build has in common."""
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
    """Return git's name of what is built; empty outside of a clone."""
    asked = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()


def size_mb(builder: str, tag: str) -> float:
    """Return the megabytes of an image's files, unpacked."""
    if builder == "buildah":
        [found] = json.loads(output([builder, "images", "--json", tag]))
        number, unit = found["size"].split()
        return float(number) * {"KB": 1e-3, "MB": 1, "GB": 1e3}[unit]
    return int(output([builder, "image", "inspect", "--format", "{{.Size}}", tag])) / 1e6


def output(command: Sequence[str]) -> str:
    """Return what a command prints."""
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def run(command: Sequence[str]) -> None:
    """Show a command and run it."""
    say(shlex.join(command))
    subprocess.run(command, check=True)


def say(text: str) -> None:
    """Tell the person at the terminal at once."""
    print(text, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
