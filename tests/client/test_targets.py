import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from shoal.serving.errors import FieldError
from shoal.targets import check_is_here, default_name, files_beside, find_target, named_target

MANIFEST = """\
apiVersion: serving.shoal.dev/v1alpha1
kind: InferenceService
metadata: {name: cat}
spec:
  model: {uri: "URI"}
"""


def write(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


@pytest.mark.parametrize("uri", ["model", "./model", "file://model", "file://./model"])
def test_a_manifests_relative_uri_is_counted_from_its_folder(tmp_path: Path, uri: str) -> None:
    file = write(tmp_path / "cat" / "cat.yaml", MANIFEST.replace("URI", uri))

    fields = find_target(str(file)).fields

    assert fields == {"metadata.name": "cat", "model.uri": str(tmp_path / "cat" / "model")}


@pytest.mark.parametrize("uri", ["/models/cat", "file:///models/cat", "https://host/cat.pt2", "models:/m/3"])
def test_a_uri_that_is_absolute_stays(tmp_path: Path, uri: str) -> None:
    file = write(tmp_path / "cat.yml", MANIFEST.replace("URI", uri))

    assert find_target(str(file)).fields["model.uri"] == uri


def test_a_directory_with_one_manifest_is_that_manifest(tmp_path: Path) -> None:
    write(tmp_path / "cat.yaml", MANIFEST.replace("URI", "model"))
    write(tmp_path / "other.yaml", "kind: ConfigMap\n")
    write(tmp_path / "broken.yaml", "{{{")

    assert find_target(str(tmp_path)).fields["metadata.name"] == "cat"


def test_a_directory_without_a_manifest_is_a_model(tmp_path: Path) -> None:
    write(tmp_path / "config.yaml", "kind: tokenizer\n")
    (tmp_path / "folder.yaml").mkdir()

    assert find_target(str(tmp_path)).fields == {"model.uri": str(tmp_path)}


@pytest.mark.parametrize(
    "name",
    [
        "model.pt2",
        "m.pt",
        "m.pth",
        "m.ts",
        "m.torchscript",
        "model.safetensors",
        "handler.py",
        "cat.zip",
        "cat.tar.gz",
        "cat.TGZ",
        "cat.tar",
    ],
)
def test_a_model_file_is_its_model(tmp_path: Path, name: str) -> None:
    file = write(tmp_path / name, "")

    assert find_target(str(file)).fields == {"model.uri": str(file)}
    assert find_target(file.as_uri()).fields == {"model.uri": str(file)}


@pytest.mark.parametrize(
    "url", ["https://host/m.pt2", "http://host:8000/a/m.zip?sig=1", "s3://bucket/m", "models:/m/3"]
)
def test_a_url_is_served_as_it_is(url: str) -> None:
    assert find_target(url).fields == {"model.uri": url}


def test_a_scheme_may_be_typed_in_capitals() -> None:
    assert find_target("HTTPS://host/download").fields == {"model.uri": "https://host/download"}


def test_a_file_url_may_hold_escapes_and_lead_to_a_manifest(tmp_path: Path) -> None:
    file = write(tmp_path / "my models" / "cat.yaml", MANIFEST.replace("URI", "model"))

    assert find_target(file.as_uri()).fields["metadata.name"] == "cat"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ftp://host/m.pt2", "ftp://host/m.pt2 must begin with one of file://"),
        ("s3:///m.pt2", "s3://BUCKET/PATH"),
        ("oci://registry/cat:v1", "oci://registry/cat:v1 can be mounted in a cluster only"),
        ("pvc://claim/cat", "pvc://claim/cat can be mounted in a cluster only"),
        ("hf://team/encoder?token=s3cret", "hf://team/encoder must not hold credentials or a query"),
        ("https:///m.pt2", "host"),
        ("http://[zz]/m.pt2", "host"),
        ("https://[::1", "host"),
        ("https://host/cat.yaml", "is a manifest"),
        ("file://elsewhere/etc", "file://elsewhere/etc names a file of another machine: write file:///PATH"),
        ("file:///no/such/m.pt2", "there is no file or directory /no/such/m.pt2"),
    ],
)
def test_a_url_that_cannot_be_served_says_why(url: str, message: str) -> None:
    with pytest.raises(FieldError, match=message):
        find_target(url)


@pytest.mark.parametrize(
    ("files", "target", "message"),
    [
        pytest.param({}, "nothing", "there is no file or directory", id="nothing there"),
        pytest.param({"a.md": ""}, "a.md", "neither a directory nor a file of", id="a text file"),
        pytest.param({"a.h5": ""}, "a.h5", r"a.h5 is .*NAME.keras", id="a foreign format"),
        pytest.param({"a.yaml": "kind: ConfigMap"}, "a.yaml", "has no document of kind", id="other"),
        pytest.param({"a.yaml": "{{{"}, "a.yaml", "it is not valid YAML", id="broken YAML"),
        pytest.param({"a.yaml": "\x00"}, "a.yaml", "it is not valid YAML", id="no text"),
        pytest.param(
            {"a.yaml": MANIFEST, "b.yml": MANIFEST},
            ".",
            "several manifests.*a.yaml, b.yml",
            id="two",
        ),
        pytest.param(
            {"a.yaml": MANIFEST.replace('{uri: "URI"}', "{}")},
            ".",
            "model.uri is required",
            id="no uri",
        ),
        pytest.param(
            {"a.yaml": MANIFEST.replace("uri", "url")}, ".", r"a.yaml: .*spec.model.url; did you mean uri\?", id="url"
        ),
    ],
)
def test_a_target_that_cannot_be_served_says_what_could(
    tmp_path: Path, files: dict[str, str], target: str, message: str
) -> None:
    for name, text in files.items():
        write(tmp_path / name, text)

    with pytest.raises(FieldError, match=message):
        find_target(str(tmp_path / target))


def test_a_file_may_be_called_anything_where_its_format_is_said(tmp_path: Path) -> None:
    file = write(tmp_path / "xr.model", "{}")

    assert find_target(str(file), named=True).fields == {"model.uri": str(file)}
    with pytest.raises(FieldError, match=r"--set model\.format=FORMAT"):
        find_target(str(file))


def test_a_model_that_is_to_be_trained_first_is_told_with_what_trains_it(tmp_path: Path) -> None:
    write(tmp_path / "keras.yaml", MANIFEST.replace("URI", "file:///models/keras"))
    train = write(tmp_path / "train.py", "")

    with pytest.raises(FieldError, match=f"there is no model at .*model yet.*python {train}"):
        check_is_here(find_target(str(tmp_path)).fields["model.uri"])


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("/models/cat", "cat"),
        ("file:///models/cat/", "cat"),
        ("/models/resnet50.pt2", "resnet50"),
        ("/models/cat/model.pt2", "cat"),
        ("/models/cat/handler.py", "cat"),
        ("https://host/models/dog.pt?version=2", "dog"),
        ("https://host/download/cat.zip?sig=a/b", "cat"),
        ("https://host/models/dog/model.zip", "dog"),
        ("/models/cat.tar.gz", "cat"),
        ("s3://bucket/models/cat/", "cat"),
        ("gs://bucket/models/cat/model.pt2", "cat"),
        ("az://box", "box"),
        ("hf://team/encoder@v1", "encoder"),
        ("hf://team/encoder@v1/sub/model.safetensors", "sub"),
        ("models:/my iris/3", "my-iris"),
        ("models:/iris@champion", "iris"),
        ("runs:/12ab/model", "model"),
        ("file:///models/my%20cat.tgz", "my-cat"),
        ("/models/my cat (new)", "my-cat-new"),
        ("/", "model"),
    ],
)
def test_a_model_without_a_name_gets_its_paths(uri: str, name: str) -> None:
    assert default_name(uri) == name


def test_a_model_may_name_itself(tmp_path: Path) -> None:
    write(tmp_path / "cat" / "model.toml", 'name = "tiger"\n')
    write(tmp_path / "dog" / "model.toml", "name = [")

    assert default_name(str(tmp_path / "cat")) == "tiger"
    assert default_name(str(tmp_path / "dog")) == "dog"


def test_without_yaml_a_manifest_says_what_to_install(tmp_path: Path) -> None:
    file = write(tmp_path / "cat.yaml", MANIFEST)
    script = (
        "import sys; sys.modules['yaml'] = None\n"
        "from shoal.__main__ import main\n"
        f"sys.exit(main(['serve', {str(file)!r}]))"
    )

    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert ended.returncode == 1
    assert 'pip install "shoal[serve]"' in ended.stderr


def test_what_lies_beside_a_model_is_called_as_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "cat" / "cat.yaml", "")
    write(tmp_path / "cat" / "picture.jpg", "")
    monkeypatch.chdir(tmp_path)

    for target in ("cat", "./cat", "cat/cat.yaml"):
        assert files_beside(target) == ("cat/cat.yaml", "cat/picture.jpg")
    assert files_beside("https://models.example.com/cat.zip") == ()


def test_a_pods_model_is_found_beside_its_manifest(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    file = tmp_path / "cat.yaml"
    file.write_text(MANIFEST.replace("URI", "file:///models/cat-of-this-test"))
    assert find_target(str(file)).fields["model.uri"] == str(tmp_path / "model")


BOMB = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{level}: &a{level} [{','.join([f'*a{level - 1}'] * 10)}]\n" for level in range(1, 10)
)
MERGES = "m0: &m0 {a: 1}\n" + "".join(
    f"m{level}: &m{level} {{<<: [{','.join([f'*m{level - 1}'] * 10)}]}}\n" for level in range(1, 10)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("[" * 100_000, "nested deeper than 100 levels", id="deep"),
        pytest.param("{a: " * 150 + "1" + "}" * 150, "nested deeper than 100 levels", id="less deep"),
        pytest.param(BOMB, "expands to more than 100000 values", id="aliases"),
        pytest.param(MERGES, "expands to more than 100000 values", id="merges"),
        pytest.param("a: &a {b: *a}", "an alias contains itself", id="an alias of itself"),
        pytest.param(f"n: {'9' * 5000}", "it is not valid YAML: Exceeds the limit", id="a long number"),
        pytest.param("n: 2026-13-45", "it is not valid YAML: month must be", id="no date"),
        pytest.param('uri: "\\ud800"', "surrogate", id="half a character"),
        pytest.param("x: y\n" * 300_000, "larger than 1 MiB", id="a long file"),
    ],
)
def test_a_manifest_is_read_within_bounds(tmp_path: Path, text: str, message: str) -> None:
    file = write(tmp_path / "cat.yaml", text)

    with pytest.raises(FieldError, match=message) as refused:
        find_target(str(file))

    assert "\n" not in str(refused.value)


def test_a_manifest_is_a_regular_file(tmp_path: Path) -> None:
    """The pipe has no writer, and /dev/zero has no end."""
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "zeros.yaml").symlink_to("/dev/zero")

    for name in ("pipe.yaml", "zeros.yaml"):
        with pytest.raises(FieldError, match="not a regular file"):
            find_target(str(tmp_path / name))
    assert find_target(str(tmp_path)).fields == {"model.uri": str(tmp_path)}


@pytest.mark.parametrize(
    "text", ['name = "x" #' + "x" * 2**20, f"n = {'9' * 5000}", "n = " + "[" * 5000, 'name = "a\\u0000b"']
)
def test_a_model_toml_that_the_runtime_will_refuse_names_no_model(tmp_path: Path, text: str) -> None:
    write(tmp_path / "cat" / "model.toml", text)

    assert default_name(str(tmp_path / "cat")) == "cat"


@pytest.mark.parametrize("kind", ["zeros", "pipe"])
def test_a_model_toml_is_a_regular_file(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "model.toml"
    if kind == "pipe":
        os.mkfifo(file)
    else:
        file.symlink_to("/dev/zero")

    assert default_name(str(tmp_path)) == tmp_path.name.strip("_-")


def test_a_name_that_no_path_can_have_is_refused_with_the_file(tmp_path: Path) -> None:
    (tmp_path / "model.toml").write_text('name = "../../x"')

    with pytest.raises(FieldError, match=r"model\.toml: name must be letters, digits, .* not '\.\./\.\./x'"):
        default_name(str(tmp_path))


def test_a_name_before_a_target_is_the_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a=b").mkdir()

    assert named_target("cat=./cat") == ("cat", "./cat")
    assert named_target("./cat") == (None, "./cat")
    assert named_target("https://h/m.mar?x=1") == (None, "https://h/m.mar?x=1")
    assert named_target("a=b") == (None, "a=b")
    with pytest.raises(FieldError, match="not 'my cat'"):
        named_target("my cat=./cat")


@pytest.mark.parametrize(
    ("manifest", "version"),
    [
        (json.dumps({"model": {"modelVersion": "1.0"}}), {"model.version": "1.0"}),
        (json.dumps({"model": {"modelVersion": "one two"}}), {}),
        (json.dumps({"model": {"modelVersion": 1}}), {}),
        ("[]", {}),
        ("{", {}),
        (None, {}),
    ],
)
def test_a_torchserve_archive_tells_its_version(tmp_path: Path, manifest: str | None, version: dict[str, str]) -> None:
    path, folder = tmp_path / "m.mar", tmp_path / "m" / "MAR-INF"
    folder.mkdir(parents=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("handler.py", "")
        if manifest is not None:
            archive.writestr("MAR-INF/MANIFEST.json", manifest)
            (folder / "MANIFEST.json").write_text(manifest)

    assert find_target(str(path)).fields == {"model.uri": str(path), **version}
    assert find_target(str(folder.parent)).fields == {"model.uri": str(folder.parent), **version}


def test_an_archive_that_is_none_is_the_runtimes_to_refuse(tmp_path: Path) -> None:
    path = write(tmp_path / "m.mar", "no zip")

    assert find_target(str(path)).fields == {"model.uri": str(path)}
