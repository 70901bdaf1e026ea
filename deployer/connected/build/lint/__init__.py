"""What a definition must be before it is worth a build: a table of the rules' codes, a module for each kind."""

from typing import Any

from deployer.contract import findings
from deployer.contract.findings import ERROR, WARNING, Finding, Rule

#: The codes of ``lint``, a promise to scripts; docs/lint.md has a section for each. An error stops a build as well.
RULES: dict[str, Rule] = {
    "pins.pip": Rule(
        WARNING,
        "{package} has no exact version: another day's build is another image",
        "write {name}==VERSION (pip index versions {name} shows them), best with hashes and --require-hashes",
    ),
    "pins.hash": Rule(
        ERROR,
        "{package} has no hash, and pip refuses it: other lines, or --require-hashes, ask for hashes",
        "add --hash=sha256:HEX (pip hash FILE.whl), or move it to python.requirements, which are locked with hashes",
    ),
    "pins.image": Rule(
        WARNING,
        "{image} is named by a tag or by nothing: it may be another image tomorrow",
        "start from ${{BASE}} or ${{BUILD_BASE}} and name the image in bundle.yaml, or write NAME@sha256:HEX",
    ),
    "network.run-time": Rule(
        ERROR,
        "{what} uses the network when the job runs: {command}",
        "the site has none. Do it in a stage of the Dockerfile, or name the packages in python.requirements",
    ),
    "layers.late-removal": Rule(
        WARNING,
        "{path} is removed here, but the step on line {line} put it into a layer of its own, which keeps it",
        "remove it in the same RUN, or make it in a stage that only COPY --from takes from",
    ),
    "layers.hidden": Rule(
        WARNING,
        "{size} of the image's layers is deleted or overwritten by later ones: {paths}",
        "the engine and registries keep these bytes, a bundle does not. Remove files in the RUN that made them",
    ),
    "layers.leftover": Rule(
        WARNING,
        "the image carries {size} of caches and temporary files: {paths}",
        "the bundle carries them too. Remove them in the RUN that made them, or copy only what is needed",
    ),
    "command.relative": Rule(
        ERROR,
        "{word} is a path relative to the job's working folder, which is not app/",
        "write {absolute} in the job's command",
    ),
    "app.import": Rule(
        ERROR,
        "it imports {module}, which neither the built image nor the wheelhouse provides",
        "add its package to python.requirements in bundle.yaml, or to the Dockerfile, and build again",
    ),
    "command.missing": findings.RULES["command.missing"],
    "secrets.file": Rule(
        ERROR,
        "it holds {what}",
        "whoever gets the image or the bundle gets it too. Take it out, list it in .dockerignore, and revoke it",
    ),
    "secrets.variable": Rule(
        ERROR,
        "{instruction} {name} looks like a secret, and stays in the image's configuration and history",
        "take it out and revoke it; what a build needs goes into --pip-conf or --ca-bundle, which leave no trace",
    ),
    "itex.tensorflow": Rule(
        ERROR,
        "ITEX {itex} needs TensorFlow {needed}, and TensorFlow {tensorflow} is asked for",
        "ITEX X.Y goes with TensorFlow X.Y; the last is 2.15",
    ),
    "itex.python": Rule(
        ERROR,
        "ITEX needs Python 3.9 to 3.11, and Debian {suite} has Python {python}",
        "take base: {{debian: bookworm}}, which has Python 3.11",
    ),
    "itex.none": Rule(
        WARNING,
        "there is no ITEX for TensorFlow {tensorflow}: it runs without Intel's optimisations",
        "the last TensorFlow with ITEX is 2.15",
    ),
    "network.base": Rule(
        WARNING,
        "this step uses the network in a stage FROM ${{BASE}}, without this machine's build settings: {command}",
        "start the stage FROM ${{BUILD_BASE}}: it has the CA bundle and the settings of pip and apt",
    ),
    "dockerfile.build-base": Rule(
        ERROR,
        "the image is made from BUILD_BASE: it would carry this machine's build settings to the site",
        "start the last stage FROM ${{BASE}}, and COPY --from the other what it needs",
    ),
    "dockerfile.user": Rule(
        WARNING,
        "the image ends as user {user}, which no HPC runtime obeys: a job runs as the person who submits it",
        "leave USER out. A bundle's files are root's, and readable to who installs it; a job writes to what is bound",
    ),
    "dockerfile.syntax": Rule(
        ERROR,
        "# syntax={frontend} lets a registry's image read this file: no build could be repeated offline",
        "take the line out; the engine's own reader is used",
    ),
    "dockerfile.buildkit": Rule(
        ERROR,
        "{what} needs BuildKit, and builds here work with every engine's own builder",
        "take it out: build settings come with BUILD_BASE, files by COPY, scripts as files of the context",
    ),
}


def finding(code: str, subject: str, **values: Any) -> Finding:
    """Return the finding of rule ``code`` about ``subject``; ``values`` fill message and remedy."""
    return RULES[code].about(code, subject, **values)
