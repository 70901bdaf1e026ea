"""Packages that change how Python finds modules, and the known packages whose hooks add no modules."""

import re

#: Code that adds a hook to ``sys.meta_path`` or ``sys.path_hooks``, also under an alias.
_ADDS = re.compile(
    rb"\w*sys\s*\.\s*(?:meta_path|path_hooks)\s*(?:\.\s*(?:insert|append|extend)\b|\[[^\]\n]*\]\s*=(?!=)|\+?=(?!=))"
    rb"|=\s*\w*sys\s*\.\s*(?:meta_path|path_hooks)\s*(?:#|$)|\bfrom\s+sys\s+import\s[^\n]*\b(?:meta_path|path_hooks)\b",
    re.MULTILINE,
)
#: Files that packages vendor, and files that no running program loads.
_COPIES = re.compile(r"(?:^|/)_?six\.py$|(?:^|/)_?importlib_metadata/|/tests?/")

#: Packages whose hooks find no modules beyond those that Python finds, or only modules with these names, according to
#: their sources.
HARMLESS = frozenset((
    # They refuse, check, rewrite or correct modules that Python's own finders find, or call functions after these.
    "IPython", "_pytest", "_virtualenv", "absl", "beartype", "jaxtyping", "mlflow", "pytest", "typeguard", "wandb",
    "wrapt",
    # They find only modules that they carry, old names of their own modules, or distutils in setuptools.
    "_distutils_hack", "mpi4py", "pip", "pkg_resources", "setuptools", "six", "transformers", "vtkmodules",
    # They add none to Python 3, find only metadata of packages, or start as a process of their own.
    "future", "importlib_metadata", "jedi",
))  # fmt: skip


def adds_hook(path: str, text: bytes) -> bool:
    """Return whether a file of a package, given its path below the folder of packages, may add its own hook."""
    named = b"meta_path" in text or b"path_hooks" in text
    return named and _ADDS.search(text) is not None and not _COPIES.search(path)
