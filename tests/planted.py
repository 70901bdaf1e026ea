"""Secrets for tests, made at random when a test runs: no file of this repository has one."""

import base64
import random
import string

LETTERS = string.ascii_letters + string.digits


def word(length: int, letters: str = LETTERS) -> str:
    own = random.Random(f"{length} {letters}")  # the same in all processes, because names of tests contain it
    return "".join(own.choices(letters, k=length))


def private_key(kind: str = "RSA ", headers: str = "") -> str:
    """Return a PEM block that is none of anybody."""
    text = base64.encodebytes(random.Random(len(headers)).randbytes(300)).decode()
    return f"-----BEGIN {kind}PRIVATE KEY-----\n{headers}{text}-----END {kind}PRIVATE KEY-----\n"


_AWS = "AKIA" + word(16, string.ascii_uppercase)
_HEX = "0123456789abcdef"
#: Files: name, content, the kind that is found, and its line.
FILES: list[tuple[str, str, str, int]] = [
    ("rsa.pem", "\n" + private_key(), "a private key", 2),
    ("pkcs8.key", "# mine\n\n" + private_key(""), "a private key", 3),
    ("locked.pem", private_key("EC ", "Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\n"), "a private key", 1),
    (".ssh/id_ed25519", private_key("OPENSSH "), "a private key", 1),
    ("signing.asc", private_key("PGP ", "Version: GnuPG v2\n\n").replace("KEY-", "KEY BLOCK-"), "a private key", 1),
    ("service.json", '{"private_key": "' + private_key("").replace("\n", "\\n") + '"}', "a private key", 1),
    ("chain.json", '{"pem": "-----END CERTIFICATE-----\\n' + private_key("").replace("\n", "\\n"), "a private key", 1),
    ("age.txt", f"AGE-SECRET-KEY-1{word(58, string.ascii_uppercase)}\n", "an age key", 1),
    ("hub.py", f"import os\nlogin('hf_{word(34)}')\n", "a Hugging Face token", 2),
    ("org.sh", f"T=api_org_{word(34)}\n", "a Hugging Face token", 1),
    ("train.sh", f"export WANDB_API_KEY={word(40, _HEX)}\n", "a W&B key", 1),
    ("login.py", f'wandb.login(key="{word(40, _HEX)}")\n', "a W&B key", 1),
    ("new.py", f"key = 'wandb_v1_{word(77)}'\n", "a W&B key", 1),
    ("clone.sh", f"git clone https://ghp_{word(36)}@github.com/a/b\n", "a GitHub token", 1),
    ("fine.txt", f"github_pat_{word(22)}_{word(59)}", "a GitHub token", 1),
    (".config/gh/hosts.yml", f"github.com:\n  oauth_token: gho_{word(36)}\n", "a GitHub token", 2),
    ("ci.yml", f"token: glpat-{word(20)}\n", "a GitLab token", 1),
    ("s3.py", f"KEY = '{_AWS}'\n", "an AWS access key", 1),
    (".aws/credentials", f"[default]\naws_secret_access_key = {word(40)}\n", "an AWS secret key", 2),
    ("sts.json", f'{{"SecretAccessKey": "{word(40)}"}}', "an AWS secret key", 1),
    ("bot.ini", f"slack=xoxb-{word(11, string.digits)}-{word(12, string.digits)}-{word(24)}\n", "a Slack token", 1),
    ("gemini.ipynb", '{"source": "AIza' + word(35) + '"}', "a Google API key", 1),
    ("npm.txt", f"npm_{word(36)}", "an npm token", 1),
    ("upload.sh", f"twine -p pypi-AgEIcHlwaS5vcmc{word(80)}\n", "a PyPI token", 1),
    ("a.env.txt", f"sk-ant-api03-{word(93)}AA\n", "an Anthropic key", 1),
    ("o.py", f"sk-proj-{word(60)}T3BlbkFJ{word(60)}\n", "an OpenAI key", 1),
    ("hub.txt", f"dckr_pat_{word(27)}\n", "a Docker Hub token", 1),
    ("pay.py", f"sk_live_{word(24)}\n", "a Stripe key", 1),
    ("pip.conf", f"[global]\nindex-url = https://me:{word(12)}@pypi.uni.edu/simple\n", "an address with a password", 2),
    ("db.toml", f"url = 'postgresql://app:{word(9)}@db.uni.edu/x'\n", "an address with a password", 1),
    (".netrc", f"machine api.wandb.ai\n  login user\n  password {word(9)}\n", "a login", 3),
    (".git-credentials", f"https://me:{word(9)}@git.uni.edu\n", "a login", 1),
    (".pypirc", f"[pypi]\nusername = me\npassword = {word(9)}\n", "a login", 3),
    (".pgpass", f"db.uni.edu:5432:x:me:{word(9)}\n", "a login", 1),
    (".npmrc", f"//npm.uni.edu/:_authToken={word(9)}\n", "a login", 1),
    (".docker/config.json", f'{{"auths": {{\n"r.uni.edu": {{"auth": "{word(12)}"}}}}}}', "a login", 2),
    (".kube/config", f"users:\n- user:\n    client-key-data: {word(60)}\n", "a login", 3),
    (".config/kaggle/kaggle.json", f'{{"username": "me", "key": "{word(32, _HEX)}"}}', "a login", 1),
    (".cache/huggingface/token", word(20), "a login", 1),
    (".env", f"A=b\nDB_PASSWORD='{word(9)}'\n", "a value of DB_PASSWORD", 2),
]
