"""Published scripts that download, through ``deployer fetch``: ``python -m tests.matrix.fetched FOLDER --tiny DIR``.

For each image, a definition is written with a job for each script; then it is built, each job is fetched from the lab's
internet, the bundle is packed, and each job is rehearsed without any network. A row for each script is printed.

With ``--direct PYTHON`` the scripts run without deployer, first with the lab's internet, then without any and with what
they kept: it tests the lab and the table.

``DEPLOYER_CORPUS_GIT`` names a folder with clones, as for :mod:`tests.corpus`. Nothing of others is in the repository.
``--tiny`` is what ``programs/tiny_hub.py`` made, ``--whisper`` the source archive of the package openai-whisper, from
which GPT-2's encoding is made (tiktoken compares it with known digests).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import yaml

from tests.corpus import fetch
from tests.corpus.scripts import SKLEARN, Source
from tests.lab.internet import Internet
from tests.matrix import fetched_data

NANOGPT = Source("karpathy/nanoGPT", "3adf61e154c3fe3fca428ad6bc3818b27a3b8291")
NANOCHAT = Source("karpathy/nanochat", "92d63d4e8bb4df75c3b71618f31ddde2378b2bcd")
GPT_2 = Source("openai/gpt-2", "9b63575ef42771a015060c964af2c3da4cf7c8ab")
BUILD_NANOGPT = Source("karpathy/build-nanogpt", "6104ab1b53920f6e2159749676073ff7d815c1fa")
LLM_C = Source("karpathy/llm.c", "f1e2ace651495b74ae22d45d1723443fd00ecd3a")
FROM_SCRATCH = Source("rasbt/LLMs-from-scratch", "28c65cdfbc3338e2e040016eea4b7fdf556e4d57")
PYTORCH = Source("pytorch/examples", "77f55b912142e11fcfdf5b530231fb9c52f181e8")
LIGHTNING = Source("Lightning-AI/pytorch-lightning", "7f0c3436cd3f6ad3753125672024fc415cbcb414")
TRL = Source("huggingface/trl", "f2cd57710ae345ea6428ae95363267fcf38a3dc8")
PEFT = Source("huggingface/peft", "5d602fdbff04c33c1c4de55cda9d4ae1d7cb7e40")
ACCELERATE = Source("huggingface/accelerate", "16cb6eb80dd9aa8b4df1a63ef57863e455d53b83")
SENTENCES = Source("UKPLab/sentence-transformers", "85ec64559f4414aa536eca4bf53538291e0a333f")
SEABORN = Source("mwaskom/seaborn", "f04b6cd5484267a0885d1fed068e99dff3a1b226")
STATSMODELS = Source("statsmodels/statsmodels", "82c59e378bdfb5ae324006c477954879ad3e24be")
NETWORKX = Source("networkx/networkx", "cfc6b79fc53f583aa15a79b2187ae30bd4f480ed")
NUMPYRO = Source("pyro-ppl/numpyro", "0b935d488056ae1775b4ab05cbe2812f51f21a4f")


class Script(NamedTuple):
    """A published script.

    Attributes:
        image: which of :data:`PACKAGES` it has.
        words: its own options, which make it small.
        beside: other files of the repository that it reads.
        copied: it writes beside itself, so the job copies its files into its folder first.
        before: a command before it, in the same shell.
        language: it trains, runs or feeds a language model.
        environment: variables of the job; numpyro would write into its own package without ``CI``.
        keep: a folder that it unpacks a download into: without it, it would download again.
        until: it runs for long, so the fetch ends at this text and the rehearsal after a minute.
    """

    name: str
    image: str
    source: Source
    path: str
    words: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    copied: bool = False
    before: str = ""
    language: bool = False
    until: str = ""
    environment: Mapping[str, str] = MappingProxyType({})
    keep: str = ""


_NO_LOG = ("--report_to", "none", "--output_dir", "out")
_TRL = ("--max_steps", "2", "--per_device_train_batch_size", "2", "--use_cpu", "true", "--bf16", "false", *_NO_LOG)
_QWEN = ("--model_name_or_path", "Qwen/Qwen2-0.5B-Instruct")
_ALPACA = ("--base_model", "HuggingFaceTB/SmolLM-360M", "--dtype", "float32", "--device_map", "cpu", "--eval_step", "5",
           "--save_step", "5", "--cutoff_len", "64")  # fmt: skip
_METAMATH = ("--base_model_name_or_path", "HuggingFaceTB/SmolLM-360M", "--data_path", "meta-math/MetaMathQA",
             "--dataset_field", "query", "response", "--dataset_split", "train", *_TRL)  # fmt: skip
_SBERT = "examples/sentence_transformer/"

SCRIPTS = (
    # language models, and their data
    Script("nanogpt-char", "torch", NANOGPT, "data/shakespeare_char/prepare.py", copied=True, language=True),
    Script("nanogpt-bpe", "torch", NANOGPT, "data/shakespeare/prepare.py", copied=True, language=True),
    # needs an older `datasets`, and two million texts
    Script("nanogpt-web", "torch", NANOGPT, "data/openwebtext/prepare.py", copied=True, language=True),
    Script("fineweb", "torch", BUILD_NANOGPT, "fineweb.py", copied=True, language=True),
    Script("llmc-shakespeare", "torch", LLM_C, "dev/data/tinyshakespeare.py", beside=("dev/data/data_common.py",),
           copied=True, language=True),
    Script("llmc-stories", "torch", LLM_C, "dev/data/tinystories.py", beside=("dev/data/data_common.py",),
           copied=True, language=True),
    Script("lightning-lm", "torch", LIGHTNING, "examples/fabric/language_model/train.py", language=True,
           until="epoch: 0"),
    Script("trl-sft", "torch", TRL, "trl/scripts/sft.py", (*_QWEN, "--dataset_name", "trl-lib/Capybara", *_TRL),
           language=True),
    Script("trl-dpo", "torch", TRL, "trl/scripts/dpo.py",
           (*_QWEN, "--dataset_name", "trl-lib/ultrafeedback_binarized", *_TRL), language=True),
    Script("trl-reward", "torch", TRL, "trl/scripts/reward.py",
           (*_QWEN, "--dataset_name", "trl-lib/ultrafeedback_binarized", *_TRL), language=True),
    Script("peft-lora-ga", "torch", PEFT, "examples/lora_ga_finetuning/lora_ga_finetuning.py",
           ("--max_length", "32", "--num_epochs", "1", "--dataset_name", "Salesforce/wikitext"), language=True),
    Script("peft-olora", "torch", PEFT, "examples/olora_finetuning/olora_finetuning.py", _ALPACA, language=True),
    Script("peft-shira", "torch", PEFT, "examples/shira_finetuning/shira_finetuning.py",
           (*_ALPACA, "--shira_r", "4"), language=True),
    Script("accelerate-lm", "torch", ACCELERATE,
           "examples/by_feature/gradient_accumulation_for_autoregressive_models.py", ("--cpu",), language=True),
    Script("trl-kto", "torch", TRL, "trl/scripts/kto.py", (*_QWEN, "--dataset_name", "trl-lib/kto-mix-14k", *_TRL),
           language=True),
    Script("trl-cpo", "torch", TRL, "examples/scripts/cpo.py",
           (*_QWEN, "--dataset_name", "trl-lib/ultrafeedback_binarized", "--use_peft", *_TRL), language=True),
    Script("peft-miss", "torch", PEFT, "examples/miss_finetuning/miss_finetuning.py",
           (*_METAMATH, "--bits", "fp32"), language=True),
    Script("peft-pissa", "torch", PEFT, "examples/pissa_finetuning/pissa_finetuning.py", _METAMATH, language=True),
    Script("lightning-transformer", "torch", LIGHTNING, "examples/pytorch/basics/transformer.py", language=True,
           until="Epoch 0:   1%"),
    Script("hellaswag", "torch", BUILD_NANOGPT, "hellaswag.py", ("-d", "cpu"), copied=True, language=True),
    Script("llmc-hellaswag", "torch", LLM_C, "dev/data/hellaswag.py", ("-d", "cpu"),
           beside=("dev/data/data_common.py",), copied=True, language=True),
    Script("nanochat-data", "torch", NANOCHAT, "nanochat/dataset.py", ("-n", "2", "-w", "2"),
           beside=("nanochat/__init__.py", "nanochat/common.py"), copied=True, before="export PYTHONPATH=.",
           language=True),
    Script("scratch-gpt", "torch", FROM_SCRATCH, "ch05/01_main-chapter-code/gpt_train.py",
           beside=("ch05/01_main-chapter-code/previous_chapters.py",), language=True, until="Ep 1 (Step 000000)"),
    Script("gpt-2", "tables", GPT_2, "download_model.py", ("124M",), language=True),
    # other models
    Script("accelerate-nlp", "torch", ACCELERATE, "examples/nlp_example.py", ("--cpu",)),
    Script("accelerate-local-sgd", "torch", ACCELERATE, "examples/by_feature/local_sgd.py", ("--cpu",)),
    Script("accelerate-checkpoint", "torch", ACCELERATE, "examples/by_feature/checkpointing.py",
           ("--cpu",)),
    Script("peft-glue", "torch", PEFT, "examples/sequence_classification/peft_no_lora_accelerate.py",
           ("--model_name_or_path", "distilroberta-base", "--num_train_epochs", "1", "--output_dir", "out",
            "--peft_type", "prompt_tuning")),
    Script("sbert-sts", "torch", SENTENCES, f"{_SBERT}training/sts/training_stsbenchmark.py"),
    Script("sbert-evaluate", "torch", SENTENCES, f"{_SBERT}evaluation/evaluation_stsbenchmark.py",
           ("all-MiniLM-L6-v2",)),
    Script("sbert-kmeans", "torch", SENTENCES, f"{_SBERT}applications/clustering/kmeans.py"),
    Script("sbert-summary", "torch", SENTENCES, f"{_SBERT}applications/text-summarization/text-summarization.py",
           beside=(f"{_SBERT}applications/text-summarization/LexRank.py",),
           before="python3 -m nltk.downloader punkt_tab"),
    Script("cross-encoder", "torch", SENTENCES, "examples/cross_encoder/applications/cross-encoder_usage.py"),
    Script("sbert-papers", "torch", SENTENCES, f"{_SBERT}applications/semantic-search/semantic_search_publications.py"),
    Script("sbert-questions", "torch", SENTENCES, f"{_SBERT}applications/clustering/fast_clustering.py"),
    Script("sbert-trec", "torch", SENTENCES, f"{_SBERT}training/other/training_batch_hard_trec.py"),
    Script("sbert-matryoshka", "torch", SENTENCES, f"{_SBERT}training/matryoshka/matryoshka_sts.py"),
    Script("cross-encoder-sts", "torch", SENTENCES, "examples/cross_encoder/training/sts/training_stsbenchmark.py"),
    Script("scratch-bert", "torch", FROM_SCRATCH, "ch06/03_bonus_imdb-classification/train_bert_hf_spam.py"),
    Script("scratch-imdb", "torch", FROM_SCRATCH, "ch06/03_bonus_imdb-classification/download_prepare_dataset.py",
           keep="aclImdb"),
    Script("gcn", "torch", PYTORCH, "gcn/main.py", ("--dry-run",)),
    Script("gat", "torch", PYTORCH, "gat/main.py", ("--dry-run",)),
    # tables and statistics
    Script("seaborn-heatmap", "tables", SEABORN, "examples/spreadsheet_heatmap.py"),
    Script("seaborn-bars", "tables", SEABORN, "examples/grouped_barplot.py"),
    Script("seaborn-regression", "tables", SEABORN, "examples/regression_marginals.py"),
    Script("seaborn-bubbles", "tables", SEABORN, "examples/scatter_bubbles.py"),
    Script("seaborn-histogram", "tables", SEABORN, "examples/joint_histogram.py"),
    Script("seaborn-logistic", "tables", SEABORN, "examples/logistic_regression.py"),
    Script("sklearn-yeast", "debian", SKLEARN, "multioutput/plot_classifier_chain_yeast.py"),
    Script("sklearn-output", "debian", SKLEARN, "miscellaneous/plot_set_output.py"),
    Script("sklearn-titanic", "debian", SKLEARN, "compose/plot_column_transformer_mixed_types.py"),
    Script("sklearn-mnist", "debian", SKLEARN, "neural_networks/plot_mnist_filters.py"),
    Script("sklearn-co2", "debian", SKLEARN, "gaussian_process/plot_gpr_co2.py"),
    Script("statsmodels-formulas", "tables", STATSMODELS, "examples/python/formulas.py"),
    Script("statsmodels-plots", "tables", STATSMODELS, "examples/python/regression_plots.py"),
    Script("statsmodels-likelihood", "tables", STATSMODELS, "examples/python/generic_mle.py"),
    Script("statsmodels-contrasts", "tables", STATSMODELS, "examples/python/contrasts.py"),
    Script("networkx-facebook", "tables", NETWORKX, "examples/3d_drawing/plot_facebook_3d.py"),
    Script("numpyro-baseball", "tables", NUMPYRO, "examples/baseball.py", ("-n", "50", "--num-warmup", "50"),
           environment={"CI": "1"}),
    Script("numpyro-admission", "tables", NUMPYRO, "examples/ucbadmit.py", ("-n", "50", "--num-warmup", "50"),
           environment={"CI": "1"}),
)  # fmt: skip

#: What each image installs with pip. The third has Debian's own packages, which are as old as their examples.
PACKAGES: dict[str, tuple[str, ...]] = {
    "debian": (),
    "torch": (
        "torch==2.13.0+cpu", "transformers==5.24.0", "datasets==5.2.0", "peft", "trl", "accelerate", "evaluate",
        "lightning", "sentence-transformers", "tiktoken", "nltk", "scikit-learn", "matplotlib", "requests",
    ),
    "tables": (
        "scikit-learn", "pandas", "seaborn", "statsmodels", "networkx", "jax==0.10.2", "jaxlib==0.10.2",
        "numpyro==0.21.0", "requests",
    ),
}  # fmt: skip
_DEBIAN = ["python3-matplotlib", "python3-pandas", "python3-sklearn"]
_SECONDS = 100


@dataclass
class Row:
    """What became of a script."""

    name: str
    fetched_s: float = 0.0
    fetched: str = ""
    bytes: int = 0
    kept: dict[str, list[str]] = field(default_factory=dict)
    rehearsed_s: float = 0.0
    hosts: list[str] = field(default_factory=list)
    verdict: str = ""
    ending: str = ""
    why: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        hosts = ",".join(self.hosts) or "-"
        head = f"{self.name:22} {self.fetched:8} {self.fetched_s:5.0f} s {self.bytes / 1e6:8.2f} MB  {self.verdict:8}"
        kept = " ".join(f"{part}:{','.join(names)}" for part, names in self.kept.items() if names)
        tail = f"{self.ending:16} {self.rehearsed_s:4.0f} s {hosts} {kept}"
        return f"{head} {tail}" + "".join(f"\n    {line}" for line in self.why)


def command(script: Script, app: str) -> list[str]:
    """Return how a script is started; ``app`` is where its files are."""
    start = f"{app}/{script.name}/{script.path}"
    if not script.copied and not script.before:
        return ["python3", start, *script.words]
    shell = f"{script.before}; " if script.before else ""
    if script.copied:
        shell += f"cp -R {app}/{script.name}/. . && "
        start = script.path
    return ["sh", "-c", f'{shell}exec "$0" "$@"', "python3", start, *script.words]


def place(script: Script, app: Path) -> None:
    """Put the files of a script below ``app``."""
    for path in (script.path, *script.beside):
        content = fetch.packaged(script.source, path) if script.source.package else fetch.committed(script.source, path)
        target = app / script.name / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


# ----------------------------------------------------------------------------------------------------- without deployer
def direct(script: Script, folder: Path, python: Path, internet: Internet) -> Row:
    """Run a script twice in the same folders: with the lab's internet, and without any."""
    row = Row(script.name)
    shutil.rmtree(folder / script.name, ignore_errors=True)
    place(script, folder / script.name / "app")
    for part in ("home", "job"):
        (folder / script.name / part).mkdir()
    asked = len(internet.requests)
    start = time.monotonic()
    row.fetched = _ran(script, folder, python, {**internet.environment, "HF_HUB_DISABLE_XET": "1"}, "online")
    row.fetched_s = time.monotonic() - start
    seen = internet.requests[asked:]
    row.hosts = sorted({each.host for each in seen})
    row.why = [f"{each.status} {each.method} {each.host}{each.path[:90]}" for each in seen if each.status >= 500]
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    row.verdict = _ran(script, folder, python, {**nowhere, "HF_HUB_OFFLINE": "1"}, "offline")
    return row


def _ran(script: Script, folder: Path, python: Path, environment: Mapping[str, str], name: str) -> str:
    own = {
        "HOME": str(folder / script.name / "home"),
        "PATH": f"{python.parent}:/usr/bin:/bin",
        "MPLBACKEND": "agg",
        **script.environment,
        "TMPDIR": str(folder / script.name / "tmp"),
    }
    (folder / script.name / "tmp").mkdir(exist_ok=True)
    log = folder / script.name / f"{name}.log"
    with log.open("wb") as stream:
        argv = command(script, str(folder / script.name / "app"))
        work = folder / script.name / "job"
        try:
            done = subprocess.run(
                argv, env={**own, **environment}, cwd=work, stdout=stream, stderr=stream, timeout=_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return "timeout"
    return f"exit {done.returncode}"


# -------------------------------------------------------------------------------------------------------- with deployer
_DOCKERFILE = """\
# {name}: packages of published scripts. app/ is not in the image.
ARG BASE

FROM ${{BASE}} AS python
ENV PIP_BREAK_SYSTEM_PACKAGES=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore \\
    PIP_PROGRESS_BAR=off
RUN apt-get update \\
 && apt-get install -y --no-install-recommends python3-pip \\
 && rm -rf /var/lib/apt/lists/*
COPY wheels /wheels
COPY requirements.txt /src/
RUN pip install --ignore-installed --find-links /wheels -r /src/requirements.txt

FROM ${{BASE}}
COPY --from=python /usr/local /usr/local
ENV MPLBACKEND=agg
RUN ldconfig && rm -f /var/cache/ldconfig/aux-cache
CMD ["python3"]
"""


def define(image: str, scripts: Sequence[Script], folder: Path, wheels: Path | None, pins: Path | None) -> Path:
    """Write the definition of an image, with a job for each of the scripts; return its folder."""
    made = folder / f"fetched-{image}"
    shutil.rmtree(made / "app", ignore_errors=True)
    made.mkdir(parents=True, exist_ok=True)
    packages = ["python3"] if PACKAGES[image] else ["python3", *_DEBIAN]
    if PACKAGES[image]:
        _context(made, image, wheels, pins)
    jobs = {}
    for script in scripts:
        place(script, made / "app")
        argv = command(script, "/deployer/app")
        jobs[script.name] = {"command": argv, "nodes": 1, "ranks_per_node": 1, "threads": 2, "time": "00:20:00"}
        environment = {**script.environment, **({"PYTHONUNBUFFERED": "1"} if script.until else {})}
        jobs[script.name] |= {"environment": environment} if environment else {}
    record: dict[str, Any] = {
        "name": made.name,
        "version": "1.0.0",
        "base": {"debian": "bookworm", "include": packages},
        "mpi": [],
        "jobs": jobs,
    }
    (made / "bundle.yaml").write_text(yaml.safe_dump(record, sort_keys=False))
    return made


def _context(made: Path, image: str, wheels: Path | None, pins: Path | None) -> None:
    """Write what the image is built from."""
    (made / "wheels").mkdir(exist_ok=True)
    for wheel in wheels.glob("*.whl") if wheels else ():
        if not (made / "wheels" / wheel.name).exists():
            shutil.copy(wheel, made / "wheels")
    (made / "wheels" / "README").write_text("Wheels that no index has.\n")
    (made / "Dockerfile").write_text(_DOCKERFILE.format(name=image))
    (made / "requirements.txt").write_text(pins.read_text() if pins else "\n".join([*PACKAGES[image], ""]))


def deployer(*words: str | Path, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run deployer's command line."""
    argv = [str(Path(sys.executable).with_name("deployer")), *map(str, words)]
    return subprocess.run(
        argv,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=3600,
        check=False,
    )


def fetched(script: Script, definition: Path, internet: Internet) -> Row:
    """Fetch what a job downloads."""
    row = Row(script.name)
    asked = len(internet.requests)
    start = time.monotonic()
    words = ["--until", script.until] if script.until else ["--time", "10m"]
    words += ["--keep", script.keep] if script.keep else []
    done = deployer("fetch", definition, script.name, "--json", *words, environment=internet.environment)
    row.fetched_s = time.monotonic() - start
    row.fetched = f"exit {done.returncode}"
    row.hosts = sorted({each.host for each in internet.requests[asked:]})
    (definition.parent / f"fetch-{script.name}.log").write_text(done.stdout + done.stderr)
    if done.returncode:
        row.why = [f"fetch: {line[:200]}" for line in done.stderr.splitlines()[-6:]]
        return row
    record = json.loads(done.stdout)
    row.bytes = sum(each["size"] for each in record["downloads"])
    row.kept = {part: list(record["kept"][part]) for part in ("home", "job")}
    row.why = [f"fetch: not answered: {each['url'][:90]}: {each['why'][:90]}" for each in record.get("refusals", [])]
    return row


def rehearsed(script: Script, row: Row, bundle: Path) -> None:
    """Rehearse a job of a bundle or definition, and write into its row what deployer concluded."""
    start = time.monotonic()
    done = deployer("rehearse", bundle, row.name, "--json", "--time", "1m" if script.until else "10m")
    row.rehearsed_s = time.monotonic() - start
    (bundle.parent / f"rehearse-{row.name}.log").write_text(done.stdout + done.stderr)
    if not done.stdout:
        row.verdict = f"exit {done.returncode}"
        row.why += [line[:200] for line in done.stderr.splitlines()[-3:]]
        return
    found = json.loads(done.stdout)
    ending = found["ending"]
    row.verdict, row.ending = found["verdict"], f"{ending['how']} {ending['seconds']:.0f} s"
    for each in found["findings"]:
        at = f" [{each['file']}:{each['line']}]" if each["file"] else ""
        row.why.append(f"{each['severity']} {each['code']} {each['subject']}: {each['message'][:140]}{at}")


def through(image: str, scripts: Sequence[Script], folder: Path, args: argparse.Namespace, internet: Internet) -> None:
    """Take the scripts of an image the whole way."""
    made = define(image, scripts, folder, args.wheels, args.pins and args.pins / f"{image}.txt")
    done = deployer("build", made)
    print(f"build {made.name}: exit {done.returncode}", flush=True)
    if done.returncode:
        print(done.stderr[-3000:])
        return
    rows = []
    for script in scripts:
        rows.append(fetched(script, made, internet))
        if not args.packed and rows[-1].fetched == "exit 0":
            rehearsed(script, rows[-1], made)
        print(rows[-1], flush=True)
    if args.packed:
        bundle = folder / f"{made.name}.tar"
        done = deployer("pack", made, "-o", bundle)
        print(f"pack {made.name}: exit {done.returncode}", flush=True)
        print(done.stderr[-3000:] if done.returncode else "")
        for script, row in zip(scripts, rows if not done.returncode else [], strict=False):
            rehearsed(script, row, bundle)
            print(row, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.matrix.fetched", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tiny", type=Path, required=True, help="what programs/tiny_hub.py made")
    parser.add_argument("--whisper", type=Path, help="the source archive of openai-whisper")
    parser.add_argument("--only", default="", help="names of scripts, as: gcn,trl-sft")
    parser.add_argument("--image", choices=sorted(PACKAGES), help="only the scripts of an image")
    parser.add_argument("--direct", type=Path, metavar="PYTHON", help="run them with this Python, without deployer")
    parser.add_argument("--packed", action="store_true", help="rehearse the packed bundle, not the definition")
    parser.add_argument("--wheels", type=Path, help="a folder with wheels that no index has")
    parser.add_argument("--pins", type=Path, help="a folder with IMAGE.txt, in place of the newest packages")
    args = parser.parse_args()
    folder = args.folder.absolute()
    only = args.only.split(",") if args.only else [each.name for each in SCRIPTS]
    wanted = sorted((each for each in SCRIPTS if each.name in only), key=lambda each: only.index(each.name))
    wanted = [each for each in wanted if args.image in (None, each.image)]
    with Internet(folder / f"internet-{os.getpid()}") as internet:
        fetched_data.furnish(internet, args.tiny, args.whisper)
        if args.direct:
            for script in wanted:
                print(direct(script, folder, args.direct.absolute(), internet), flush=True)
            return
        for image in PACKAGES:
            if scripts := [each for each in wanted if each.image == image]:
                through(image, scripts, folder, args, internet)


if __name__ == "__main__":
    main()
