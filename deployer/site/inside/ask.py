"""The program that a launcher in a container calls instead of ssh: ask [OPTIONS] NODE WORDS..."""

import select
import signal
import sys
from contextlib import closing
from typing import Sequence, Tuple

from deployer.site.inside.channel import ChannelError, connect

#: The exit code of ssh if it cannot connect.
FAILED = 255


def ask(addresses: Sequence[Tuple[str, int]], key: bytes, words: Sequence[str]) -> int:
    """Run ``words`` in a node's container, and return their exit code."""
    # The ranks decide when the job ends; the launcher may have unblocked the signal.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    words = list(words)
    while words and words[0].startswith("-"):
        del words[0]
    try:
        with closing(connect(addresses, key)) as channel:
            channel.send({"ask": words[0] if words else "", "text": " ".join(words[1:])})
            while True:
                select.select([channel], [], [])  # a read has a time limit, but the daemon runs as long as the job
                for message in channel.receive():
                    return int(message["code"])
    except ChannelError as error:
        sys.stderr.write(f"deployer: error: {error}\n")
        return FAILED
