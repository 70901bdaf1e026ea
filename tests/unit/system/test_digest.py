import hashlib

import pytest

from deployer.system import digest


@pytest.mark.parametrize("data", [b"", b"abc", b"\0" * 1000, bytes(bytearray(range(256))) * 5000])
def test_all_ways_agree(data):
    expected = hashlib.sha256(data).hexdigest()
    assert digest.sha256(data) == expected
    library = digest.openssl()
    if library is None:
        pytest.skip("no libcrypto here")
    assert library(data) == expected


def test_without_libcrypto_there_is_hashlib(monkeypatch):
    monkeypatch.setattr(digest, "_LIBRARIES", ("libcrypto.so.0",))
    assert digest.openssl() is None
    assert digest._fastest() == digest._hashlib


def test_a_library_that_fails_or_is_wrong_is_not_used(monkeypatch):
    class Function:
        def __init__(self, answer):
            self.answer = answer

        def __call__(self, *arguments):
            return self.answer

    class Library:
        EVP_sha256 = Function(1)
        EVP_Digest = Function(1)  # "done", and wrote nothing

    monkeypatch.setattr(digest.ctypes, "CDLL", lambda name: Library())
    assert digest.openssl() is None
    Library.EVP_Digest = Function(0)  # "failed": then hashlib answers
    assert digest.openssl()(b"abc") == hashlib.sha256(b"abc").hexdigest()
