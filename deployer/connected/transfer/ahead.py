"""Send a layer's frames to a site while `pack` still writes the bundle, before it has a digest.

The site keeps them under a token until the push names it and the digest; before that, nothing is installed. If there is
no push, the site removes them.
"""

import itertools
import logging
import os
import secrets
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from deployer.connected.bundle.seal import BundleWriter
from deployer.connected.transfer.remote import Remote
from deployer.contract.base.errors import DeployerError, TransferError
from deployer.contract.base.json_records import Fields
from deployer.contract.bundle import delta
from deployer.contract.bundle.manifest import FRAME

_log = logging.getLogger("deployer.ahead")

#: Seconds between two looks at the file; seconds for the site's last answer.
_LOOK_SECONDS, _ANSWER_SECONDS = 0.02, 120
#: Frames that are sent at once, about 1 MiB: the push waits until they have arrived.
_FRAMES = 4


class Ahead:
    """The frames that are sent while a bundle is packed.

    Args:
        remote: waits for the connection.
    """

    def __init__(self, remote: Callable[[], Remote]) -> None:
        self._remote = remote
        self._token = secrets.token_hex(16)
        self._worker = ThreadPoolExecutor(1, "ahead")
        self._sending: Future[Fields] | None = None
        self._packed, self._unused = threading.Event(), threading.Event()

    def follow(self, writer: BundleWriter) -> None:
        """Begin to send what ``writer`` writes."""
        self._sending = self._worker.submit(self._send, os.dup(writer.fileno()), writer)

    def finish(self) -> str:
        """Stop after the current frames, and return the token for the site's ``take``; empty: nothing was sent."""
        self._packed.set()
        if self._sending is None:
            return ""
        try:
            self._sending.result()
        except (DeployerError, OSError) as error:  # if it matters, the push fails too
            _log.debug("nothing was sent ahead: %s", error)
            return ""
        return self._token

    def stop(self) -> None:
        """Stop without a push."""
        self._unused.set()
        self._worker.shutdown()

    def _send(self, file: int, writer: BundleWriter) -> Fields:
        def pieces(known: Fields) -> Iterator[bytes]:
            return self._pieces(file, writer, delta.read_held(known.text("held")))

        try:
            return self._remote().converse(["ahead", self._token], pieces, _ANSWER_SECONDS)
        finally:
            os.close(file)

    def _pieces(self, file: int, writer: BundleWriter, held: delta.HeldSegments) -> Iterator[bytes]:
        """Yield what the site lacks of the frames in the file, in the format of ``shipment.as_stream``."""
        end = 0  # of the last frame that was considered
        while not self._packed.is_set():
            if self._unused.is_set():
                raise TransferError("the bundle is not sent")
            segments, written = writer.segments, os.fstat(file).st_size
            first = bisect_left(segments, end, key=lambda segment: segment.offset)
            some = itertools.islice(segments, first, first + _FRAMES)
            ready = [item for item in some if item.offset + item.size <= written]
            if not ready:
                time.sleep(_LOOK_SECONDS)
                continue
            end = ready[-1].offset + ready[-1].size
            for part in delta.cut(delta.missing((item for item in ready if item.kind == FRAME), held)):
                yield b"%s %d\n" % (part.name.encode(), part.size)
                yield os.pread(file, part.size, part.offset)
        yield delta.END
