"""What files of packages import at their top, and which packages change how modules are found."""

from pathlib import Path

import pytest

from deployer.connected.bundle import pack, sources
from deployer.connected.linker import import_hooks, index
from deployer.connected.linker.package_imports import Collector
from deployer.system.trust.verify import begin, opened

INIT = b'''"""A docstring may have
import nothing
lines like these."""
import os, numpy as np, lxml.etree  # import neither
from . import (
    _first,  # not this one
    second as other,
)
from .deep.inner import *
from .. import above
if np:
    import maybe
try:
    from . import guarded
except ImportError:
    guarded = None
text = "it's #1"; import late
def f():
    import called
from __future__ import annotations
'''


def test_what_a_file_imports_at_its_top() -> None:
    found = Collector()
    found.add("/s", "pkg", "/__init__.py", lambda: INIT)
    found.add("/s", "pkg", "/deep/inner.py", lambda: b"from ..second import x\nfrom .near import y\nimport json\n")
    assert found.modules == {
        "/s/pkg/__init__.py": ["numpy", "lxml.etree", "pkg", "pkg._first", "pkg.second", "pkg.deep.inner"],
        "/s/pkg/deep/inner.py": ["pkg.second", "pkg.second.x", "pkg.deep.near", "pkg.deep.near.y"],
    }
    assert found.packages()["/s/pkg"].certain == {"numpy", "lxml"}


def test_a_package_that_takes_the_place_of_its_extension_module() -> None:
    found = Collector()
    found.add("/s", "cv2", "/__init__.py", lambda: b'def f():\n    m = importlib.import_module("cv2")\nf()\n')
    found.add("/s", "other", "/__init__.py", lambda: b'm = importlib.import_module("cv2")\n')
    assert found.modules == {"/s/cv2/__init__.py": ["cv2/cv2"]}


@pytest.mark.parametrize(
    ("text", "possible", "changes"),
    [
        (b"import numpy", {"numpy"}, set()),
        (b"from numpy import array", {"numpy"}, set()),
        (b"x = 1; import numpy, lxml.etree; from h5py import File", {"numpy", "lxml", "h5py"}, set()),
        (b"if x:\n\timport numpy # import nothing\n  from lxml import y", {"numpy", "lxml"}, set()),
        (b"reimport numpy\nx = import_numpy\nimported from nothing", set(), set()),
        (b"import_module('numpy'); __import__( \"lxml\")", {"numpy", "lxml"}, set()),
        (b"sys.path.append(x)", set(), {"path"}),
        (b"x = sys . path [0]", set(), {"path"}),
        (b"site.addsitedir(x)", set(), {"path"}),
        (b"_sys.path.append(x)\nmy_addsitedir(x)\naddsitedirs(x)\nsys.path == []", set(), set()),
    ],
)
def test_what_a_file_may_import(text: bytes, possible: set[str], changes: set[str]) -> None:
    found = Collector()
    found.add("/s", "pkg", "/a.py", lambda: text)
    assert found.packages()["/s/pkg"] == (frozenset(), possible, changes)


@pytest.mark.parametrize(
    ("path", "text", "adds"),
    [
        ("a/x.py", b"sys.meta_path.insert(0, F())", True),
        ("a/x.py", b"_sys.path_hooks[:0] = [f]", True),
        ("a/x.py", b"sys.meta_path += [F]", True),
        ("a/x.py", b"from sys import meta_path as m\nm.append(F)", True),
        ("a/x.py", b"finders = sys.meta_path\nfinders.append(F)", True),
        ("a/x.py", b"for finder in sys.meta_path: pass", False),
        ("a/x.py", b"if sys.meta_path == []: pass", False),
        ("a/x.py", b"meta_path = folder / 'meta.json'", False),
        ("a/_vendor/six.py", b"sys.meta_path.append(_importer)", False),
        ("a/tests/x.py", b"sys.meta_path.insert(0, F())", False),
    ],
)
def test_what_adds_a_hook(path: str, text: bytes, adds: bool) -> None:
    assert import_hooks.adds_hook(path, text) == adds


def test_the_index_keeps_what_files_import(tmp_path: Path) -> None:
    package = tmp_path / "root/usr/lib/python3/dist-packages/pkg"
    package.mkdir(parents=True)
    (package / "__init__.py").write_bytes(INIT)
    bundle = str(pack.pack(sources.from_folder(tmp_path / "root", "x", "1"), [], tmp_path / "b.tar").path)
    for _ in range(2):  # the second time from the cache
        with opened(bundle) as stream:
            found = index.of_image(begin(stream, bundle), tmp_path / "cache")
        assert found.imports["/usr/lib/python3/dist-packages/pkg/__init__.py"][:2] == ["numpy", "lxml.etree"]
