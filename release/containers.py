"""The images, pushed to the local registry as a list with one image for each architecture."""

import json
import platform
import subprocess
from pathlib import Path

import images
from release.distributions import emulates_arm
from release.workspace import Skipped, Workspace, run, say

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def build_images(work: Workspace, registry: str) -> None:
    """Build each image for this architecture, and push it and a list that names it.

    Raises:
        Skipped: no builder works, or the base image cannot be pulled.
    """
    options = images.parser().parse_args(["build", *work.image_options])
    builder = builder_of(options.builder)
    check_base(builder, options.base)
    here = ARCHITECTURES[platform.machine()]
    for name in options.images or images.IMAGES:
        tag = f"{work.version}-{here}"
        command = [
            "build",
            name,
            "--registry",
            registry,
            "--tag",
            tag,
            *without_names(work.image_options, options.images),
        ]
        if images.main(command):
            raise RuntimeError(f"image {name} cannot be built, or is too large")
        image = f"{registry}/shoal/{name}"
        work.images[image] = int(images.size_mb(builder, f"{image}:{tag}") * 1e6)
        push(builder, image, tag, work.version)


def build_arm(work: Workspace, registry: str) -> None:
    """Build each image for arm64, and add it to the list."""
    if platform.machine() == "aarch64":
        raise Skipped("this machine is arm64: the images above are for it; amd64 builds in CI")
    if not emulates_arm():
        raise Skipped("arm64 needs an emulator (qemu-user-static); CI builds it on an arm64 machine")
    options = images.parser().parse_args(["build", *work.image_options])
    builder = builder_of(options.builder)
    for name in options.images or images.IMAGES:
        others = without_names(work.image_options, options.images)
        command = ["build", name, "--registry", registry, "--tag", f"{work.version}-arm64", *others]
        if images.main([*command, "--flags", f"{options.flags} --platform linux/arm64"]):
            raise RuntimeError(f"image {name} cannot be built for arm64, or is too large")
        push(builder, f"{registry}/shoal/{name}", f"{work.version}-arm64", work.version)


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


def without_names(options: tuple[str, ...], names: list[str]) -> list[str]:
    """Return the options of ``images.py build`` without the names of images."""
    return [each for each in options if each not in names]


def push(builder: str, image: str, tag: str, version: str) -> None:
    """Push an image, and the list of all architectures of a version."""
    if builder == "docker":
        run(["docker", "push", f"{image}:{tag}"])
        run(["docker", "buildx", "imagetools", "create", "--tag", f"{image}:{version}", f"{image}:{tag}"])
        return
    run([builder, "push", "--tls-verify=false", f"{image}:{tag}", f"docker://{image}:{tag}"])
    listed = f"{image}:{version}"
    known = json.loads(run([builder, "images", "--json"]) or "[]")
    if not any(listed in (each.get("names") or ()) for each in known):
        run([builder, "manifest", "create", listed])
    run([builder, "manifest", "add", "--tls-verify=false", listed, f"docker://{image}:{tag}"])
    run([builder, "manifest", "push", "--all", "--tls-verify=false", listed, f"docker://{listed}"])
    say(f"pushed {listed}")
