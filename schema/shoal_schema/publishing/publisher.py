"""Write the publisher's choices (``publisher.toml``) into packages, chart, pages and hints."""

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from shoal_schema.version import VERSION

PAGES = ("README.md", "docs/**/*.md", "examples/*/README.md", "local/README.md")
HINTS = ("pyproject.toml", "local/pyproject.toml", "{client,local,operator,proxy,runtime,schema}/**/*.py")
_VALUES = "charts/shoal/values.yaml"
_CONSTANTS: dict[str, tuple[str, Callable[["Publisher"], str]]] = {
    "client/shoal/command_line.py": ("_LOCAL_CLUSTER", lambda publisher: publisher.local),
    "local/shoal_local/command_line.py": ("_DISTRIBUTION", lambda publisher: f"{publisher.name}-local"),
    "schema/shoal_schema/guides.py": ("PAGES", lambda publisher: publisher.pages),
}
"""Path -> a constant of the module, and its value."""
_MARK = re.compile(r"(?<=<!-- publisher: )(?P<name>\w+) -->\n.*?(?=<!-- end -->)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Publisher:
    """Names of what a publisher publishes; empty if it is not published."""

    package: str
    images: str
    charts: str
    site: str = ""

    @classmethod
    def of(cls, root: Path) -> "Publisher":
        """Read ``publisher.toml``."""
        return cls(**tomllib.loads((root / "publisher.toml").read_text(encoding="utf-8")))

    @property
    def name(self) -> str:
        """Name of the distribution, also while it is not published."""
        return self.package or "shoal"

    @property
    def local(self) -> str:
        """What pip installs for the local cluster."""
        return f"{self.name}-local" if self.package else "./local in a clone of Shoal"

    @property
    def pages(self) -> str:
        """Where hints find the pages: the site, a clone while there is no package, or nowhere."""
        return self.site or ("" if self.package else "docs")

    @property
    def chart(self) -> str:
        """The chart, as an argument of helm."""
        return f"{self.charts}/shoal --version {VERSION}" if self.charts else "charts/shoal"

    @property
    def definitions(self) -> str:
        """Directory of the CustomResourceDefinitions: of a clone, or of the chart that `helm pull` has unpacked."""
        return "shoal/files/" if self.charts else "crds/"


def published_files(root: Path, publisher: Publisher, made: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each file in which a choice of the publisher changes the text, and that text.

    ``made`` has the texts of files that are generated otherwise, which may not be stored yet.
    """
    old = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["name"]
    for path in (_VALUES, *found(root, PAGES), *found(root, HINTS)):
        before = made.get(path) or (root / path).read_text(encoding="utf-8")
        after = page(before, publisher, old) if path.endswith(".md") else named(before, publisher, old)
        if path == _VALUES:
            after = re.sub(r'(?m)^  registry: ".*"$', f'  registry: "{publisher.images}"', after)
        if path in _CONSTANTS:
            name, value = _CONSTANTS[path]
            after = re.sub(rf"(?m)^({name}: Final = ).*$", rf'\g<1>"{value(publisher)}"', after)
        if after != before:
            yield path, after


def found(root: Path, patterns: tuple[str, ...]) -> Iterator[str]:
    """Yield the files that match patterns such as ``docs/**/*.md`` or ``{client,local}/*.py``, relative to ``root``."""
    for pattern in patterns:
        braces = re.fullmatch(r"\{(.*)\}(.*)", pattern)
        each = [f"{part}{braces[2]}" for part in braces[1].split(",")] if braces else [pattern]
        yield from (str(path.relative_to(root)) for one in each for path in sorted(root.glob(one)))


def named(text: str, publisher: Publisher, old: str) -> str:
    """Return requirements and hints with the name of the distribution."""
    text = re.sub(rf"(?<=[\"'`]){old}(?=\[)", publisher.name, text)
    text = re.sub(rf'(?m)^(name = "){old}(?=(?:-local)?"$)', rf"\g<1>{publisher.name}", text)
    return _compiled(text, publisher, old)


def page(text: str, publisher: Publisher, old: str) -> str:
    """Return a page whose commands install what is published, or else from a clone."""
    target = publisher.name if publisher.package else "."
    local = f"{publisher.name}-local" if publisher.package else "./local"
    options = r"(pip install(?:\s+--[\w=-]+)*\s+[\"'])"
    text = re.sub(rf"{options}(?:{old}|\.)(?=\[[\w,-]+\][\"'])", rf"\g<1>{target}", text)
    # Beside Shoal with extras, and alone: then a clone needs Shoal too.
    text = re.sub(rf"(?<=\][\"'])(\s+)(?:{old}-local|\./local)(?=[`\s])", rf"\g<1>{local}", text)
    alone = local if publisher.package else f". {local}"
    text = re.sub(rf"(?<=pip install )(?:{old}-local|\. \./local)(?=[`\s])", alone, text)
    text = re.sub(rf"(?<=`){old}(?=\[)", publisher.name, text)
    charts = r"(?:charts/shoal|oci://\S+/shoal --version \S+)(?=[ \n])"
    text = re.sub(rf"(helm (?:upgrade|install)(?: --install)? shoal ){charts}", rf"\g<1>{publisher.chart}", text)
    text = re.sub(r"(?<=--filename )(?:crds/|shoal/files/)", publisher.definitions, text)
    return _MARK.sub(
        lambda mark: f"{mark['name']} -->\n{_SENTENCES[mark['name']](publisher)}\n", _compiled(text, publisher, old)
    )


def _compiled(text: str, publisher: Publisher, old: str) -> str:
    """Return a text whose commands compile the published source, or else a clone."""
    source = f"--no-binary {publisher.name} {publisher.name}" if publisher.package else "."
    command = r"(SHOAL_COMPILE=1 pip install(?: --verbose)? )"
    return re.sub(rf"{command}(?:--no-binary {old} {old}|\.)(?=[\"\s`])", rf"\g<1>{source}", text)


def _install(publisher: Publisher) -> str:
    if publisher.package:
        return (
            f'Install Shoal with `pip install "{publisher.name}[serve]"`, and the local cluster with\n'
            f"`pip install {publisher.local}`."
        )
    return 'No package index has Shoal yet. Install it from a clone with `pip install ".[serve]" ./local`.'


def _chart(publisher: Publisher) -> str:
    if publisher.images and publisher.charts:
        return f"The chart is `{publisher.charts}/shoal --version {VERSION}`, with images of\n`{publisher.images}`."
    return (
        "No registry has Shoal's chart and images yet. Use `charts/shoal` of a clone, [build and push the\n"
        "images](images.md), and set `images.registry`. Without it, the chart refuses to install."
    )


def _environment(publisher: Publisher) -> str:
    if publisher.package:
        return (
            "Create an environment with `python3 -m venv .venv`, and install Shoal into it with\n"
            f"`.venv/bin/pip install {publisher.local}`."
        )
    return "In a clone of the repository, run `make demo` once, which installs Shoal into `.venv`."


def _place(publisher: Publisher) -> str:
    if publisher.package:
        return "Create a directory for this tutorial, and an environment in it:"
    return (
        "In a clone of the repository, create an environment. If `make demo` has installed Shoal there, only\n"
        "activate it:"
    )


def _definitions(publisher: Publisher) -> str:
    if publisher.charts:
        return (
            f"`helm pull {publisher.charts}/shoal --version {VERSION} --untar`\nwrites the files of the"
            f" CustomResourceDefinitions to `{publisher.definitions}`."
        )
    return "The files of the CustomResourceDefinitions are in `crds/` of a clone."


def _operator(publisher: Publisher) -> str:
    install, made = "Install the chart, and test the installation:", ""
    values = ""
    if not publisher.images:
        made = (
            "Build the images in a clone of the repository, with docker, podman or buildah, and push the images\n"
            "that the command lists:\n\n"
            "<!-- test: skip it takes a builder and minutes; `make test-images` does it -->\n"
            "```sh\nmake images REGISTRY=registry.example.com\n```\n\n"
        )
        install = "Install the chart with the registry of these images, and test the installation:"
        values = " \\\n  --set images.registry=registry.example.com/shoal"
    return (
        f"{made}{install}\n\n<!-- test: skip there is no such registry -->\n```sh\n"
        f"helm install shoal {publisher.chart} --namespace shoal-system --create-namespace --wait{values}\n"
        "helm test shoal --namespace shoal-system\n```"
    )


_SENTENCES: dict[str, Callable[[Publisher], str]] = {
    "chart": _chart,
    "definitions": _definitions,
    "environment": _environment,
    "install": _install,
    "operator": _operator,
    "place": _place,
}
