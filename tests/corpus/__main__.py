"""``python -m tests.corpus FOLDER --stand-ins DIR``: write the definitions of the corpus."""

import argparse
from pathlib import Path

from tests.corpus import definitions, fetch
from tests.corpus.scripts import SCRIPTS


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.corpus", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the definitions are written")
    parser.add_argument("--stand-ins", type=Path, required=True, help="what standins.py made")
    parser.add_argument("--remedied", action="store_true", help="with the remedies for what the scripts reach for")
    parser.add_argument("--only", default="", help="names of scripts, as: torch-vae,keras-mnist-mlp")
    args = parser.parse_args()
    wanted = [each for each in SCRIPTS if not args.only or each.name in args.only.split(",")]
    scripts = [each for each in wanted if fetch.available(each)]
    for each in wanted:
        if each not in scripts:
            print(f"{each.name}: left out: no clone of {each.source.repository} (${fetch.CLONES})")
    for folder in definitions.write(args.folder, args.stand_ins, args.remedied, scripts):
        print(folder)


main()
