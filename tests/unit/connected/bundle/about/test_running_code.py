"""Files that run code when they are loaded, made by the real programs where these are at hand."""

import io
import pickle
import zipfile

import pytest

from deployer.connected.bundle.about.running_code import HEAD, runs_code


def zipped(name: str) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr(name, b"x" * 1000)
    return stream.getvalue()


def npy(kind: str) -> bytes:
    """Return the beginning of a .npy file, as numpy 1 and 2 write it."""
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': (3,), }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + bytes(24)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("value", [{"w": 1}, [1, 2], (1,), {1, 2}, pickle.Unpickler, "a text", 2**70])
def test_a_pickle_under_any_name(value: object, protocol: int) -> None:
    content = pickle.dumps(value, protocol)
    assert runs_code("deployer/data/x/weights", content[:HEAD])
    assert runs_code("a/model.bin", content[:HEAD])
    assert not runs_code("a/model.safetensors", content[:HEAD])


@pytest.mark.parametrize(
    ("name", "content", "runs"),
    [
        ("x/model", zipped("archive/data.pkl"), True),  # torch.save
        ("x/model.pt", zipped("model/code.py"), True),
        ("x/data.zip", zipped("a/b.txt"), False),
        ("x/a.npz", zipped("a.npy"), False),
        ("x/a.npy", npy("|O"), True),
        ("x/a.npy", npy("<f8"), False),
        ("x/old.pkl", b"(dp0\n.", True),  # protocol 0 is text
        ("x/m.joblib", b"\x78\x9c", True),  # compressed
        ("x/model.bin", bytes(8), False),
        ("x/tokenizer.bin", b"", False),
        ("home/.cache/huggingface/modules/transformers_modules/m/modeling_m.py", b"import os", True),
        ("home/.cache/torch/hub/org_repo_main/hubconf.py", b"", True),
        ("app/train.py", b"import os", False),
        ("x/\udcff.bin", b"\x80\x04", True),
    ],
)
def test_a_file(name: str, content: bytes, runs: bool) -> None:
    assert runs_code(f"deployer/data/{name}", content[:HEAD]) is runs
