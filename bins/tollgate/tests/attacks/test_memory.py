"""What a client can make of the memory of the program."""

import asyncio
import json
import secrets
import socket
import ssl
import struct
import subprocess
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote, urlsplit

import aiohttp
import hpack

from tollgate import BASES, FOLDER, Merchant, Program, chat, cost


class LargeAnswers(unittest.TestCase):
    CALLS, SIZE = 150, 7_000_000

    def setUp(self):
        self.program = Program()
        self.addCleanup(self.program.stop)
        self.merchant = Merchant(self.program.url)

    def test_many_large_answers_at_once_take_little(self):
        key = self.merchant.spend_key()
        answers = asyncio.run(self.calls(key, chat(max_tokens=100)))
        statuses = [status for status, _ in answers]
        self.assertEqual(set(statuses) - {200, 503}, set())
        self.assertGreater(statuses.count(200), 0)
        # Each is whole, and booked as reported.
        self.assertEqual({length for status, length in answers if status == 200}, {self.SIZE})
        self.assertEqual(self.merchant.spent(key), statuses.count(200) * cost("cheap", 11, 7))
        self.assertLess(self.program.memory("VmHWM"), 400, "MiB at most")

    async def calls(self, key, body):
        url = f"{self.program.url}/v1/forward?u={quote(BASES['house'] + '/chat/completions', safe='')}"
        headers = {"Authorization": f"Bearer {key['key']}", "Content-Type": "application/json",
                   "X-Plan": json.dumps({"fill": self.SIZE})}

        async def one(session):
            length = 0
            async with session.post(url, data=body, headers=headers) as answer:
                async for piece in answer.content.iter_chunked(65536):
                    length += len(piece)
                return answer.status, length

        # A busy machine may take minutes for all of them, but none of them stands still.
        stall = aiohttp.ClientTimeout(total=None, sock_read=120)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=stall) as session:
            return await asyncio.gather(*(one(session) for _ in range(self.CALLS)))


class Streams(unittest.TestCase):
    """HTTP/2, which TLS brings: streams without a key, whose answers are not taken."""

    CONNECTIONS, STREAMS = 4, 25_000
    # MiB, for the streams that are answered until a connection has too many and is closed.
    MOST = 64
    # Of RFC 9113.
    PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    DATA, HEADERS, RST_STREAM, SETTINGS, CONTINUATION = 0, 1, 3, 4, 9
    END_STREAM, ACKNOWLEDGED, END_HEADERS = 1, 1, 4
    LARGEST_FRAME = 16_384

    def setUp(self):
        certificate, key = FOLDER / "certificate.pem", FOLDER / "key.pem"
        if not key.exists():
            subprocess.run(
                ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                 "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1",
                 "-keyout", key, "-out", certificate],
                check=True, capture_output=True)
        tls = [f'tls_certificate = "{certificate}"', f'tls_key = "{key}"']
        self.program = Program(*tls, scheme="https")
        self.addCleanup(self.program.stop)
        self.context = ssl.create_default_context(cafile=certificate)
        self.context.set_alpn_protocols(["h2"])
        self.sockets = []
        self.addCleanup(lambda: [one.close() for one in self.sockets])

    @staticmethod
    def frame(kind, flags, stream, payload=b""):
        return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload

    def head(self, stream, block, flags=END_STREAM):
        """The frames of a head, however long it is."""
        pieces = [block[at:at + self.LARGEST_FRAME] for at in range(0, len(block), self.LARGEST_FRAME)]
        frames = []
        for at, piece in enumerate(pieces):
            kind, set_flags = (self.CONTINUATION, 0) if at else (self.HEADERS, flags)
            last = self.END_HEADERS if at == len(pieces) - 1 else 0
            frames.append(self.frame(kind, set_flags | last, stream, piece))
        return b"".join(frames)

    def block(self, method, path, *more):
        """A head as HPACK without its table, so that it is the same for every stream."""
        encoder = hpack.Encoder()
        encoder.header_table_size = 0
        fields = [(":method", method), (":authority", "127.0.0.1"), (":scheme", "https"), (":path", path), *more]
        return encoder.encode([hpack.NeverIndexedHeaderTuple(*one) for one in fields])

    def connect(self):
        """A connection for HTTP/2, and the bytes that begin it. It takes not a byte of any answer."""
        parts = urlsplit(self.program.url)
        plain = socket.create_connection((parts.hostname, parts.port), timeout=10)
        one = self.context.wrap_socket(plain, server_hostname="127.0.0.1")
        self.sockets.append(one)
        self.assertEqual(one.selected_alpn_protocol(), "h2")
        no_window = struct.pack(">HI", 4, 0)
        settings = self.frame(self.SETTINGS, 0, 0, no_window) + self.frame(self.SETTINGS, self.ACKNOWLEDGED, 0)
        return one, self.PREFACE + settings

    def attack(self, frames, streams=STREAMS):
        """Sends the frames of as many streams; answers whether the other side let all of them come."""
        one, unsent = self.connect()
        one.setblocking(False)
        end = time.monotonic() + 15
        at = 0
        while at < streams or unsent:
            if not unsent:
                batch = range(at, min(at + 200, streams))
                unsent, at = b"".join(frames(2 * number + 1) for number in batch), at + len(batch)
            try:
                sent = one.send(unsent)
                unsent = unsent[sent:]
            except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
                time.sleep(0.001)
            except OSError:
                return False
            try:
                while one.recv(1 << 16):
                    pass
                return False
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                pass
            except OSError:
                return False
            if time.monotonic() > end:
                return False
        return True

    def assert_little(self, frames, streams=STREAMS):
        # What the program takes for itself when it is first asked.
        self.attack(frames, 20)
        most = before = self.program.memory()
        with ThreadPoolExecutor(self.CONNECTIONS) as at_once:
            running = [at_once.submit(self.attack, frames, streams) for _ in range(self.CONNECTIONS)]
            while not all(one.done() for one in running):
                most = max(most, self.program.memory())
                time.sleep(0.05)
        whole = [one.result() for one in running]
        # It may still be busy with them: until it takes no more for a second.
        grew = time.monotonic()
        while most - before < self.MOST and time.monotonic() - grew < 1:
            time.sleep(0.05)
            now = self.program.memory()
            if now > most + 0.5:
                most, grew = now, time.monotonic()
        self.assertIsNone(self.program.process.poll(), "the program has ended")
        self.assertLess(most - before, self.MOST, f"MiB more; whole: {whole}")

    def test_answers_that_are_not_taken(self):
        block = self.block("GET", "/openapi.json")
        self.assert_little(lambda stream: self.head(stream, block))

    def test_refusals_that_are_not_taken(self):
        block = self.block("GET", "/v1/models")
        self.assert_little(lambda stream: self.head(stream, block))

    def test_bodies_that_do_not_end(self):
        block = self.block("POST", "/v1/chat/completions", ("content-length", "1000000"))
        self.assert_little(lambda stream: self.head(stream, block, 0))

    def test_large_heads(self):
        block = self.block("GET", "/v1/models", *((f"x-{number}", secrets.token_hex(4000)) for number in range(8)))
        self.assert_little(lambda stream: self.head(stream, block), 1000)

    def test_heads_that_do_not_end(self):
        block = self.block("GET", "/v1/models", ("x", secrets.token_hex(6000)))
        begun = self.frame(self.HEADERS, 0, 1, block)
        goes_on = self.frame(self.CONTINUATION, 0, 1, secrets.token_bytes(self.LARGEST_FRAME))
        self.assert_little(lambda stream: begun if stream == 1 else goes_on, 2500)

    def test_streams_that_are_reset_at_once(self):
        block = self.block("GET", "/openapi.json")
        reset = struct.pack(">I", 8)
        self.assert_little(lambda stream: self.head(stream, block) + self.frame(self.RST_STREAM, 0, stream, reset))
