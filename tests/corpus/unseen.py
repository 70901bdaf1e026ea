"""Published scripts that no other list here has, through rehearsals: ``python -m tests.corpus.unseen FOLDER``.

It writes two definitions into FOLDER; build and pack each, then ``python -m tests.corpus.unseen --rehearse BUNDLE``
prints a line for each job. ``DEPLOYER_CORPUS_GIT`` names a folder with clones, as for the other corpus; the commit of
each source is pinned. Nothing of others is in the repository. The table: docs/evidence/unseen.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.corpus import fetch
from tests.corpus.scripts import Source

NANOGPT = Source("karpathy/nanoGPT", "3adf61e1")
MAKEMORE = Source("karpathy/makemore", "988aa59")
LIGHTGBM = Source("microsoft/LightGBM", "bae0b7ba9")
PYTORCH = Source("pytorch/examples", "77f55b9")
SEABORN = Source("mwaskom/seaborn", "f04b6cd5")
NETWORKX = Source("networkx/networkx", "cfc6b79fc")
PYRO = Source("pyro-ppl/pyro", "ff6ae1c95")
MPI4PY = Source("mpi4py/mpi4py", "7c8dac2c")


class Unseen(NamedTuple):
    """A script.

    Attributes:
        source: the repository and its commit.
        path: the script in it.
        words: its own options, which make it short.
        beside: other files of the repository that it reads.
        ranks: how many of it start, with MPI.
    """

    name: str
    source: Source
    path: str
    words: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    ranks: int = 0


SCRIPTS = (
    Unseen("gpt-char", NANOGPT, "data/shakespeare_char/prepare.py"),
    Unseen("gpt-bpe", NANOGPT, "data/shakespeare/prepare.py"),
    Unseen("gpt-web", NANOGPT, "data/openwebtext/prepare.py"),
    Unseen("gpt-sample", NANOGPT, "sample.py", ("--init_from=gpt2", "--device=cpu"), ("model.py", "configurator.py")),
    Unseen("gpt-train", NANOGPT, "train.py", ("--device=cpu", "--compile=False"), ("model.py", "configurator.py")),
    Unseen("gpt-bench", NANOGPT, "bench.py", ("--device=cpu",), ("model.py", "configurator.py")),
    Unseen("makemore", MAKEMORE, "makemore.py", ("--max-steps=20", "-i", "/deployer/app/makemore/names.txt"),
           ("names.txt",)),
    Unseen("makemore-alone", MAKEMORE, "makemore.py", ("--max-steps=20",)),
    Unseen("gbm-simple", LIGHTGBM, "examples/python-guide/simple_example.py", (),
           ("examples/regression/regression.train", "examples/regression/regression.test")),
    Unseen("gbm-logistic", LIGHTGBM, "examples/python-guide/logistic_regression.py"),
    Unseen("gbm-sklearn", LIGHTGBM, "examples/python-guide/sklearn_example.py", (),
           ("examples/regression/regression.train", "examples/regression/regression.test")),
    Unseen("gbm-advanced", LIGHTGBM, "examples/python-guide/advanced_example.py"),
    Unseen("gbm-dask", LIGHTGBM, "examples/python-guide/dask/regression.py"),
    Unseen("pt-regression", PYTORCH, "regression/main.py"),
    Unseen("pt-sine", PYTORCH, "time_sequence_prediction/generate_sine_wave.py"),
    Unseen("pt-sequence", PYTORCH, "time_sequence_prediction/train.py", ("--steps", "1")),
    Unseen("pt-gcn", PYTORCH, "gcn/main.py", ("--epochs", "2", "--no-accel")),
    Unseen("pt-gat", PYTORCH, "gat/main.py", ("--epochs", "2", "--no-accel")),
    Unseen("pt-reinforce", PYTORCH, "reinforcement_learning/reinforce.py"),
    Unseen("pt-language", PYTORCH, "word_language_model/main.py", ("--epochs", "1"),
           ("word_language_model/data.py", "word_language_model/model.py")),
    Unseen("pt-fx", PYTORCH, "fx/invert.py"),
    Unseen("pt-translate", PYTORCH, "language_translation/main.py", ("--backend", "cpu"),
           ("language_translation/src/data.py", "language_translation/src/model.py")),
    Unseen("pt-styles", PYTORCH, "fast_neural_style/download_saved_models.py"),
    Unseen("sns-anscombe", SEABORN, "examples/anscombes_quartet.py"),
    Unseen("sns-ridge", SEABORN, "examples/kde_ridgeplot.py"),
    Unseen("sns-facets", SEABORN, "examples/faceted_lineplot.py"),
    Unseen("nx-blocks", NETWORKX, "examples/algorithms/plot_blockmodel.py"),
    Unseen("nx-parallel", NETWORKX, "examples/algorithms/plot_parallel_betweenness.py"),
    Unseen("nx-chess", NETWORKX, "examples/drawing/plot_chess_masters.py", (),
           ("examples/drawing/chess_masters_WCC.pgn.bz2",)),
    Unseen("nx-football", NETWORKX, "examples/graph/plot_football.py"),
    Unseen("pyro-schools", PYRO, "examples/eight_schools/svi.py", ("--num-epochs", "20"),
           ("examples/eight_schools/data.py",)),
    Unseen("pyro-baseball", PYRO, "examples/baseball.py", ("--num-samples", "5", "--warmup-steps", "5")),
    Unseen("pyro-lda", PYRO, "examples/lda.py", ("--num-steps", "2", "--num-docs", "50")),
    Unseen("pyro-dmm", PYRO, "examples/dmm.py", ("--num-epochs", "1")),
    Unseen("pyro-mini", PYRO, "examples/minipyro.py", ("--num-steps", "5")),
    Unseen("mpi-hello", MPI4PY, "demo/helloworld.py", ranks=2),
    Unseen("mpi-pi", MPI4PY, "demo/compute-pi/cpi-cco.py", ranks=2),
    Unseen("mpi-mandelbrot", MPI4PY, "demo/mandelbrot/mandelbrot.py", ranks=2),
    Unseen("mpi-crawl", MPI4PY, "demo/futures/run_crawl.py", ranks=2),
    Unseen("mpi-cupy", MPI4PY, "demo/cuda-aware-mpi/use_cupy.py", ranks=2),
)  # fmt: skip

_PACKAGES = """\
torch==2.13.0+cpu
dask[distributed]
gymnasium
lightgbm
matplotlib
networkx
pandas
pyro-ppl
requests
scikit-learn
seaborn
tiktoken
datasets
transformers
"""


def write(folder: Path) -> None:
    """Write the definitions: one without MPI, one with it."""
    for name, mpi in (("unseen", False), ("unseen-mpi", True)):
        scripts = [each for each in SCRIPTS if bool(each.ranks) == mpi]
        target = folder / name
        jobs: dict[str, Any] = {}
        for script in scripts:
            for path in (script.path, *script.beside):
                file = target / "app" / script.name / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(fetch.committed(script.source, path))
            command = ["python3", f"/deployer/app/{script.name}/{script.path}", *script.words]
            jobs[script.name] = {"command": command, "nodes": max(1, script.ranks), "time": "00:05:00"}
        packages = ["python3", "libgomp1", *(["python3-mpi4py", "python3-numpy"] if mpi else [])]
        record: dict[str, Any] = {"name": name, "version": "1.0.0", "base": {"debian": "bookworm", "include": packages}}
        if not mpi:
            record.update(mpi=[], python={"requirements": "packages.txt"})
            (target / "packages.txt").write_text(_PACKAGES)
        (target / "bundle.yaml").write_text(yaml.safe_dump({**record, "jobs": jobs}, sort_keys=False))


def rehearse(bundle: Path, only: str, words: list[str]) -> None:
    """Rehearse each job of a bundle, and print what deployer concluded, a line per job."""
    for script in SCRIPTS:
        if bool(script.ranks) != bundle.stem.endswith("mpi") or (only and script.name not in only.split(",")):
            continue
        with tempfile.TemporaryFile() as said:
            command = [
                str(Path(sys.executable).with_name("deployer")),
                "rehearse",
                str(bundle),
                script.name,
                "--json",
                *words,
            ]
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=said, check=False, timeout=900)
            said.seek(0)
            lines = said.read().decode().splitlines()
        if not done.stdout:
            print(f"{script.name}: exit {done.returncode}: {lines[-2:]}", flush=True)
            continue
        found = json.loads(done.stdout)
        ending = found["ending"]
        print(f"{script.name}: {found['verdict']}, {ending['how']} {ending['seconds']:.0f} s", flush=True)
        for each in found["findings"]:
            at = f" [{each['file']}:{each['line']}]" if each["file"] else ""
            print(f"    {each['severity']} {each['code']} {each['subject']}: {each['message'][:160]}{at}", flush=True)
            print(f"        remedy: {each['remedy'][:200]}", flush=True)
            for line in [*each["prepare"], *each["definition"]]:
                print(f"        | {line}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.corpus.unseen", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rehearse", action="store_true", help="FOLDER is a bundle: rehearse each of its jobs")
    parser.add_argument("--only", default="", help="names of scripts, as: gpt-char,pt-gcn")
    args, words = parser.parse_known_args()
    rehearse(args.folder, args.only, words) if args.rehearse else write(args.folder)


main()
