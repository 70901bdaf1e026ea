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
HARMLESS = {
    "IPython": "refuses to import other bindings of Qt",
    "_distutils_hack": "finds distutils in setuptools",
    "_pytest": "rewrites assertions in what Python's own finder finds",
    "_virtualenv": "corrects distutils, which Python's own finders find",
    "absl": "notes that a module is loaded again",
    "beartype": "adds checks to what Python's own finders find",
    "future": "adds none to Python 3",
    "importlib_metadata": "finds no modules, only the metadata of packages",
    "jaxtyping": "adds checks to what Python's own finders find",
    "jedi": "is started as a process of its own",
    "mlflow": "calls functions after what Python's own finders find",
    "mpi4py": "finds mpi4py.MPI for the MPI library that is there",
    "pip": "carries a copy of setuptools' and six's",
    "pkg_resources": "finds the packages that it carries, below pkg_resources.extern",
    "pytest": "rewrites assertions in what Python's own finder finds",
    "setuptools": "finds the packages that it carries, and distutils",
    "six": "finds six.moves",
    "transformers": "finds old names of its own modules",
    "typeguard": "adds checks to what Python's own finder finds",
    "vtkmodules": "finds vtkmodules.vtk*",
    "wandb": "calls functions after what Python's own finders find",
    "wrapt": "calls functions after what Python's own finders find",
}


def adds_hook(path: str, text: bytes) -> bool:
    """Return whether a file of a package, given its path below the folder of packages, may add its own hook."""
    named = b"meta_path" in text or b"path_hooks" in text
    return named and _ADDS.search(text) is not None and not _COPIES.search(path)
