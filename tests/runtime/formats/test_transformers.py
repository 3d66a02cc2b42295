import json
import random
import threading
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from shoal_runtime.codecs.metadata import model_metadata
from shoal_runtime.errors import LoadError
from shoal_runtime.execution.torch_placement import CpuPlacement
from shoal_runtime.formats.transformers import TASKS
from shoal_runtime.readiness import Readiness
from shoal_runtime.startup.starting import warm
from tests.runtime.fakes import Bench, texts
from tests.runtime.formats import tiny

if TYPE_CHECKING:
    from shoal_runtime.loading import Model

SIZES = (1, 2, 7, 64)
TOLERANCE = 2e-5
"""Sums of floating-point numbers depend on the length and number of rows."""

Load = Callable[..., "Model"]


def ask(model: "Model", items: Sequence[Any], sizes: Sequence[int] = SIZES) -> list[list[Any]]:
    """Return for each batch size the results of the first items, one output per row."""
    with Bench.around(model) as bench:
        return [answers(bench, items[:size]) for size in sizes]


def answers(bench: Bench, items: Sequence[Any]) -> list[Any]:
    specs = bench.signature.inputs
    rows = [item if isinstance(item, tuple) else (item,) for item in items]
    columns = [
        [each.encode() if isinstance(each, str) else each for each in column] for column in zip(*rows, strict=True)
    ]
    result = bench.run({spec.name: texts(*column) for spec, column in zip(specs, columns, strict=True)})
    assert result.errors == []
    [output] = result.outputs.values()
    return [json.loads(each) for each in output] if output.dtype == object else list(output)


def alike(got: Any, expected: Any) -> None:
    """Compare nested results, with numbers within the tolerance."""
    if isinstance(expected, dict):
        assert got.keys() == expected.keys()
        for key, value in expected.items():
            alike(got[key], value)
    elif isinstance(expected, list | tuple):
        assert len(got) == len(expected)
        for one, other in zip(got, expected, strict=True):
            alike(one, other)
    elif isinstance(expected, float | np.floating):
        assert got == pytest.approx(float(expected), abs=TOLERANCE)
    else:
        assert got == expected


def pipeline(task: str, directory: Path, **options: Any) -> Any:
    made: Any = transformers.pipeline
    return made(task, model=str(directory), device="cpu", **options)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.encoder("ForSequenceClassification", tmp_path_factory.mktemp("models") / "reviews")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.encoder("Model", tmp_path_factory.mktemp("models") / "plain")


@pytest.mark.parametrize("kind", ["Bert", "Roberta"])
def test_texts_are_classified_as_by_the_pipeline_at_every_batch_size(tmp_path: Path, load: Load, kind: str) -> None:
    folder = tiny.encoder("ForSequenceClassification", tmp_path / "m", kind=kind)
    original = pipeline("text-classification", folder)
    expected = [original(text, truncation=True)[0] for text in tiny.TEXTS]

    model = load(folder, max_batch_size=64)

    assert (model.name, model.platform) == ("m", "transformers_text_classification")
    assert np.std([each["score"] for each in expected]) > 0.01
    for size, got in zip(SIZES, ask(model, tiny.TEXTS), strict=True):
        alike(got, expected[:size])


@pytest.mark.parametrize("problem", ["multi_label_classification", "regression"])
def test_scores_depend_on_the_type_of_problem(tmp_path: Path, load: Load, problem: str) -> None:
    folder = tiny.encoder("ForSequenceClassification", tmp_path / "m", problem_type=problem)
    (folder / "model.toml").write_text("[parameters]\ntop_k = 3\n")
    expected = pipeline("text-classification", folder, top_k=3)(tiny.TEXTS[:2])

    alike(ask(load(folder), tiny.TEXTS, [2])[0], expected)


@pytest.mark.parametrize("strategy", ["none", "simple", "first"])
def test_tokens_are_classified_as_by_the_pipeline_at_every_batch_size(
    tmp_path: Path, load: Load, strategy: str
) -> None:
    folder = tiny.encoder("ForTokenClassification", tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    tiny.write(folder / "config.json", {**config, "id2label": {"0": "O", "1": "B-LOC", "2": "I-LOC"}})
    (folder / "model.toml").write_text(f'[parameters]\naggregation_strategy = "{strategy}"\n')
    original = pipeline("token-classification", folder, aggregation_strategy=strategy)
    expected = [original(text) if text else [] for text in tiny.TEXTS]

    for size, got in zip(SIZES, ask(load(folder, max_batch_size=64), tiny.TEXTS), strict=True):
        alike(got, expected[:size])
    assert any(expected)


def test_masks_are_filled_as_by_the_pipeline_at_every_batch_size(tmp_path: Path, load: Load) -> None:
    folder = tiny.encoder("ForMaskedLM", tmp_path / "m")
    items = [
        f"{text[:60]} [MASK]" if n % 3 else f"[MASK] sits on [MASK] {text[:40]}" for n, text in enumerate(tiny.TEXTS)
    ]
    original = pipeline("fill-mask", folder)
    expected = [original(item) for item in items]

    for size, got in zip(SIZES, ask(load(folder, max_batch_size=64), items), strict=True):
        alike(got, expected[:size])


def test_the_example_request_holds_a_mask(tmp_path: Path, load: Load) -> None:
    model = load(tiny.encoder("ForMaskedLM", tmp_path / "m"))
    [text] = model_metadata("m", "1", model.platform, model.signature)["inputs"]

    assert text["parameters"]["example"] == "a small [MASK] among many"
    [[answer]] = ask(model, [text["parameters"]["example"]], sizes=(1,))
    assert len(answer) == 5


def photo(side: int, seed: int, form: str = "PNG", mode: str = "RGB") -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (side, side + 5, 3), dtype=np.uint8)
    file = BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, form)
    return file.getvalue()


def test_pictures_are_classified_as_by_the_pipeline_at_every_batch_size(tmp_path: Path, load: Load) -> None:
    folder = tiny.sees(tmp_path / "m")
    items = [photo(10 + n, n, ("PNG", "JPEG")[n % 2], ("RGB", "L")[n % 3 == 0]) for n in range(64)]
    original = pipeline("image-classification", folder)
    expected = [original(Image.open(BytesIO(item))) for item in items]

    for size, got in zip(SIZES, ask(load(folder, max_batch_size=64), items), strict=True):
        alike(got, expected[:size])


def test_a_corrupt_picture_fails_alone(tmp_path: Path, load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal_runtime.formats.encoders.MAX_PIXELS", 1000)
    good = photo(12, 1)

    with Bench.around(load(tiny.sees(tmp_path / "m"))) as bench:
        result = bench.run({"image": texts(good, good[:200], b"GIF89a", photo(50, 2), good)})

    assert [(error.row, error.status) for error in result.errors] == [(1, 400), (2, 400), (3, 400)]
    assert "(6 bytes)" in result.errors[1].message
    assert "2750 pixels" in result.errors[2].message
    assert len(result.outputs["prediction"]) == 2


POOLINGS: dict[str, tuple[dict[str, Any], bool]] = {
    "mean": ({"pooling_mode_mean_tokens": True}, True),
    "cls": ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, False),
    "max": ({"pooling_mode_mean_tokens": False, "pooling_mode_max_tokens": True}, True),
    "last": ({"pooling_mode": "lasttoken"}, False),
    "two": ({"pooling_mode": ["cls", "mean"]}, True),
}


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_texts_are_embedded_as_by_sentence_transformers_at_every_batch_size(
    tmp_path: Path, load: Load, pooling: str
) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    settings, normalize = POOLINGS[pooling]
    folder = tiny.pooled(tiny.encoder("Model", tmp_path / "m"), normalize=normalize, **settings)
    tiny.write(folder / "sentence_bert_config.json", {"max_seq_length": 20})
    expected = sentence_transformers.SentenceTransformer(str(folder), device="cpu").encode(tiny.TEXTS)

    model = load(folder, max_batch_size=64)

    assert [(s.name, s.datatype, s.shape) for s in model.signature.outputs] == [
        ("embedding", "FP32", (-1, expected.shape[1]))
    ]
    for size, got in zip(SIZES, ask(model, tiny.TEXTS), strict=True):
        np.testing.assert_allclose(got, expected[:size], atol=TOLERANCE)


def test_a_plain_encoder_embeds_as_by_sentence_transformers(plain: Path, load: Load) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    expected = sentence_transformers.SentenceTransformer(str(plain), device="cpu").encode(tiny.TEXTS[:5])

    np.testing.assert_allclose(ask(load(plain), tiny.TEXTS, [5])[0], expected, atol=TOLERANCE)


def test_the_configured_prompt_precedes_each_text(tmp_path: Path, load: Load) -> None:
    folder = tiny.pooled(tiny.encoder("Model", tmp_path / "m"), normalize=True, pooling_mode="mean")
    bare = ask(load(folder), ["who sits in paris"], [1])

    tiny.write(
        folder / "config_sentence_transformers.json", {"prompts": {"q": "who sits "}, "default_prompt_name": "q"}
    )

    np.testing.assert_allclose(ask(load(folder), ["in paris"], [1]), bare, atol=TOLERANCE)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_texts_are_lowercased_if_configured(tmp_path: Path, load: Load) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    folder = tiny.pooled(tiny.encoder("Model", tmp_path / "m"), normalize=True, pooling_mode="mean")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["normalizer"]["lowercase"] = False
    tiny.write(folder / "tokenizer.json", tokenizer)
    texts = ["WHO Sits in Paris"]
    cased = ask(load(folder), texts, [1])[0]

    tiny.write(folder / "sentence_bert_config.json", {"max_seq_length": 20, "do_lower_case": True})
    expected = sentence_transformers.SentenceTransformer(str(folder), device="cpu").encode(texts)

    np.testing.assert_allclose(ask(load(folder), texts, [1])[0], expected, atol=TOLERANCE)
    assert not np.allclose(cased, expected, atol=TOLERANCE)


def test_a_prompt_excluded_from_pooling_is_rejected(tmp_path: Path, load: Load) -> None:
    folder = tiny.pooled(
        tiny.encoder("Model", tmp_path / "m"), normalize=True, pooling_mode="mean", include_prompt=False
    )
    load(folder)
    tiny.write(folder / "config_sentence_transformers.json", {"prompts": {"q": "who "}, "default_prompt_name": "q"})

    with pytest.raises(LoadError, match="include_prompt"):
        load(folder)


PAIRS = [(tiny.TEXTS[n], tiny.TEXTS[-n - 1]) for n in range(64)]


@pytest.mark.parametrize("activation", [None, "torch.nn.modules.linear.Identity"])
def test_pairs_are_scored_as_by_a_cross_encoder_at_every_batch_size(
    tmp_path: Path, load: Load, activation: str | None
) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    extra: dict[str, Any] = {"sentence_transformers": {"activation_fn": activation}} if activation else {}
    folder = tiny.encoder("ForSequenceClassification", tmp_path / "m", labels=1, **extra)
    expected = sentence_transformers.CrossEncoder(str(folder), device="cpu").predict(PAIRS)

    model = load(folder, max_batch_size=64)

    assert [(s.name, s.datatype) for s in model.signature.inputs] == [("query", "BYTES"), ("document", "BYTES")]
    assert [(s.name, s.datatype, s.shape) for s in model.signature.outputs] == [("score", "FP32", (-1,))]
    assert expected.std() > 0.01
    for size, got in zip(SIZES, ask(model, PAIRS), strict=True):
        np.testing.assert_allclose(got, expected[:size], atol=TOLERANCE)


def test_results_do_not_depend_on_other_rows_of_the_batch(tmp_path: Path, load: Load) -> None:
    folder = tiny.encoder("ForSequenceClassification", tmp_path / "m", kind="Roberta", problem_type="regression")
    alone = {}

    with Bench.around(load(folder, max_batch_size=64)) as bench:
        for text in tiny.TEXTS[:16]:
            alone[text] = answers(bench, [text])[0]
        for seed in range(20):
            shared = random.Random(seed).sample(tiny.TEXTS[:16], 9)
            alike(answers(bench, shared), [alone[text] for text in shared])


def test_long_texts_are_truncated_or_rejected_depending_on_the_task(
    classifier: Path, tmp_path: Path, load: Load
) -> None:
    long = "cat " * 500
    with Bench.around(load(classifier)) as bench:
        assert bench.run({"text": texts(long.encode())}).errors == []
    with Bench.around(load(tiny.encoder("ForTokenClassification", tmp_path / "m"))) as bench:
        result = bench.run({"text": texts(b"cat", long.encode())})

    [error] = result.errors
    assert (error.row, error.status) == (1, 400)
    assert "502 tokens" in error.message


def test_roberta_accepts_as_many_tokens_as_it_has_positions(tmp_path: Path, load: Load) -> None:
    folder = tiny.encoder("ForTokenClassification", tmp_path / "m", kind="Roberta")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    tiny.write(folder / "tokenizer_config.json", {**config, "model_max_length": 10**30})

    with Bench.around(load(folder)) as bench:
        result = bench.run({"text": texts(b"cat " * (tiny.MAX_TOKENS - 2), b"cat " * (tiny.MAX_TOKENS - 1))})

    assert [error.row for error in result.errors] == [1]


def test_a_text_without_a_mask_fails_alone(tmp_path: Path, load: Load) -> None:
    with Bench.around(load(tiny.encoder("ForMaskedLM", tmp_path / "m"))) as bench:
        result = bench.run({"text": texts(b"the [MASK] sleeps", b"the cat sleeps")})

    assert [(error.row, error.status) for error in result.errors] == [(1, 400)]
    assert "holds no [MASK]" in result.errors[0].message


def test_preprocess_may_run_in_many_threads(classifier: Path, load: Load) -> None:
    handler: Any = load(classifier).handler
    rows = [handler.preprocess(text)["input_ids"].tolist() for text in tiny.TEXTS]
    wrong: list[str] = []

    def check() -> None:
        wrong.extend(
            t for t, row in zip(tiny.TEXTS, rows, strict=True) if handler.preprocess(t)["input_ids"].tolist() != row
        )

    threads = [threading.Thread(target=check) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("task", TASKS)
def test_warm_up_runs_every_task(tmp_path: Path, load: Load, task: str) -> None:
    head = TASKS[task].architecture
    if task == "image-classification":
        folder = tiny.sees(tmp_path / "m")
    else:
        folder = tiny.encoder(head, tmp_path / "m", labels=1 if task == "rerank" else 3)
    model = load(folder, max_batch_size=4)

    measured = warm(model, CpuPlacement(), Readiness())

    assert model.platform == f"transformers_{task.replace('-', '_')}"
    assert [rows for rows, _ in measured] == [1, 2, 4]


def change(folder: Path, **keys: Any) -> Path:
    config = json.loads((folder / "config.json").read_text())
    tiny.write(folder / "config.json", {key: value for key, value in {**config, **keys}.items() if value is not ...})
    return folder


def test_a_task_may_be_set_and_its_missing_weights_are_named(classifier: Path, plain: Path, load: Load) -> None:
    assert load(classifier, parameters={"task": "embeddings"}).platform == "transformers_embeddings"
    with pytest.raises(LoadError, match=r"classifier\.bias"):
        load(plain, parameters={"task": "text-classification"})
    with pytest.raises(LoadError, match="parameter task is 'sing'"):
        load(plain, parameters={"task": "sing"})
    with pytest.raises(LoadError, match="parameter topk"):
        load(classifier, parameters={"topk": 2})


@pytest.mark.parametrize("architecture", ["GPT2LMHeadModel", "LlamaForCausalLM", "T5ForConditionalGeneration"])
def test_a_generative_model_is_rejected(tmp_path: Path, load: Load, architecture: str) -> None:
    folder = change(tiny.encoder("Model", tmp_path / "m"), architectures=[architecture])

    with pytest.raises(LoadError, match=f"{architecture}, which generates text"):
        load(folder)


def test_code_in_the_directory_is_never_run(tmp_path: Path, load: Load) -> None:
    folder = tiny.encoder("Model", tmp_path / "m")
    mark = tmp_path / "mark"
    (folder / "own.py").write_text(f"from pathlib import Path\nPath({str(mark)!r}).touch()\n")
    change(folder, auto_map={"AutoConfig": "own.Own", "AutoModel": "own.Own"})

    load(folder)  # the library's class is used for a model type that it has
    with pytest.raises(LoadError, match="auto_map"):
        load(change(folder, model_type="own"))
    assert not mark.exists()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attn_implementation", "someone/kernel"),
        ("_attn_implementation", "someone/kernel"),
        ("fusion_config", {"a": 1}),
        ("quantization_config", {"quant_method": "torchao"}),
        ("transformers_weights", "../other.safetensors"),
        ("vision_config", {"attn_implementation": "someone/kernel"}),
    ],
)
def test_a_config_that_requires_other_code_is_rejected(tmp_path: Path, load: Load, key: str, value: Any) -> None:
    folder = change(tiny.encoder("Model", tmp_path / "m"), **{key: value})

    with pytest.raises(LoadError, match=r"config\.json holds .*SHOAL_MODEL_ALLOW_PICKLE"):
        load(folder)


def test_weights_come_from_safetensors_only(tmp_path: Path, load: Load) -> None:
    folder = tiny.encoder("Model", tmp_path / "m")
    weights = folder / "model.safetensors"
    torch.save({}, folder / "pytorch_model.bin")
    weights.unlink()

    with pytest.raises(LoadError, match=r"found: pytorch_model\.bin\).*save_pretrained"):
        load(folder)
    weights.write_bytes(b"no weights")
    with pytest.raises(LoadError, match="cannot be loaded by transformers"):
        load(folder)


def test_an_adapter_is_rejected_with_a_remedy(tmp_path: Path, load: Load) -> None:
    folder = tiny.encoder("Model", tmp_path / "m")
    tiny.write(folder / "adapter_config.json", {"base_model_name_or_path": "/etc"})

    with pytest.raises(LoadError, match="merge_and_unload"):
        load(folder)


def test_a_tokenizer_without_padding_token_is_rejected(tmp_path: Path, load: Load) -> None:
    folder = tiny.encoder("Model", tmp_path / "m")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    tiny.write(folder / "tokenizer_config.json", {**config, "pad_token": None})

    with pytest.raises(LoadError, match="pad_token"):
        load(folder)


@pytest.mark.parametrize("step", ["Dense", "WeightedLayerPooling"])
def test_an_unknown_step_is_named(tmp_path: Path, load: Load, step: str) -> None:
    folder = tiny.pooled(tiny.encoder("Model", tmp_path / "m"), normalize=False, pooling_mode="mean")
    modules = json.loads((folder / "modules.json").read_text())
    tiny.write(
        folder / "modules.json", [*modules, {"idx": 2, "path": "2", "type": f"sentence_transformers.models.{step}"}]
    )

    with pytest.raises(LoadError, match=f"step {step}"):
        load(folder)


def test_a_handler_takes_precedence_over_the_format(classifier: Path, tmp_path: Path, load: Load) -> None:
    for path in classifier.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "handler.py").write_text(
        "from shoal_runtime import TensorSpec\n"
        "class Own:\n"
        "    inputs = outputs = [TensorSpec('x', 'FP32', [-1])]\n"
        "    def forward(self, batch): return batch['x']\n"
    )

    assert load(tmp_path).platform == "shoal_handler"
