"""The command line of the matrix: ``scripts/verdict-matrix``."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.matrix import pairs, probes, table
from tests.matrix.drive import matrix


def main(argv: Sequence[str] | None = None) -> int:
    """Draw, check, run and compare; return 0 where the matrix holds, 1 where not."""
    parser = argparse.ArgumentParser(prog="scripts/verdict-matrix", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--seed", type=int, help="the pairs are the same for the same seed")
    what.add_argument("--probes", action="store_true", help="the small probes of habits in place of drawn pairs")
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--list", action="store_true", help="print what would be drawn, and end")
    parser.add_argument("--tuning", action="store_true", help="draw no application that is set aside")
    parser.add_argument("--only", metavar="WORD", default="", help="of what is drawn, the pairs that hold the word")
    parser.add_argument("--lab", metavar="NAME", default="matrix", help="begin the labs' names with it")
    parser.add_argument("--lanes", type=int, default=1, metavar="N", help="labs of each suite that work side by side")
    parser.add_argument("--keep", action="store_true", help="leave the labs up, for a look at what they left")
    parser.add_argument("-o", "--output", type=Path, help="write the lines there as JSON, while they come")
    args = parser.parse_args(argv)
    every = probes.PROBES if args.probes else pairs.draw(args.seed, args.pairs, args.tuning)
    drawn = [pair for pair in every if args.only in _named(pair)]
    if args.list:
        for pair in drawn:
            print(_named(pair))
        return 0
    if not drawn:
        parser.error(f"none of the pairs drawn holds {args.only!r}; draw more with --pairs")

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="matrix-") as work:
        lines = matrix(drawn, args.lab, Path(work), say, args.output, args.keep, args.lanes)
    print(f"{'probes' if args.probes else f'seed {args.seed}'}\n\n{table.render(lines)}")
    return 0 if table.holds(lines) else 1


def _named(pair: pairs.Pair) -> str:
    return f"{pair.image.name:24} {pair.wrapper:16} {pair.site.name}"


if __name__ == "__main__":
    sys.exit(main())
