"""Write the publisher's choices (``publisher.toml``) into packages, chart, pages and hints."""

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from shoal_schema.version import VERSION

_PAGES = ("README.md", "docs/**/*.md", "examples/*/README.md", "local/README.md")
_HINTS = ("pyproject.toml", "local/pyproject.toml", "{client,local,operator,proxy,runtime}/**/*.py")
_VALUES = "charts/shoal/values.yaml"
_COMMANDS = "client/shoal/command_line.py"
_MARK = re.compile(r"(?<=<!-- publisher: )(?P<name>\w+) -->\n.*?(?=<!-- end -->)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Publisher:
    """Names of what a publisher publishes; empty if it is not published."""

    package: str
    images: str
    charts: str

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


def published_files(root: Path, publisher: Publisher, made: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each file in which a choice of the publisher changes the text, and that text.

    ``made`` has the texts of files that are generated otherwise, which may not be stored yet.
    """
    old = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["name"]
    for path in (_VALUES, *_found(root, _PAGES), *_found(root, _HINTS)):
        before = made.get(path) or (root / path).read_text(encoding="utf-8")
        after = page(before, publisher, old) if path.endswith(".md") else named(before, publisher, old)
        if path == _VALUES:
            after = re.sub(r'(?m)^  registry: ".*"$', f'  registry: "{publisher.images}"', after)
        if path == _COMMANDS:
            after = re.sub(r"(?m)^(_LOCAL_CLUSTER: Final = ).*$", rf'\g<1>"{publisher.local}"', after)
        if after != before:
            yield path, after


def _found(root: Path, patterns: tuple[str, ...]) -> Iterator[str]:
    for pattern in patterns:
        braces = re.fullmatch(r"\{(.*)\}(.*)", pattern)
        each = [f"{part}{braces[2]}" for part in braces[1].split(",")] if braces else [pattern]
        yield from (str(path.relative_to(root)) for one in each for path in sorted(root.glob(one)))


def named(text: str, publisher: Publisher, old: str) -> str:
    """Return requirements and hints with the name of the distribution."""
    text = re.sub(rf"(?<=[\"'`]){old}(?=\[)", publisher.name, text)
    return re.sub(rf'(?m)^(name = "){old}(?=(?:-local)?"$)', rf"\g<1>{publisher.name}", text)


def page(text: str, publisher: Publisher, old: str) -> str:
    """Return a page whose commands install what is published, or else from a clone."""
    target = publisher.name if publisher.package else "."
    local = f"{publisher.name}-local" if publisher.package else ". ./local"
    options = r"(pip install(?:\s+--[\w=-]+)*\s+[\"'])"
    text = re.sub(rf"{options}(?:{old}|\.)(?=\[[\w,-]+\][\"'](?! \./local))", rf"\g<1>{target}", text)
    text = re.sub(rf"(?<=`pip install )(?:{old}-local|\. \./local)(?=`)", local, text)
    return _MARK.sub(lambda mark: f"{mark['name']} -->\n{_SENTENCES[mark['name']](publisher)}\n", text)


def _install(publisher: Publisher) -> str:
    if publisher.package:
        return (
            f'Install Shoal with `pip install "{publisher.name}[serve]"`, and the local cluster with\n'
            f"`pip install {publisher.local}`."
        )
    return 'No package index has Shoal yet. Install it from a clone with `pip install ".[serve]" ./local`.'


def _chart(publisher: Publisher) -> str:
    if publisher.images and publisher.charts:
        return (
            f"The chart is `{publisher.charts}/shoal --version {VERSION}`, with images of\n`{publisher.images}`."
            " Pages name the same chart in a clone, `charts/shoal`."
        )
    return (
        "No registry has Shoal's chart and images yet. Use `charts/shoal` of a clone, [build and push the\n"
        "images](images.md), and set `images.registry`. Without it, the chart refuses to install."
    )


_SENTENCES: dict[str, Callable[[Publisher], str]] = {"install": _install, "chart": _chart}
