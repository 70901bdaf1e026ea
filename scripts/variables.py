"""The environment variables that users may set or jobs receive, for the reference.

``tests/unit/cli/laptop/test_variables.py`` compares them with the variables that the code reads.
"""

from typing import NamedTuple

from deployer.connected.ground import user_settings
from deployer.connected.ground.user_settings import UserSettings

#: The reader of a variable: laptop commands, site commands, both, or a job's program.
LAPTOP, SITE, BOTH, JOB = "laptop", "site", "both", "job"


class UserVariable(NamedTuple):
    """An environment variable.

    Attributes:
        names: its name, or several names with one meaning.
        reader: LAPTOP, SITE, BOTH or JOB.
        text: its purpose.
    """

    names: tuple[str, ...]
    reader: str
    text: str


VARIABLES = (
    *(
        UserVariable((variable,), LAPTOP, f"{UserSettings.model_fields[name].description}; setting `{name}`")
        for name, variable in user_settings.VARIABLES.items()
    ),
    UserVariable(("DEPLOYER_PROFILES",), LAPTOP, "folders with site profiles, with colons between them"),
    UserVariable(("DEPLOYER_ROOT",), SITE, "the root folder, if there is no --root"),
    UserVariable(("DEPLOYER_DEBUG",), BOTH, "1: print the traceback of an error"),
    UserVariable(("DEPLOYER_RESULT",), JOB, "the file to which a program writes its own result, as one JSON object"),
    UserVariable(("DEPLOYER_CHECKPOINT",), JOB,
                 "with `run --again`: the folder with the state that the next job continues from"),
    UserVariable(("DEPLOYER_TASK", "DEPLOYER_TASKS", "DEPLOYER_PARAMETERS"), JOB,
                 "of a group: the task's number, the number of tasks, and the JSON file with its parameters"),
    UserVariable(("FETCH_REPLAY",), JOB,
                 "the folder with the answers that `fetch` recorded; empty: the job gets none of them"),
    UserVariable(("NO_COLOR",), BOTH, "not empty: no colour"),
    UserVariable(("CLICOLOR",), BOTH, "0: no colour"),
    UserVariable(("FORCE_COLOR", "CLICOLOR_FORCE"), BOTH, "neither empty nor 0: colour in pipes too, unless NO_COLOR"),
    UserVariable(("TERM",), BOTH, "dumb: no colour"),
    UserVariable(("COLUMNS",), BOTH, "the width of tables and texts, instead of the terminal's"),
    UserVariable(("TMPDIR",), BOTH, "the folder of temporary files, /tmp by default"),
    UserVariable(("XDG_CACHE_HOME",), BOTH, "the folder of caches, ~/.cache by default"),
    UserVariable(("XDG_CONFIG_HOME",), LAPTOP, "the folder of settings and own profiles, ~/.config by default"),
    UserVariable(("XDG_STATE_HOME",), LAPTOP, "the folder of logs and build records, ~/.local/state by default"),
    UserVariable(("DOCKER_HOST",), LAPTOP, "the Docker engine, instead of this machine's"),
    UserVariable(("DOCKER_CONTEXT",), LAPTOP,
                 "Docker's context, if DOCKER_HOST is not set, instead of its current one"),
    UserVariable(("DOCKER_CONFIG",), LAPTOP, "the folder of Docker's settings and contexts, ~/.docker by default"),
    UserVariable(("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY"), LAPTOP,
                 "proxies of a build, in upper or lower case; no image contains them"),
    UserVariable(("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"), LAPTOP,
                 "CA certificates of a build, if DEPLOYER_CA_BUNDLE is not set; the first counts"),
    UserVariable(("HF_TOKEN", "HF_TOKEN_PATH", "HF_HOME"), LAPTOP,
                 "your login at the Hugging Face hub, for `fetch`: the token, its file, or the folder of that file"),
    UserVariable(("PIP_*",), LAPTOP, "pip's own settings: indexes and proxy of a build"),
    UserVariable(("SSH_AUTH_SOCK", "SSH_ASKPASS", "SSH_ASKPASS_REQUIRE", "SSH_SK_PROVIDER", "DISPLAY", "KRB5CCNAME"),
                 LAPTOP,
                 "for ssh and ssh-keygen: keys in an agent, questions for passphrases, security keys, Kerberos"),
    UserVariable(("SBATCH_ACCOUNT", "SLURM_ACCOUNT"), SITE,
                 "the account of a job, if neither an option nor the plan names one"),
    UserVariable(("OMP_NUM_THREADS",), SITE, "threads of a program that `exec` and `shell` start"),
)  # fmt: skip


def read_by(*readers: str) -> list[UserVariable]:
    """Return the variables of the given readers."""
    return [variable for variable in VARIABLES if variable.reader in readers]
