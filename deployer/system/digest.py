"""SHA-256 at the full speed of the machine.

A Python built without OpenSSL hashes with portable C, at half the speed. The machine has the library nevertheless,
because ssh needs it. Source: EVP_Digest(3), unchanged since OpenSSL 0.9.7.
"""

import ctypes
import hashlib
from typing import Callable, Optional

#: The names of OpenSSL 3, 1.1, and 1.0 (Red Hat's name and others').
_LIBRARIES = ("libcrypto.so.3", "libcrypto.so.1.1", "libcrypto.so.10", "libcrypto.so.1.0.0")

DigestFunction = Callable[[bytes], str]


def _hashlib(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def openssl() -> Optional[DigestFunction]:
    """Return libcrypto's SHA-256 of bytes, in hexadecimal; None if it is missing or gives a wrong result."""
    for name in _LIBRARIES:
        try:
            library = ctypes.CDLL(name)
            algorithm, digest = library.EVP_sha256, library.EVP_Digest
        except (OSError, AttributeError):
            continue
        algorithm.restype = ctypes.c_void_p
        digest.restype = ctypes.c_int
        pointer = ctypes.c_void_p
        digest.argtypes = [ctypes.c_char_p, ctypes.c_size_t, pointer, pointer, pointer, pointer]
        kind = algorithm()

        def sha256(data: bytes) -> str:
            result = ctypes.create_string_buffer(32)
            if digest(data, len(data), result, None, kind, None) != 1:  # noqa: B023  returned at once
                return _hashlib(data)
            return result.raw.hex()

        if sha256(b"deployer") == _hashlib(b"deployer"):
            return sha256
    return None


def _fastest() -> DigestFunction:
    if hashlib.sha256.__name__.startswith("openssl"):
        return _hashlib
    return openssl() or _hashlib


#: Returns the SHA-256 of bytes, in hexadecimal.
sha256 = _fastest()
