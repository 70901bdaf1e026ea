"""A kernel of a Jupyter server, over its HTTP interface and one WebSocket (RFC 6455), with the standard library."""

import base64
import http.client
import json
import os
import socket
import struct
import uuid
from contextlib import closing
from typing import Any


class Jupyter:
    """A server on a port of this machine."""

    def __init__(self, port: int, token: str, host: str = "") -> None:
        self.port, self.headers = port, {"Authorization": f"token {token}", "Host": host or f"127.0.0.1:{port}"}

    def ask(self, method: str, path: str, **headers: str) -> tuple[int, Any]:
        """Return the status and the answer of a request."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as line:
            line.request(method, path, headers={**self.headers, **headers})
            answer = line.getresponse()
            text = answer.read()
        return answer.status, json.loads(text) if "json" in answer.headers.get("Content-Type", "") else text

    def run(self, code: str) -> str:
        """Run a cell in a new kernel and return what it printed."""
        kernel = self.ask("POST", "/api/kernels")[1]["id"]
        with socket.create_connection(("127.0.0.1", self.port), 60) as line, line.makefile("rb") as stream:
            key = base64.b64encode(os.urandom(16)).decode()
            more = {**self.headers, "Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
            lines = [f"GET /api/kernels/{kernel}/channels HTTP/1.1", f"Sec-WebSocket-Key: {key}"]
            lines += [f"{name}: {value}" for name, value in more.items()]
            line.sendall("\r\n".join([*lines, "", ""]).encode())
            while stream.readline().strip():
                pass
            header = {"msg_id": uuid.uuid4().hex, "msg_type": "execute_request", "session": "s", "username": "u"}
            content = {"code": code, "silent": False, "store_history": False, "allow_stdin": False}
            message = {"header": {**header, "version": "5.3"}, "parent_header": {}, "metadata": {}, "content": content}
            _send(line, json.dumps({**message, "channel": "shell", "buffers": []}).encode())
            printed = ""
            while True:
                answer = json.loads(_frame(stream))
                if answer["msg_type"] == "stream":
                    printed += answer["content"]["text"]
                if answer["msg_type"] == "execute_reply" and answer["parent_header"]["msg_id"] == header["msg_id"]:
                    assert answer["content"]["status"] == "ok", answer["content"]
                    return printed


def _send(line: socket.socket, data: bytes) -> None:
    mask = os.urandom(4)
    size = struct.pack("!BBH", 0x81, 0x80 | 126, len(data))
    line.sendall(size + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(data)))


def _frame(stream: Any) -> bytes:
    """Return the text of the next whole message."""
    whole = b""
    while True:
        first, size = stream.read(2)
        size &= 0x7F
        if size > 125:
            (size,) = struct.unpack("!H" if size == 126 else "!Q", stream.read(2 if size == 126 else 8))
        data = stream.read(size)
        whole += data if first & 0x0F in (0, 1) else b""
        if first & 0x80 and first & 0x0F in (0, 1):
            return whole
