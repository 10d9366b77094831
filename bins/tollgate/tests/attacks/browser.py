"""Chromium without a screen, driven over WebDriver, and a site of the attacker's that hears what scripts report."""

import json
import re
import subprocess
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

from tollgate import FOLDER

ARGUMENTS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]


class Browser:
    """One with an empty profile."""

    def __init__(self):
        # Chromium resolves no name but that of this machine.
        out = FOLDER / "chromedriver.out"
        with open(out, "wb") as stdout:
            self.driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=stdout, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 20
        while not (found := re.search(r"started successfully on port (\d+)", out.read_text())):
            assert time.monotonic() < deadline and self.driver.poll() is None, out.read_text()
            time.sleep(0.05)
        self.base = f"http://127.0.0.1:{found[1]}"
        profile = FOLDER / f"profile-{found[1]}"
        options = {"args": [*ARGUMENTS, f"--user-data-dir={profile}"], "binary": "/usr/bin/chromium"}
        capabilities = {"alwaysMatch": {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}}
        made = self._send("POST", "/session", {"capabilities": capabilities})
        self.session = f"/session/{made['sessionId']}"

    def _send(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(error.read().decode()[:1000]) from error

    def go(self, url):
        self._send("POST", f"{self.session}/url", {"url": url})

    def at(self):
        return self._send("GET", f"{self.session}/url")

    def run(self, script, *arguments):
        return self._send("POST", f"{self.session}/execute/sync", {"script": script, "args": arguments})

    def type(self, css, text):
        found = self._send("POST", f"{self.session}/element", {"using": "css selector", "value": css})
        [element] = found.values()
        self._send("POST", f"{self.session}/element/{element}/value", {"text": text})

    def click(self, css):
        found = self._send("POST", f"{self.session}/element", {"using": "css selector", "value": css})
        [element] = found.values()
        self._send("POST", f"{self.session}/element/{element}/click", {})

    def said(self):
        """What pages wrote to the console since the last look."""
        return [line["message"] for line in self._send("POST", f"{self.session}/se/log", {"type": "browser"})]

    def stop(self):
        try:
            self._send("DELETE", self.session)
        except (RuntimeError, OSError):
            pass
        self.driver.terminate()
        self.driver.wait()


class Site(ThreadingHTTPServer):
    """Pages by their paths, and what was reported to `/heard/…`."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.pages, self.heard = {}, []
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        path = urlsplit(self.path).path
        if path.startswith("/heard/"):
            length = int(self.headers.get("Content-Length") or 0)
            self.server.heard.append(unquote(path.removeprefix("/heard/")) + self.rfile.read(length).decode()[:300])
        content_type, text = self.server.pages.get(path, ("text/plain", ""))
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Access-Control-Allow-Origin", "*")
        self.end_headers()
        self.wfile.write(text.encode())

    do_POST = do_GET

    def log_message(self, *_):
        pass
