"""The images, pushed to the local registry as a list with one image for each architecture."""

import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path

import images
from release.distributions import emulates_arm
from release.workspace import Skipped, Workspace, run

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def build_images(work: Workspace, registry: str) -> None:
    """Build each image for this architecture, and push it and a list that names it.

    Raises:
        Skipped: no builder works, or the base image cannot be pulled.
    """
    options = images.parser().parse_args(["build", *work.image_options])
    builder = builder_of(options.builder)
    check_base(builder, options.base)
    publish(work, registry, builder, [ARCHITECTURES[platform.machine()]])


def build_arm(work: Workspace, registry: str) -> None:
    """Build each image for arm64, and push a list of both architectures."""
    if platform.machine() == "aarch64":
        raise Skipped("this machine is arm64: the images above are for it; amd64 builds in CI")
    if not emulates_arm():
        raise Skipped("arm64 needs an emulator (qemu-user-static); CI builds it on an arm64 machine")
    options = images.parser().parse_args(["build", *work.image_options])
    more = ["--flags", f"{options.flags} --platform linux/arm64"]
    publish(work, registry, builder_of(options.builder), ["amd64", "arm64"], *more)


def publish(work: Workspace, registry: str, builder: str, architectures: Sequence[str], *more: str) -> None:
    """Build all images for the last architecture, and push them and a list of all architectures.

    Raises:
        RuntimeError: an image cannot be built, or exceeds its limit; images above their limit are pushed before.
    """
    tag = f"{work.version}-{architectures[-1]}"
    status = images.main(["build", *work.image_options, "--tag", tag, *more])
    for name in images.parser().parse_args(["build", *work.image_options]).images or images.IMAGES:
        if (
            subprocess.run([builder, "inspect", f"shoal/{name}:{tag}"], capture_output=True, check=False).returncode
            == 0
        ):
            push(builder, registry, name, work.version, architectures)
            size_mb = images.size_mb(builder, f"shoal/{name}:{tag}")
            work.images[f"shoal/{name} ({architectures[-1]})"] = int(size_mb * 1e6)
    if status:
        raise RuntimeError("an image cannot be built, or exceeds its limit (images.py); see above")


def builder_of(wanted: str | None) -> str:
    """Return the builder.

    Raises:
        Skipped: none works.
    """
    builder = wanted or next(filter(images.works, images.BUILDERS), None)
    if builder is None or not images.works(builder):
        raise Skipped(f"none of {', '.join(images.BUILDERS)} works: apt-get install buildah")
    return builder


def check_base(builder: str, base: str | None) -> None:
    """Check that the base image is present or can be pulled.

    Raises:
        Skipped: it cannot.
    """
    text = (Path(images.ROOT) / "Dockerfile").read_text()
    name = base or text.partition("ARG BASE=")[2].partition("\n")[0]
    present = subprocess.run([builder, "inspect", "--type", "image", name], capture_output=True, check=False)
    if present.returncode and subprocess.run([builder, "pull", name], capture_output=True, check=False).returncode:
        raise Skipped(f"the base image {name.partition('@')[0]} cannot be pulled here: name another with BASE=")


def push(builder: str, registry: str, name: str, version: str, architectures: Sequence[str]) -> None:
    """Push an image of each architecture, and a list of them with the version as its tag."""
    pushed = [f"{registry}/shoal/{name}:{version}-{each}" for each in architectures]
    listed = f"{registry}/shoal/{name}:{version}"
    for each, target in zip(architectures, pushed, strict=True):
        own = f"shoal/{name}:{version}-{each}"
        if builder == "docker":
            run(["docker", "tag", own, target])
            run(["docker", "push", target])
        else:
            run([builder, "push", "--tls-verify=false", own, f"docker://{target}"])
    if builder == "docker":
        run(["docker", "buildx", "imagetools", "create", "--tag", listed, *pushed])
        return
    run([builder, "manifest", "create", listed])
    for target in pushed:
        run([builder, "manifest", "add", "--tls-verify=false", listed, f"docker://{target}"])
    run([builder, "manifest", "push", "--all", "--tls-verify=false", listed, f"docker://{listed}"])
    run([builder, "manifest", "rm", listed])
