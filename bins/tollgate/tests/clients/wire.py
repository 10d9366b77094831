"""A relay between a client and Tollgate that passes every byte and knows afterwards what was said."""

import io
import json
import re
import socket
import threading
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse


@dataclass
class Exchange:
    """A request and its answer."""

    request: bytes
    status: int
    headers: dict
    body: bytes

    @property
    def error(self):
        """The error of Tollgate's envelope, or an empty one."""
        try:
            error = json.loads(self.body)["error"]
            return error if "code" in error else {}
        except (ValueError, KeyError, TypeError):
            return {}

    def __str__(self):
        head, _, body = self.request.partition(b"\r\n\r\n")
        head = re.sub(rb"(?i)(authorization: bearer |x-(?:goog-)?api-key: )\S+", rb"\1tgk_#", head)
        answer = "".join(f"{name}: {value}\n" for name, value in self.headers.items())
        return (
            f"{head.decode(errors='replace')}\n\n{body[:600].decode(errors='replace')}\n\n"
            f"HTTP/1.1 {self.status}\n{answer}\n{self.body[:1500].decode(errors='replace')}"
        )


class Wire:
    """The relay. `url` is its address; `begin` forgets what was said before, `first` runs before the next POST passes."""

    def __init__(self, upstream):
        self._upstream = upstream
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._connections = []
        self._first, self._lock = None, threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            client, _ = self._listener.accept()
            try:
                server = socket.create_connection(self._upstream)
            except OSError:
                client.close()
                continue
            said = (bytearray(), bytearray())
            self._connections.append((client, server, said))
            for source, target, record in ((client, server, said[0]), (server, client, said[1])):
                threading.Thread(target=self._pump, args=(source, target, record), daemon=True).start()

    def first(self, act):
        self._first = act

    def begin(self):
        """Closes what is open, so that each connection belongs to one case."""
        for client, server, _ in self._connections:
            for one in (client, server):
                try:
                    one.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
        self._connections, self._first = [], None

    def exchanges(self):
        return [one for _, _, said in list(self._connections) for one in _parse(bytes(said[0]), bytes(said[1]))]

    def _pump(self, source, target, record):
        try:
            while piece := source.recv(65536):
                record += piece
                with self._lock:
                    if self._first and piece.startswith(b"POST "):
                        act, self._first = self._first, None
                        act()
                target.sendall(piece)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass


class _Bytes(io.BytesIO):
    """Looks like a socket, and stays open from one answer to the next."""

    def makefile(self, _):
        return self

    def close(self):
        pass


def _parse(sent, received):
    """The exchanges of a connection; an answer that did not end is left out."""
    requests = [sent[found.start() :] for found in re.finditer(rb"[A-Z]+ /\S* HTTP/1\.1\r\n", sent)]
    exchanges, stream = [], _Bytes(received)
    for request in requests:
        try:
            answer = HTTPResponse(stream, method=request.split(b" ", 1)[0].decode())
            answer.begin()
            body = answer.read()
        except (HTTPException, ValueError):
            break
        exchanges.append(Exchange(request, answer.status, dict(answer.getheaders()), body))
    return exchanges
