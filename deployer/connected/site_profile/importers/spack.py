"""Facts from Spack's packages.yaml or spack.yaml: the packages that the site provides, above all its MPIs."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from deployer.connected.site_profile.importers.cpu_names import architecture
from deployer.connected.site_profile.importers.draft import Draft, FileLine
from deployer.connected.site_profile.importers.values import LocatedValue
from deployer.contract.errors import UsageError
from deployer.contract.runtime_table import NAMED
from deployer.contract.text import counted

#: Spack's packages that are an MPI, with the family in a profile.
_FAMILIES = {
    "cray-mpich": "cray",
    "cray-mvapich2": "mvapich",
    "hpcx-mpi": "openmpi",
    "intel-mpi": "intel",
    "intel-oneapi-mpi": "intel",
    "mpich": "mpich",
    "mvapich": "mvapich",
    "mvapich-plus": "mvapich",
    "mvapich2": "mvapich",
    "mvapich2-gdr": "mvapich",
    "openmpi": "openmpi",
}
#: MPIs that a profile has no word for.
_OTHER_MPIS = ("spectrum-mpi", "fujitsu-mpi", "nec-mpi", "mpt", "msmpi", "parastation-mpi", "cray-mpich-abi")
#: Batch systems by Spack's package.
_BATCH = {"slurm": "slurm", "openpbs": "pbs", "lsf": "lsf", "pbs": "pbs", "torque": "pbs"}
_SPEC = re.compile(r"\s*(?P<name>[A-Za-z0-9_][\w.-]*)?(?:@=?(?P<version>[\w.:,-]*\w))?(?P<rest>.*)", re.DOTALL)
_COMPILER = re.compile(r"%\s*([A-Za-z0-9_-]+)(?:@=?[:]?([\w.-]+))?")
_ARCH = re.compile(r"(?:arch=\w+-\w+-|target=)([\w]+)")
_NAME = re.compile(r"[^A-Za-z0-9._-]+")


class _External(NamedTuple):
    """A package that the site provides.

    Attributes:
        version: empty if unknown.
        prefix: None if the file has none.
    """

    name: str
    version: str
    rest: str
    prefix: LocatedValue | None
    modules: list[str]
    at: LocatedValue


def is_configuration(content: LocatedValue) -> bool:
    """Return whether a YAML file is Spack's."""
    return _packages(content) is not None


def load(draft: Draft, content: LocatedValue, file: str) -> None:
    """Write the facts of a configuration to a draft. Raises UsageError if it has no packages."""
    packages = _packages(content)
    if packages is None:
        raise UsageError(f"{file} has no `packages` of Spack")
    others = 0
    known: set[str] = set()
    for name, package in packages.items():
        found = list(_externals(name.rstrip(":"), package))
        for external in found:
            if external.name in _FAMILIES or external.name in _OTHER_MPIS:
                _mpi(draft, external, file, known)
            elif not _other(draft, external, file):
                others += 1
        if name.rstrip(":") == "all":
            _targets(draft, package, file)
    if others:
        draft.note("packages that jobs do not take from the site", counted(others, "package"), FileLine(file))


def _packages(content: LocatedValue) -> LocatedValue | None:
    for holder in (content, content.get("spack"), content.get("spack:")):
        if holder is not None and (found := holder.get("packages") or holder.get("packages:")):
            return found if isinstance(found.value, dict) else None
    return None


def _externals(name: str, package: LocatedValue) -> Iterator[_External]:
    """Yield a package's externals; ``paths`` and ``modules`` are how Spack 0.15 and older write them."""
    found = package.get("externals")
    for each in found.each() if found else []:
        spec, modules = each.get("spec"), each.get("modules")
        parsed = _SPEC.fullmatch((spec.text() if spec else None) or "")
        if parsed is not None:
            yield _External(
                parsed["name"] or name,
                parsed["version"] or "",
                parsed["rest"],
                each.get("prefix"),
                modules.texts() if modules else [],
                spec or each,
            )
    for key in ("paths", "modules"):
        old = package.get(key)
        for spec_text, value in old.items() if old else ():
            parsed = _SPEC.fullmatch(spec_text)
            if parsed is not None:
                prefix = value if key == "paths" else None
                names = value.texts() if key == "modules" else []
                yield _External(parsed["name"] or name, parsed["version"] or "", parsed["rest"], prefix, names, value)


def _mpi(draft: Draft, external: _External, file: str, known: set[str]) -> None:
    """Write the facts of an MPI.

    An MPI of another file that has the same name and folder is the same one; in the same file, as for two compilers, it
    must also have the same modules.
    """
    origin = FileLine(file, external.at.line)
    family = _FAMILIES.get(external.name)
    title = f"{external.name}@{external.version}{external.rest}".rstrip("@")
    prefix = external.prefix.text() if external.prefix else None
    if family is None:
        draft.note("an MPI whose family a profile cannot name", title, origin)
        return
    if not prefix:
        where = external.prefix.computed() if external.prefix else ", ".join(external.modules)
        draft.note("an MPI whose folder is not known", f"{title}: {where}", origin)
        return
    prefix = prefix.rstrip("/") or "/"
    module = external.modules[0] if len(external.modules) == 1 else external.modules or None

    def taken(name: str) -> bool:
        if name in known and draft.get("mpi", name, "module") != module:
            return True
        return draft.get("mpi", name, "prefix") not in (None, prefix)

    version = external.version if re.fullmatch(r"\d[\w.]*", external.version) else ""
    compiler = _COMPILER.search(external.rest)
    words = [external.name, version]
    name = "-".join(filter(None, words))
    if taken(_NAME.sub("-", name)) and compiler:
        name = "-".join(filter(None, [name, compiler.group(1), compiler.group(2)]))
    number, base = 2, _NAME.sub("-", name)
    name = base
    while taken(name):
        name, number = f"{base}-{number}", number + 1
    known.add(name)
    place = ("mpi", name)
    draft.set((*place, "family"), family, origin)
    if version:
        draft.set((*place, "version"), version, origin)
    draft.set((*place, "prefix"), prefix, FileLine(file, external.prefix.line if external.prefix else 0))
    if module:
        draft.set((*place, "module"), module, origin)
    if external.name == "intel-oneapi-mpi":
        draft.note("Spack names the folder of oneAPI, not of its MPI", prefix, origin)
    if external.rest.strip():
        draft.note("how an MPI was built", title, origin)
    _architecture(draft, external.rest, origin)


def _other(draft: Draft, external: _External, file: str) -> bool:
    """Write the facts of a package that is not an MPI. Return whether there are any."""
    origin = FileLine(file, external.at.line)
    prefix = external.prefix.text() if external.prefix else None
    if external.name in _BATCH:
        draft.set(("scheduler", "kind"), _BATCH[external.name], origin)
        if re.fullmatch(r"\d+[.-]\d[\w.-]*", external.version):
            draft.set(("scheduler", "version"), external.version.replace("-", "."), origin)
    elif external.name in NAMED or external.name == "singularityce":
        name = "singularity" if external.name == "singularityce" else external.name
        if external.version[:1].isdigit():
            draft.set(("runtimes", name, "version"), external.version, origin)
        if external.modules:
            names = external.modules
            draft.set(("runtimes", name, "module"), names if len(names) > 1 else names[0], origin)
        elif prefix not in ("/usr", "/usr/local", None):
            draft.note("a runtime that is not in PATH", f"{name}: {prefix}", origin)
    elif external.name == "glibc" and re.fullmatch(r"2\.\d+", external.version):
        draft.set(("glibc",), external.version, origin)
    elif external.name == "libfabric":
        _fabric(draft, external, origin)
    else:
        return False
    return True


def _fabric(draft: Draft, external: _External, origin: FileLine) -> None:
    found = re.search(r"fabrics=([\w,-]+)", external.rest)
    names = found.group(1).split(",") if found else []
    if names:
        draft.add(("fabric", "providers"), names, origin)
    if "cxi" in names:
        draft.set(("fabric", "kind"), "slingshot", origin)
    where = external.prefix.text() if external.prefix else None
    draft.note("a libfabric of the site", f"{external.version} {where or ''}".strip(), origin)


def _targets(draft: Draft, package: LocatedValue, file: str) -> None:
    target = package.get("target")
    names = target.texts() if target else []
    found = {architecture(name) for name in names}
    if target is not None and len(found) == 1 and None not in found:
        draft.set(("architecture",), found.pop(), FileLine(file, target.line))
    elif target is not None and names:
        draft.note("a name of processors", ", ".join(names), FileLine(file, target.line))


def _architecture(draft: Draft, rest: str, origin: FileLine) -> None:
    found = _ARCH.search(rest)
    if found and (name := architecture(found.group(1))):
        draft.set(("architecture",), name, origin)
