"""Check the names and values of environment variables that a job or its user sets for the ranks. Pure.

Later sources override earlier ones: image, layout and launcher, job, plan, user. Variables on which the site's MPI, the
proof or deployer itself depend are never set in this way.
"""

from typing import Dict, Iterable, Mapping, Optional, Sequence

from deployer.contract.base.errors import UsageError
from deployer.contract.base.text import fault, is_name, printable

#: Bytes. The kernel limits a process's word to 128 KiB with its NUL, and a runtime's option precedes the variable.
_MOST, _MOST_IN_ALL = 128 * 1024 - 64, 1024 * 1024
_LISTS = "a script in app/ can add folders behind the others: export %s=$%s:DIR"
_OTHER = "choose another name"
#: Variables that deployer, shells or runtimes set, each with what to do instead.
_OURS = {
    "LD_LIBRARY_PATH": ("the site's MPI is found by it", _LISTS % (("LD_LIBRARY_PATH",) * 2)),
    "PATH": ("deployer adds the folders of the bundle's packages to it", _LISTS % (("PATH",) * 2)),
    "PYTHONPATH": ("deployer adds the folders of the bundle's packages to it", _LISTS % (("PYTHONPATH",) * 2)),
    "HOME": ("a job has a private home on each node", "--home DIR selects another one"),
    **dict.fromkeys(("UID", "EUID", "GID", "PPID"), ("shells set it to a number of the process", _OTHER)),
    **dict.fromkeys(("PREPEND_PATH", "APPEND_PATH"), ("Apptainer would change PATH by it", _OTHER)),
    "PYTHONNOUSERSITE": ("it keeps packages of the home out", "--user-site lets Python use them"),
}
#: Prefixes of the variables in which launchers pass ranks their numbers, and of those for the tools that start ranks.
_OF_LAUNCHERS = ("SLURM_", "SLURMD_", "PMI_", "PMI2_", "PMIX_", "OMPI_COMM_WORLD_", "HYDI_", "MPI_LOCAL")
_OF_TOOLS = ("DEPLOYER_", "PROOT_", "APPTAINER", "SINGULARITY")
#: Settings of Open MPI's components, which have the same prefix as the launcher's variables.
_SETTINGS = ("PMIX_MCA_",)


def parse(words: Sequence[str]) -> Dict[str, str]:
    """Return the variables from ``NAME=VALUE`` words; the last one of each name counts. Raises UsageError."""
    variables = {}
    for word in words:
        name, sign, value = word.partition("=")
        if not sign:
            shown = printable(word[:60])
            hint = "write --env NAME=VALUE" + (f', for your own value: --env {name}="${name}"') * is_name(name)
            raise UsageError(f"--env {shown} has no =", hint)
        variables[name] = value
    check(variables, "--env ")
    return variables


def check(environment: Mapping[str, str], of: str = "") -> Mapping[str, str]:
    """Return variables that a job can have.

    Args:
        of: written before each name in errors.

    Raises:
        UsageError: a name or value is impossible, or the variable must not be set.
    """
    for name, value in environment.items():
        problem = _problem(name, value)
        if problem:
            raise UsageError(f"{of}{printable(name[:60])}: {problem[0]}", problem[1])
    if sum(map(_size, environment.items())) > _MOST_IN_ALL:
        raise UsageError("the variables have more than %d bytes in all" % _MOST_IN_ALL, "put long texts into files")
    return environment


def check_plan(asked: Iterable[str], plan: Mapping[str, str], folders: Iterable[str]) -> None:
    """Raise UsageError if, according to the plan, a user's variable leads to the site's own files.

    Args:
        asked: the names of the user's variables.
        plan: the plan's variables.
        folders: where the container has the site's files.
    """
    tops = tuple(folder + "/" for folder in folders)
    for name in asked:
        if any((path + "/").startswith(tops) for path in plan.get(name, "").split(":")):
            raise UsageError(
                f"--env {name}: this variable cannot be set, because by it the site's own files are found: the plan "
                f"sets it to {printable(plan[name])}",
                "leave it out",
            )


def _problem(name: str, value: str) -> Optional[Sequence[str]]:
    """Return why a variable cannot be set, and what to do; None if it can."""
    if not is_name(name):
        why = "not a name for an environment variable"
        return why, "use letters, digits and underscores; the first character is not a digit"
    if name in _OURS:
        return "this variable cannot be set, because " + _OURS[name][0], _OURS[name][1]
    if name.startswith(_OF_LAUNCHERS) and not name.startswith(_SETTINGS):
        return "this variable cannot be set, because the launcher tells the ranks their numbers by it", "leave it out"
    if name.startswith(_OF_TOOLS):
        return "this variable cannot be set, because deployer or the runtime uses it", "choose another name"
    wrong = None if _is_bytes(value) else fault(value, lines=True)
    if wrong:
        return f"invalid value: {wrong}", "write it without"
    if _size((name, value)) > _MOST:
        return "the value has %d bytes, more than a process can receive" % _size(("", value)), "put it into a file"
    return None


def _is_bytes(value: str) -> bool:
    """Return whether a value can be encoded as bytes; values that this process received need not be UTF-8."""
    try:
        return b"\0" not in value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False


def _size(item: Sequence[str]) -> int:
    return sum(len(part.encode("utf-8", "surrogateescape")) for part in item) + 2
