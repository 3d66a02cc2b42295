"""Exported programs whose archive was changed so that loading or running them runs an attacker's code."""

import contextlib
import io
import json
import os
import pickle
import re
import sys
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from shoal_runtime.errors import LoadError

if TYPE_CHECKING:
    from shoal_runtime.loading import Model

MODULE = "imported_by_a_program"


class Scale(torch.nn.Module):
    offset: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))
        self.register_buffer("offset", torch.zeros(4))

    def forward(self, x: torch.Tensor, y: torch.Tensor, word: str) -> torch.Tensor:
        return (x * self.weight + y[: x.shape[0]]) * 2 + len(word) + self.offset


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("programs") / "scale.pt2"
    dynamic = {"x": {0: torch.export.Dim.AUTO}, "y": {0: torch.export.Dim.AUTO}, "word": None}
    exported = torch.export.export(Scale(), (torch.ones(2, 4), torch.ones(3, 4), "ab"), dynamic_shapes=dynamic)
    torch.export.save(exported, path)
    return path


@pytest.fixture
def exploded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path at which an attack leaves a trace, and provide a module that leaves it."""
    path = tmp_path / "exploded"
    (tmp_path / f"{MODULE}.py").write_text(f"import os; os.mkdir({str(path)!r})")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    return path


class Archive:
    """The records of a program, and its documents as data."""

    def __init__(self, path: Path) -> None:
        with zipfile.ZipFile(path) as archive:
            self.records = {name: archive.read(name) for name in archive.namelist()}
        self.root = next(iter(self.records)).split("/")[0]
        self.model = json.loads(self.records[self.name("models/model.json")])
        self.constants = json.loads(self.records[self.name("data/constants/model_constants_config.json")])
        self.module = self.model["graph_module"]
        self.graph = self.module["graph"]
        self.signature = self.module["module_call_graph"][0]["signature"]

    def name(self, record: str) -> str:
        """Return the name of a record in the archive."""
        return f"{self.root}/{record}"

    def write(self, path: Path) -> Path:
        """Write the archive with its changes."""
        self.records[self.name("models/model.json")] = json.dumps(self.model).encode()
        constants = self.name("data/constants/model_constants_config.json")
        self.records[constants] = json.dumps(self.constants).encode()
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in self.records.items():
                archive.writestr(name, content)
        return path


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def code(path: Path) -> str:
    """Return an expression that leaves a trace; without quotes, dots and spaces, to fit anywhere."""
    source = f"import os; os.path.isdir({str(path)!r}) or os.mkdir({str(path)!r})"
    return f"exec(bytes({list(source.encode())}))".replace(" ", "")


# Each attack takes an archive and the path of its trace.


def _size(archive: Archive, path: Path) -> None:
    expression = f"lambdify((), {code(path)!r})() or Integer(2)"
    archive.graph["tensor_values"]["x"]["sizes"][0] = {"as_expr": {"expr_str": expression, "hint": {"as_int": 2}}}


def _size_behind_an_attribute(archive: Archive, path: Path) -> None:
    expression = f"lambdify.__globals__['__builtins__']['exec']({code(path)!r}) or Integer(2)"
    archive.graph["tensor_values"]["y"]["sizes"][0] = {"as_expr": {"expr_str": expression}}


def _size_of_a_node(archive: Archive, path: Path) -> None:
    name = next(iter(archive.graph["sym_int_values"]))
    expression = f"Add(Integer(1), lambdify((), {code(path)!r})() or 1)"
    archive.graph["sym_int_values"][name] = {"as_expr": {"expr_str": expression}}


def _guard(archive: Archive, path: Path) -> None:
    archive.model["guards_code"] = [f"{code(path)} is None"]


def _name_of_a_constant_input(archive: Archive, path: Path) -> None:
    archive.module["signature"]["input_specs"][-1]["constant_input"]["name"] = f"word={code(path)}"


def _name_of_a_buffer(archive: Archive, path: Path) -> None:
    for each in archive.module["signature"]["input_specs"]:
        if "buffer" in each:
            each["buffer"]["buffer_name"] = hostile = f'offset", {code(path)}) or getattr(self, "offset'
            weights = archive.name("data/weights/model_weights_config.json")
            document = json.loads(archive.records[weights])
            document["config"][hostile] = document["config"].pop("offset")
            archive.records[weights] = json.dumps(document).encode()


def _constant_input(archive: Archive, path: Path) -> None:
    hostile = f"' or {code(path)} or '"
    archive.graph["inputs"][-1] = {"as_string": hostile}
    archive.module["signature"]["input_specs"][-1]["constant_input"]["value"] = {"as_string": hostile}


def _opaque_constant(archive: Archive, path: Path) -> None:
    archive.records[archive.name("data/constants/opaque_obj_0")] = pickle.dumps(Bomb(path))
    archive.constants["config"]["secret"] = {
        "path_name": "opaque_obj_0",
        "is_param": False,
        "use_pickle": True,
        "tensor_meta": None,
    }


def _sample_inputs(archive: Archive, path: Path) -> None:
    buffer = io.BytesIO()
    torch.save(((Bomb(path),), {}), buffer)
    archive.records[archive.name("data/sample_inputs/model.pt")] = buffer.getvalue()


def _old_weights(archive: Archive, path: Path) -> None:
    buffer = io.BytesIO()
    torch.save({"weight": Bomb(path)}, buffer)
    archive.records[archive.name("data/weights/model.pt")] = buffer.getvalue()


def _key_of_an_output(archive: Archive, path: Path) -> None:
    """An Enum as a key of a dict: its module is imported."""
    key = json.dumps([{"__enum__": True, "fqn": f"{MODULE}:Kind", "name": path.name}])
    leaf: Any = {"type": None, "context": None, "children_spec": []}
    archive.signature["out_spec"] = json.dumps([1, {"type": "builtins.dict", "context": key, "children_spec": [leaf]}])


def _default_of_a_dict(archive: Archive, path: Path) -> None:
    """A defaultdict's factory: its module is imported."""
    context = {"default_factory_module": MODULE, "default_factory_name": path.name, "dict_context": ["a"]}
    leaf: Any = {"type": None, "context": None, "children_spec": []}
    tree = {"type": "collections.defaultdict", "context": context, "children_spec": [leaf]}
    archive.signature["out_spec"] = json.dumps([1, tree])


REAL = [
    _size,
    _size_behind_an_attribute,
    _size_of_a_node,
    _guard,
    _name_of_a_constant_input,
    _name_of_a_buffer,
    _constant_input,
    _opaque_constant,
    _sample_inputs,
    _old_weights,
    _key_of_an_output,
    _default_of_a_dict,
]


@pytest.mark.parametrize("attack", REAL)
def test_a_program_runs_no_code_of_its_file(
    program: Path, tmp_path: Path, exploded: Path, load: Callable[..., "Model"], attack: Callable[[Archive, Path], None]
) -> None:
    archive = Archive(program)
    attack(archive, exploded)

    with pytest.raises(LoadError, match=r"evil\.pt2 holds .*SHOAL_MODEL_ALLOW_PICKLE=true"):
        load(archive.write(tmp_path / "evil.pt2"))

    assert not exploded.exists()


@pytest.mark.filterwarnings("ignore")  # raised by torch for such a file
@pytest.mark.parametrize("attack", REAL)
def test_the_same_file_runs_code_if_trusted(
    program: Path, tmp_path: Path, exploded: Path, attack: Callable[[Archive, Path], None]
) -> None:
    """Verify that the attacks are real. A failure means that torch has fixed one of them."""
    archive = Archive(program)
    attack(archive, exploded)

    with contextlib.suppress(Exception):
        module = torch.export.load(archive.write(tmp_path / "evil.pt2")).module()
        module(torch.ones(2, 4), torch.ones(3, 4), "ab")

    assert exploded.exists()


# Each change takes an archive. None is known to run code, and all are rejected.


def _name_of_an_argument(archive: Archive) -> None:
    archive.signature["forward_arg_names"] = ["x", "y", "word=exec('')"]


def _name_of_a_keyword(archive: Archive) -> None:
    protocol, tree = json.loads(archive.signature["in_spec"])
    last = tree["children_spec"][0]["children_spec"].pop()
    context = json.dumps(["word=exec('')"])
    tree["children_spec"][1] = {"type": "builtins.dict", "context": context, "children_spec": [last]}
    archive.signature["in_spec"] = json.dumps([protocol, tree])
    archive.signature["forward_arg_names"] = None


def _name_of_a_node(archive: Archive) -> None:
    archive.graph["nodes"][-1]["name"] = "x = exec('')"


def _name_of_a_value(archive: Archive) -> None:
    text = json.dumps(archive.model).replace('"mul"', json.dumps("x[exec('')]"))
    archive.model = json.loads(text)


def _path_to_a_class(archive: Archive) -> None:
    for each in archive.module["signature"]["input_specs"]:
        if "parameter" in each:
            each["parameter"]["parameter_name"] = "weight.__class__"


def _custom_object(archive: Archive) -> None:
    archive.graph["custom_obj_values"]["x"] = {"name": "x", "class_fqn": "__torch__.torch.classes.c10d.Work"}


def _torchbind_constant(archive: Archive) -> None:
    payload = {"path_name": "custom_obj_0", "is_param": False, "use_pickle": True, "tensor_meta": None}
    archive.constants["config"]["secret"] = payload


def _native_code(archive: Archive) -> None:
    archive.records[archive.name("data/aotinductor/model/model.so")] = b"\x7fELF"


def _endless_range(archive: Archive) -> None:
    archive.model["range_constraints"]["u99999999999"] = {"min_val": 0, "max_val": None}


def _dialect(archive: Archive) -> None:
    archive.model["verifiers"] = ["AOTI"]


def _hint_of_another_type(archive: Archive) -> None:
    for each in archive.graph["tensor_values"].values():
        for size in each["sizes"]:
            if "as_expr" in size:
                size["as_expr"]["hint"] = {"as_int": "__import__('os')"}


def _text_for_a_number(archive: Archive) -> None:
    archive.graph["tensor_values"]["x"]["sizes"][1] = {"as_int": "4"}


def _huge_number(archive: Archive) -> None:
    archive.graph["tensor_values"]["x"]["sizes"][1] = {"as_int": 10**100}


@pytest.mark.parametrize(
    "attack",
    [
        _name_of_an_argument,
        _name_of_a_keyword,
        _name_of_a_node,
        _name_of_a_value,
        _path_to_a_class,
        _custom_object,
        _torchbind_constant,
        _native_code,
        _endless_range,
        _dialect,
        _hint_of_another_type,
        _text_for_a_number,
        _huge_number,
    ],
)
def test_unusual_documents_are_rejected(
    program: Path, tmp_path: Path, load: Callable[..., "Model"], attack: Callable[[Archive], None]
) -> None:
    archive = Archive(program)
    attack(archive)

    with pytest.raises(LoadError, match=r"evil\.pt2 holds .*SHOAL_MODEL_ALLOW_PICKLE=true"):
        load(archive.write(tmp_path / "evil.pt2"))


@pytest.mark.parametrize(
    "operator",
    [
        "torch.os.system",
        "torch.hub.load",
        "torch.load",
        "torch.ops.load_library",
        "torch.classes.load_library",
        "torch.utils.cpp_extension.load_inline",
        "torch.ops.aten.from_file.default",
        "torch.ops.aten.save.default",
        "torch.ops.prim.rpc_sync.default",
        "torch.ops.inductor._reinterpret_tensor.default",
        "torch.ops.mkldnn.data_ptr.default",
        "torch.ops.aten._sparse_csr_tensor_unsafe.default",
        "torch.ops.aten.add.Tensor.__class__",
        "torch.ops.aten.__class__.mro",
        "torch.ops.higher_order.call_torchbind",
        "torch.ops.higher_order.inline_asm_elementwise",
        "torch.export.custom_ops._call_custom_autograd_function_in_pre_dispatch",
        "_operator.attrgetter",
        "_operator.call",
        "math.factorial",
        "#extension:op",
        "builtins.eval",
        "",
    ],
)
def test_an_operator_that_does_more_than_compute_is_rejected(
    program: Path, tmp_path: Path, load: Callable[..., "Model"], operator: str
) -> None:
    called, passed = Archive(program), Archive(program)
    called.graph["nodes"][0]["target"] = operator
    passed.graph["nodes"][-1]["inputs"][-1]["arg"] = {"as_operator": operator}

    for archive in (called, passed):
        with pytest.raises(LoadError, match=rf"holds the operator {re.escape(repr(operator))}"):
            load(archive.write(tmp_path / "evil.pt2"))


@pytest.mark.filterwarnings("ignore")  # raised by torch for such a file
def test_a_program_reads_no_files(program: Path, tmp_path: Path, load: Callable[..., "Model"]) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(np.full(4, 7, dtype=np.float32).tobytes())
    archive = Archive(program)
    node = next(node for node in archive.graph["nodes"] if node["target"] == "torch.ops.aten.mul.Tensor")
    arguments = {"filename": {"as_string": str(secret)}, "shared": {"as_bool": False}, "size": {"as_int": 4}}
    node["target"] = "torch.ops.aten.from_file.default"
    node["inputs"] = [{"name": name, "arg": arg, "kind": 1} for name, arg in arguments.items()]
    path = archive.write(tmp_path / "reader.pt2")

    with pytest.raises(LoadError, match=r"the operator 'torch\.ops\.aten\.from_file\.default'"):
        load(path)

    # The result would be the content of the file.
    answer = torch.export.load(path).module()(torch.zeros(2, 4), torch.zeros(3, 4), "ab")
    assert answer.tolist() == [[16] * 4] * 2


@pytest.mark.parametrize("number", ["1" * 5000, "Pow(Integer(9), Integer(999999999))", "9**9**9**9", "9^999999999"])
def test_a_size_that_is_too_costly_to_compute_is_rejected(
    program: Path, tmp_path: Path, load: Callable[..., "Model"], number: str
) -> None:
    archive = Archive(program)
    archive.graph["tensor_values"]["x"]["sizes"][0] = {"as_expr": {"expr_str": number}}

    with pytest.raises(LoadError, match="holds the expression '"):
        load(archive.write(tmp_path / "evil.pt2"))


def test_a_second_record_of_the_same_name_is_not_the_one_that_runs(
    program: Path, tmp_path: Path, exploded: Path, load: Callable[..., "Model"]
) -> None:
    """Zip readers differ in which of two records they use, so the check must use torch's reader."""
    archive = Archive(program)
    good = archive.records[archive.name("models/model.json")]
    _guard(archive, exploded)
    evil = json.dumps(archive.model).encode()
    for first, second in ((good, evil), (evil, good)):
        with zipfile.ZipFile(tmp_path / "twice.pt2", "w") as target, warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            for name, content in archive.records.items():
                target.writestr(name, first if name.endswith("model.json") else content)
            target.writestr(archive.name("models/model.json"), second)
            target.writestr(archive.name("MODELS/MODEL.JSON"), second)
        with contextlib.suppress(LoadError):
            load(tmp_path / "twice.pt2", allow_pickle=False)
        assert not exploded.exists()


def test_a_huge_document_is_not_read(
    program: Path, tmp_path: Path, load: Callable[..., "Model"], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal_runtime.formats.pt2_archive.MAX_RECORD_BYTES", 1000)

    with pytest.raises(LoadError, match="1000 bytes"):
        load(Archive(program).write(tmp_path / "huge.pt2"))
