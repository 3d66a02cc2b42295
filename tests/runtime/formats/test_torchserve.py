"""Archives of the real archiver, loaded and called without a server."""

import io
import json
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from shoal_runtime.errors import ItemError, LoadError
from shoal_runtime.importing import HandlerFailed
from shoal_runtime.loading import Model
from tests.archives import WORDS, archived

Load = Callable[..., Model]

CLASSIFIER = """\
from ts.torch_handler.image_classifier import ImageClassifier


class Colours(ImageClassifier):
    topk = 2
"""
NET = """\
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = torch.nn.Parameter(torch.ones(3))

    def forward(self, x):
        return x.mean(dim=(2, 3)) * self.gain
"""
LABELS = json.dumps({"0": ["n01", "red"], "1": ["n02", "green"], "2": ["n03", "blue"]})


@pytest.fixture(autouse=True)
def _modules_of_their_own(tmp_path: Path) -> Iterator[None]:
    """Remove the modules of each archive, and the `ts` that a test imported."""
    yield
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        if file.startswith(str(tmp_path)) or "stand_in" in file:
            del sys.modules[name]


def text_of(answer: Any) -> str:
    return str(answer["body"].decode())


def asked(model: Model, *bodies: bytes, **headers: str) -> list[Any]:
    """Return the model's results for these bodies, all with the same headers."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    rows = [{"body": body, "headers": named} if named else {"body": body} for body in bodies]
    return list(model.handler.forward(rows))


def picture(colour: tuple[int, int, int], size: tuple[int, int] = (300, 280)) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, "PNG")
    return file.getvalue()


def weights() -> bytes:
    file = io.BytesIO()
    torch.save({"gain": torch.tensor([1.0, 2.0, 3.0])}, file)
    return file.getvalue()


def only(files: str | Mapping[str, str | bytes], folder: Path, handler: str = "one.py", **options: Any) -> Path:
    """Return an archive of one handler or of several files."""
    return archived(folder, "one", {handler: files} if isinstance(files, str) else files, handler, **options)


def function(body: str) -> str:
    """Return a handler of one function that does nothing when it is initialized."""
    return f"def handle(data, context):\n    if data is None:\n        return None\n    {body}\n"


def by_hand(tmp_path: Path, handler: str) -> Path:
    """Return an unpacked archive that the archiver would not create."""
    folder = tmp_path / "by-hand"
    (folder / "MAR-INF").mkdir(parents=True)
    (folder / "MAR-INF" / "MANIFEST.json").write_text(json.dumps({"model": {"modelName": "m", "handler": handler}}))
    return folder


@pytest.mark.parametrize("form", ["default", "tgz", "no-archive", "zip-store"])
def test_every_form_of_archive_is_served(form: str, tmp_path: Path, load: Load) -> None:
    model = load(archived(tmp_path, "words", WORDS, "words.py", archive_format=form))

    assert (model.name, model.platform) == ("words", "torchserve")
    assert [text_of(each) for each in asked(model, b"hello", content_type="text/plain")] == ["HELLO"]


def test_a_function_is_initialized_without_data(tmp_path: Path, load: Load) -> None:
    model = load(archived(tmp_path, "words", WORDS, "words.py"))
    asked(model, b"hello")

    assert sys.modules["words"].calls == [None, [{"body": bytearray(b"hello")}]]


def test_the_manifest_may_name_another_function(tmp_path: Path, load: Load) -> None:
    folder = by_hand(tmp_path, "one.py:answer")
    (folder / "one.py").write_text(
        "def answer(data, context):\n    return [] if data is None else ['yes'] * len(data)\n"
    )

    assert [text_of(each) for each in asked(load(folder), b"x", b"y")] == ["yes", "yes"]


def test_results_of_an_image_classifier_are_those_of_torchserve(tmp_path: Path, load: Load) -> None:
    files: dict[str, str | bytes] = {
        "classifier.py": CLASSIFIER,
        "net.py": NET,
        "weights.pth": weights(),
        "index_to_name.json": LABELS,
        "model-config.yaml": "batchSize: 4\n",
    }
    path = archived(
        tmp_path, "colours", files, "classifier.py", model_file="net.py", serialized_file="weights.pth",
        config_file="model-config.yaml",
    )  # fmt: skip
    model = load(path)
    first, second = asked(model, picture((255, 0, 0)), picture((0, 0, 255), (500, 224)), content_type="image/png")

    # 16-bit grey must not wrap around to 8 bits.
    scan = io.BytesIO()
    Image.fromarray(np.full((300, 300), 1000, np.uint16)).save(scan, "PNG")
    with pytest.raises(ValueError, match="8 bits"):
        asked(model, scan.getvalue(), content_type="image/png")

    # The result of torchvision's Resize, CenterCrop, ToTensor and Normalize for a picture of one colour.
    normal = (np.array([1.0, 0.0, 0.0]) - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225] * [1, 2, 3]
    expected = np.exp(normal) / np.exp(normal).sum()
    labels = json.loads(first["body"])
    assert list(labels) == ["red", "green"]
    np.testing.assert_allclose(list(labels.values()), expected[:2], rtol=1e-4)
    assert next(iter(json.loads(second["body"]))) == "blue"
    assert first["body"] == json.dumps(labels, indent=2).encode()
    assert first["head"] == {"status": 200, "headers": {"content-type": "application/json"}}


def test_a_default_handler_requires_no_code_in_the_archive(tmp_path: Path, load: Load) -> None:
    class Mean(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([x.mean(dim=(2, 3)), x.amin(dim=(2, 3))], 1)

    program = tmp_path / "mean.pt"
    with pytest.warns(DeprecationWarning, match="torch.jit"):
        torch.jit.save(torch.jit.trace(Mean(), torch.ones(1, 3, 224, 224)), program)  # type: ignore[no-untyped-call]
    path = archived(tmp_path, "mean", {"mean.pt": program.read_bytes()}, "image_classifier", serialized_file="mean.pt")

    [answer] = asked(load(path), picture((0, 255, 0)))
    assert len(json.loads(answer["body"])) == 5
    assert next(iter(json.loads(answer["body"]))) in ("1", "4")


@pytest.mark.parametrize(
    ("handler", "outcome", "expected"),
    [
        (
            "object_detector",
            "[{'boxes': torch.tensor([[0., 1., 2., 3.]] * 2), 'labels': torch.tensor([7, 8]),"
            " 'scores': torch.tensor([0.9, 0.2])} for _ in x]",
            [{"7": [0.0, 1.0, 2.0, 3.0], "score": pytest.approx(0.9)}],
        ),
        ("image_segmenter", "{'out': x[:, :2, :1, :1] * torch.tensor([0., 1.])[:, None, None]}", [[[0.0, 0.5]]]),
    ],
)
def test_default_handlers_return_boxes_and_segments(
    handler: str, outcome: str, expected: Any, tmp_path: Path, load: Load
) -> None:
    net = f"import torch\n\n\nclass Net(torch.nn.Module):\n    def forward(self, x):\n        return {outcome}\n"
    [answer] = asked(load(archived(tmp_path, "m", {"net.py": net}, handler, model_file="net.py")), picture((0, 0, 0)))

    found = json.loads(answer["body"])
    if handler == "image_segmenter":
        assert np.array(found).shape == (1, 1, 2)
    else:
        assert found == expected


FORM = (
    b'--B\r\nContent-Disposition: form-data; name="data"; filename="a.json"\r\nContent-Type: application/json\r\n\r\n'
    b'[1]\r\n--B\r\nContent-Disposition: form-data; name="note"\r\n\r\nhi\r\n--B--\r\n'
)


@pytest.mark.parametrize(
    ("body", "content_type", "data"),
    [
        (b'{"a": [1]}', "application/json", {"body": {"a": [1]}}),
        (b'{"a": 1}', "application/json; charset=utf-8", {"body": {"a": 1}}),
        (b"{broken", "application/json", {"body": bytearray(b"{broken")}),
        ("grüße".encode(), "text/plain", {"body": "grüße"}),
        (b"\xff", "text/plain", {"body": bytearray(b"\xff")}),
        (b"\xff\xd8", "image/jpeg", {"body": bytearray(b"\xff\xd8")}),
        (b"", "", {"body": bytearray()}),
        (FORM, "multipart/form-data; boundary=B", {"data": [1], "note": bytearray(b"hi")}),
        (b"a=1&b=%20x", "application/x-www-form-urlencoded", {"a": bytearray(b"1"), "b": bytearray(b" x")}),
    ],
)
def test_data_has_the_form_of_torchserve(body: bytes, content_type: str, data: Any, tmp_path: Path, load: Load) -> None:
    model = load(only(function("handle.seen = data; return [''] * len(data)"), tmp_path))
    asked(model, body, content_type=content_type)

    [seen] = sys.modules["one"].handle.seen
    assert seen == data
    assert [type(value) for value in seen.values()] == [type(value) for value in data.values()]


def test_a_malformed_form_fails_alone(tmp_path: Path, load: Load) -> None:
    model = load(archived(tmp_path, "words", WORDS, "words.py"))
    rows = [
        {"body": b"no form", "headers": {"content-type": "multipart/form-data; boundary=B"}},
        {"body": b"hello", "headers": {"content-type": "text/plain"}},
    ]
    broken, good = model.handler.forward(rows)

    assert isinstance(broken, ItemError)
    assert broken.status == 400
    assert text_of(good) == "HELLO"


def test_headers_are_read_and_set_by_row(tmp_path: Path, load: Load) -> None:
    body = (
        "context.set_response_header(1, 'X-Row', 'one'); context.set_response_status(201, idx=0);"
        " return [f\"{context.get_request_header(i, 'X-Who')} {context.get_request_id(i)}\" for i in range(len(data))]"
    )
    model = load(only(function(body), tmp_path))
    rows = [{"body": b"", "headers": {"x-who": who, "x-request-id": f"id-{who}"}} for who in ("ann", "bob")]
    first, second = model.handler.forward(rows)

    assert [text_of(first), text_of(second)] == ["ann id-ann", "bob id-bob"]
    assert (first["head"]["status"], second["head"]["status"]) == (201, 200)
    assert "x-row" not in first["head"]["headers"]
    assert second["head"]["headers"] == {"content-type": "text/plain; charset=utf-8", "x-row": "one"}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return [{1, 2}] + [''] * (len(data) - 1)", "not JSON serializable"),
        (
            "context.set_response_header(0, 'X-A', 'a\\r\\nSet-Cookie: b'); return [''] * len(data)",
            "'x-a'",
        ),
        ("context.set_response_status(99, idx=0); return [''] * len(data)", "99"),
    ],
)
def test_a_result_that_cannot_be_encoded_fails_alone(body: str, words: str, tmp_path: Path, load: Load) -> None:
    bad, good = asked(load(only(function(body), tmp_path)), b"", b"")

    assert isinstance(bad, ItemError)
    assert bad.status == 500
    assert words in str(bad)
    assert good["head"]["status"] == 200


def test_nan_and_infinities_become_null(tmp_path: Path, load: Load) -> None:
    model = load(only(function("return [{'a': [float('nan'), 1.5], 1: float('inf')}] * len(data)"), tmp_path))
    [answer] = asked(model, b"")

    assert answer["head"]["headers"]["content-type"] == "application/json"
    assert json.loads(answer["body"], parse_constant=pytest.fail) == {"a": [None, 1.5], "1": None}


@pytest.mark.parametrize(("answers", "words"), [("data[1:]", "returned 0"), ("{}", "not a dict")])
def test_results_must_be_a_list_of_the_requests(answers: str, words: str, tmp_path: Path, load: Load) -> None:
    model = load(only(function(f"return {answers}"), tmp_path))

    with pytest.raises((TypeError, ValueError), match=words):
        asked(model, b"x")


def test_an_error_with_a_status_applies_only_to_a_single_request(tmp_path: Path, load: Load) -> None:
    handler = "from ts.utils.util import PredictionException\n\n\n" + function(
        "raise PredictionException('no such city', 513)"
    )
    model = load(only(handler, tmp_path))
    [alone] = asked(model, b"x")

    assert (str(alone), alone.status) == ("no such city", 513)
    with pytest.raises(Exception, match="no such city"):
        asked(model, b"x", b"y")


READS = """\
from pathlib import Path


def handle(data, context):
    if data is None:
        handle.first = Path("vocab.txt").read_text()
        return None
    import helper

    return [f"{handle.first} {helper.WORD} {Path('words/of/it.txt').read_text()}"] * len(data)
"""


@pytest.mark.parametrize("form", ["default", "no-archive"])
def test_handlers_open_and_import_files_of_the_archive_by_name(
    form: str, tmp_path: Path, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The archiver puts the content of an extra directory beside the handler.
    files = {"one.py": READS, "extra/vocab.txt": "one", "helper.py": "WORD = 'two'", "extra/words/of/it.txt": "three"}
    path = only(files, tmp_path, archive_format=form)
    monkeypatch.chdir(path.parent)

    [answer] = asked(load(path.relative_to(Path.cwd())), b"x")
    assert text_of(answer) == "one two three"


@pytest.mark.parametrize("module", ["ts.service", "ts.utils.util"])
def test_an_error_with_a_status_overrides_a_status_that_was_set(module: str, tmp_path: Path, load: Load) -> None:
    raising = "context.set_response_status(418, 'teapot', 0); raise PredictionException('no such city', 422)"
    model = load(only(f"from {module} import PredictionException\n\n\n" + function(raising), tmp_path))
    [alone] = asked(model, b"x")

    assert isinstance(alone, ItemError)
    assert (str(alone), alone.status) == ("no such city", 422)


@pytest.mark.parametrize(
    ("files", "handler", "options", "words"),
    [
        ({"one.py": "import captum\n"}, "one.py", {}, r"importing one failed: .*'captum': pip install captum"),
        (
            {"one.py": "import torchvision\n", "needs.txt": "torchvision\n"},
            "one.py",
            {"requirements_file": "needs.txt"},
            r"'torchvision': pip install torchvision \(or all packages in the archive's .*needs.txt\)",
        ),
        (
            {"one.py": "from ts.handler_utils.micro_batching import MicroBatching\n"},
            "one.py",
            {},
            "pip install torchserve",
        ),
        ({"x.py": ""}, "text_classifier", {}, "torchtext"),
        ({"one.py": "class A:\n    pass\n"}, "one.py", {}, "it defines: none"),
        (
            {"one.py": "def handle(data, context):\n    raise KeyError('key')\n"},
            "one.py",
            {},
            "one.py failed to load: KeyError",
        ),
        (
            {"one.py": function("pass"), "c.yaml": "batchSize: many\n"},
            "one.py",
            {"config_file": "c.yaml"},
            "batchSize .*'many'",
        ),
        (
            {"one.py": function("pass"), "c.yaml": "[1]\n"},
            "one.py",
            {"config_file": "c.yaml"},
            "must hold keys and values",
        ),
        ({"one.py": function("pass"), "c.yaml": "{"}, "one.py", {"config_file": "c.yaml"}, "YAML"),
    ],
)
def test_invalid_archives_are_rejected_with_a_reason(
    files: dict[str, str], handler: str, options: dict[str, str], words: str, tmp_path: Path, load: Load
) -> None:
    with pytest.raises(LoadError, match=words):
        load(archived(tmp_path, "one", files, handler, **options))


def test_a_missing_handler_is_named(tmp_path: Path, load: Load) -> None:
    with pytest.raises(LoadError, match="image_magician"):
        load(by_hand(tmp_path, "image_magician"))


@pytest.mark.parametrize("text", ["{", "[]", '{"model": {}}', '{"model": {"handler": 5}}'])
def test_a_corrupt_manifest_is_named(text: str, tmp_path: Path, load: Load) -> None:
    (tmp_path / "m" / "MAR-INF").mkdir(parents=True)
    (tmp_path / "m" / "MAR-INF" / "MANIFEST.json").write_text(text)

    with pytest.raises(LoadError, match="MANIFEST"):
        load(tmp_path / "m")


def test_a_pickle_in_an_archive_must_be_allowed(tmp_path: Path, load: Load) -> None:
    file = io.BytesIO()
    torch.save(torch.nn.Linear(1, 1), file)
    handler = function("pass").replace(
        "return None", "import torch; torch.load(context.system_properties['model_dir'] + '/m.bin')"
    )
    path = only({"one.py": handler, "m.bin": file.getvalue()}, tmp_path)

    with pytest.raises(HandlerFailed, match="SHOAL_MODEL_ALLOW_PICKLE"):
        load(path)


def test_a_pickled_module_is_reported_as_a_pickle(tmp_path: Path, load: Load) -> None:
    model = io.BytesIO()
    torch.save(torch.nn.Linear(1, 1), model)
    handler = "from ts.torch_handler.base_handler import BaseHandler\n\n\nclass Own(BaseHandler):\n    pass\n"
    manifest = {"model": {"modelName": "m", "handler": "one.py", "serializedFile": "model.pt"}}
    for name, content in (
        ("one.py", handler.encode()),
        ("model.pt", model.getvalue()),
        ("MAR-INF/MANIFEST.json", json.dumps(manifest).encode()),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)

    with pytest.raises(LoadError, match=r"model\.pt is a pickle .*torch\.jit\.script"):
        load(tmp_path)


CONFIG = "minWorkers: 1\nmaxWorkers: 2\nbatchSize: 8\nmaxBatchDelay: 100\nresponseTimeout: 300\nhandler:\n  beams: 4\n"


def test_batch_size_and_timeout_of_an_archive_are_defaults(tmp_path: Path, load: Load) -> None:
    path = only({"one.py": function("pass"), "c.yaml": CONFIG}, tmp_path, config_file="c.yaml")
    model = load(path)

    assert (model.signature.max_batch_size, model.forward_timeout_s) == (8, 300)
    chosen = load(path, max_batch_size=16, forward_timeout_seconds=5.0)
    assert (chosen.signature.max_batch_size, chosen.forward_timeout_s) == (16, None)
    assert load(path, parameters={"batchSize": 3}).signature.max_batch_size == 3


def test_without_a_batch_size_batches_have_one_request(tmp_path: Path, load: Load) -> None:
    path = only(function("return [1]"), tmp_path)

    assert load(path).signature.max_batch_size == 1
    assert load(path, max_batch_size=4).signature.max_batch_size == 4


def test_settings_without_effect_are_logged(tmp_path: Path, load: Load, caplog: pytest.LogCaptureFixture) -> None:
    files = {"one.py": function("return [context.model_yaml_config['handler']]"), "c.yaml": CONFIG, "r.txt": "torch\n"}
    with caplog.at_level(logging.INFO, "shoal_runtime.formats.torchserve"):
        model = load(only(files, tmp_path, config_file="c.yaml", requirements_file="r.txt"))

    [line] = [record.getMessage() for record in caplog.records if "without_effect" in record.getMessage()]
    assert line.startswith("event=torchserve_without_effect keys=maxBatchDelay, maxWorkers, minWorkers, ")
    assert "r.txt" in line
    assert json.loads(asked(model, b"")[0]["body"]) == {"beams": 4}


TRANSFORMER = """\
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from ts.torch_handler.base_handler import BaseHandler


class Classifier(BaseHandler):
    def initialize(self, ctx):
        self.manifest = ctx.manifest
        model_dir = ctx.system_properties.get("model_dir")
        self.device = torch.device("cpu")
        self.model = AutoModelForSequenceClassification.from_pretrained(model_dir).to(self.device).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(model_dir)
        self.initialized = True

    def preprocess(self, requests):
        texts = [row.get("data") or row.get("body") for row in requests]
        texts = [text.decode("utf-8") if isinstance(text, (bytes, bytearray)) else text for text in texts]
        return self.tokenizer(texts, padding=True, return_tensors="pt").to(self.device)

    def inference(self, data):
        with torch.inference_mode():
            return self.model(**data).logits

    def postprocess(self, data):
        return [{"logits": row} for row in data.tolist()]
"""


def test_results_of_a_transformer_are_those_of_the_library(tmp_path: Path, load: Load) -> None:
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

    kept, words = tmp_path / "bert", ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "day"]
    config = BertConfig(
        vocab_size=len(words), hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    network = BertForSequenceClassification(config).eval()  # type: ignore[no-untyped-call]
    network.save_pretrained(kept)
    (kept / "vocab.txt").write_text("\n".join(words))
    tokenizer = BertTokenizer(str(kept / "vocab.txt"))
    tokenizer.save_pretrained(kept)
    files = {path.name: path.read_bytes() for path in kept.iterdir()}
    model = load(archived(tmp_path, "bert-mar", {**files, "handler.py": TRANSFORMER.encode()}, "handler.py"))

    answers = asked(model, b"good day", b"bad", content_type="text/plain")

    with torch.inference_mode():
        expected = network(**tokenizer(["good day", "bad"], padding=True, return_tensors="pt")).logits
    torch.testing.assert_close(torch.tensor([json.loads(each["body"])["logits"] for each in answers]), expected)


def test_the_installed_torchserve_package_is_used(tmp_path: Path, load: Load) -> None:
    real = tmp_path / "site" / "ts" / "torch_handler"
    real.mkdir(parents=True)
    (real.parent / "__init__.py").write_text("")
    (real / "__init__.py").write_text("")
    (real / "base_handler.py").write_text("class BaseHandler:\n    real = True\n")
    handler = (
        "from ts.torch_handler.base_handler import BaseHandler\n\n\nclass Mine(BaseHandler):\n"
        "    def initialize(self, context):\n        assert self.real\n\n"
        "    def handle(self, data, context):\n        return ['real'] * len(data)\n"
    )
    sys.path.insert(0, str(real.parents[1]))

    assert text_of(asked(load(only(handler, tmp_path)), b"")[0]) == "real"
