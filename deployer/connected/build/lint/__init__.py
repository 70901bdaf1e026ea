"""Rules for definitions: a table of their codes, and one module per kind."""

from typing import Any

from deployer.contract import findings
from deployer.contract.findings import ERROR, WARNING, Finding, Rule

#: The codes of ``lint``. They are stable, and docs/lint.md has a section for each. An error also stops a build.
RULES: dict[str, Rule] = {
    "pins.pip": Rule(
        WARNING,
        "{package} has no exact version: a later build makes a different image",
        "write {name}==VERSION (pip index versions {name} shows them), best with hashes and --require-hashes",
    ),
    "pins.hash": Rule(
        ERROR,
        "{package} has no hash, and pip refuses it: other lines, or --require-hashes, ask for hashes",
        "add --hash=sha256:HEX (pip hash FILE.whl), or move it to python.requirements, which are locked with hashes",
    ),
    "pins.image": Rule(
        WARNING,
        "{image} has no digest: the name can mean a different image later",
        "start from ${{BASE}} or ${{BUILD_BASE}} and name the image in bundle.yaml, or write NAME@sha256:HEX",
    ),
    "network.run-time": Rule(
        ERROR,
        "{what} uses the network when the job runs: {command}",
        "the site has no network. Do it in a stage of the Dockerfile, or name the packages in python.requirements",
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
        "everyone who receives the image or the bundle can read it. Remove it, list it in .dockerignore, and revoke it",
    ),
    "secrets.variable": Rule(
        ERROR,
        "{instruction} {name} looks like a secret, and stays in the image's configuration and history",
        "remove and revoke it; what a build needs goes into --pip-conf or --ca-bundle, which leave no trace",
    ),
    "itex.tensorflow": Rule(
        ERROR,
        "ITEX {itex} needs TensorFlow {needed}, but TensorFlow {tensorflow} is installed",
        "ITEX X.Y goes with TensorFlow X.Y; the last is 2.15",
    ),
    "itex.python": Rule(
        ERROR,
        "ITEX needs Python 3.9 to 3.11, but Debian {suite} has Python {python}",
        "use base: {{debian: bookworm}}, which has Python 3.11",
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
        "the image ends as user {user}, which HPC runtimes ignore: a job runs as the user who submits it",
        "remove USER. Files of a bundle are readable by the user who installs it; a job writes only to bound folders",
    ),
    "dockerfile.syntax": Rule(
        ERROR,
        "# syntax={frontend} parses this file with an image from a registry: no build could be repeated offline",
        "remove the line; the engine's own parser is used",
    ),
    "dockerfile.buildkit": Rule(
        ERROR,
        "{what} needs BuildKit, but deployer builds with the engine's classic builder",
        "remove it: BUILD_BASE has the build settings, COPY adds files, and scripts are files of the context",
    ),
}


def finding(code: str, subject: str, **values: Any) -> Finding:
    """Return the finding of rule ``code`` about ``subject``. ``values`` are inserted in message and remedy."""
    return RULES[code].about(code, subject, **values)
