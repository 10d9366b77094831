"""Runs each client of clients.py through each case, and prints a table of clients and cases."""

import argparse
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from clients import CLIENTS, EXCEPTIONS, OPENAI, QUIET
from wire import Wire

HERE = Path(__file__).parent
DOCS = HERE.parents[3] / "docs" / "guides" / "clients"
URL = os.environ["CLIENTS_TESTS_URL"]
ENVIRONMENTS = Path(os.environ["CLIENTS_TESTS_ENVIRONMENTS"])
PATIENCE = 60  # seconds for a call

# Refusals: status, code, rules of the key, and what is done with the key before.
REFUSALS = {
    "401 malformed": (401, "auth_invalid", {}, "misspell"),
    "401 unknown": (401, "auth_invalid", {}, "delete"),
    "402 limit": (402, "spend_limit_reached", {"spend_limit": {"amount": "0.0000000001", "cycle": "daily"}}, "use"),
    "402 wallet": (402, "wallet_balance_insufficient", {}, "empty"),
    "403 model": (403, "spend_key_model_not_allowed", {"allowed_models": ["none"]}, ""),
    "403 paused": (403, "spend_key_paused", {"status": "paused"}, ""),
    "429 requests": (429, "request_limit_reached", {"request_limit": {"count": 1, "cycle": "monthly"}}, "use"),
    "429 rate": (429, "rate_limited", {"rate_limit": {"rpm": 30, "burst": 1}}, "use up"),
}
CALLS = {
    f"{form} {enforcement}": (streamed, enforcement)
    for form, streamed in (("whole", False), ("streamed", True))
    for enforcement in ("bounded", "strict")
}
CASES = [*CALLS, *REFUSALS]


class Failed(Exception):
    """What a client did not do, in a word and at length.

    "call": it got no answer. "usage": it shows another usage than the record. "record": the record is not right.
    "wire": it was not refused as it should be. "message": it ends and does not show the message. "retries": it shows
    the message and does not end in time. "silent": it does neither.
    """

    def __init__(self, kind, said):
        super().__init__(said)
        self.kind = kind


class Merchant:
    """A merchant with a customer, and the spend keys that draw on the customer's wallet."""

    def __init__(self):
        operator = os.environ["CLIENTS_TESTS_OPERATOR_TOKEN"]
        self._key = send("POST", "/v1/operator/merchants", operator, {"name": "Clients"})["secret_key"]
        self._wallet = self._new_wallet()
        self._send("POST", f"/v1/wallets/{self._wallet}/credits", {"amount": "1000"})

    def _send(self, method, path, body=None):
        return send(method, path, self._key, body)

    def _new_wallet(self):
        return self._send("POST", "/v1/connections", {})["wallet_id"]

    def new_key(self, rules, prepare=""):
        wallet = self._new_wallet() if prepare == "empty" else self._wallet
        made = self._send("POST", "/v1/spend_keys", {"name": "Client", "wallet_id": wallet} | rules)
        if prepare == "misspell":
            made["key"] = made["key"][:-1] + ("a" if made["key"][-1] != "a" else "b")
        elif prepare == "delete":
            self._send("DELETE", f"/v1/spend_keys/{made['spend_key_id']}")
        elif prepare == "use":
            self.use(made)
        return made

    def use(self, key):
        messages = [{"role": "user", "content": "Say hi."}]
        send("POST", "/v1/chat/completions", key["key"], {"model": OPENAI, "messages": messages})

    def records(self, key):
        """The records of a key's calls, when all of them have ended."""
        deadline = time.monotonic() + 10
        while True:
            newest = self._send("GET", "/v1/requests?limit=20")["data"]
            found = [one for one in newest if one["spend_key_id"] == key["spend_key_id"]]
            if all(one["status"] != "pending" for one in found) or time.monotonic() > deadline:
                return [self._send("GET", f"/v1/requests/{one['request_id']}") for one in found]
            time.sleep(0.05)


def send(method, path, key, body=None):
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(URL + path, data, headers, method=method)) as answer:
        return json.load(answer)


def environment(client, home):
    """The variables of a client's process: nothing of this process, and a home of its own."""
    programs = [ENVIRONMENTS / client.environment / "bin", ENVIRONMENTS / "node" / "node_modules" / ".bin"]
    programs += [ENVIRONMENTS / "python" / "bin", "/usr/local/bin", "/usr/bin", "/bin"]
    nowhere = "http://127.0.0.1:9"
    return QUIET | {
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "NO_COLOR": "1",
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
        "HTTP_PROXY": nowhere,
        "HTTPS_PROXY": nowhere,
        "PATH": ":".join(map(str, programs)),
        "PYTHONPYCACHEPREFIX": os.environ["PYTHONPYCACHEPREFIX"],
        "TERM": "dumb",
    }


def end(process):
    """Ends a process and what it started: it leads a group."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


class Library:
    """A library, in a process that makes one call after the other."""

    def __init__(self, client, home):
        self.client, self.home, self.process = client, home, None

    def _start(self):
        if self.client.environment == "node":
            # Node looks for packages from the file's folder on.
            script = ENVIRONMENTS / "node" / "libraries.mjs"
            shutil.copy(HERE / "libraries.mjs", script)
            command = ["node", script]
        else:
            command = [ENVIRONMENTS / self.client.environment / "bin" / "python", HERE / "libraries.py"]
        self.errors = (self.home / "errors.txt").open("w+")
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            cwd=self.home,
            env=environment(self.client, self.home),
            start_new_session=True,
        )

    def call(self, url, key, streamed, patience, counted):
        if self.process is None:
            self._start()
        job = {"client": self.client.name, "url": url, "key": key, "model": self.client.model, "streamed": streamed}
        self.process.stdin.write(json.dumps(job).encode() + b"\n")
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], patience)
        line = self.process.stdout.readline() if ready else b""
        if not line:
            self.close()
            said = (self.home / "errors.txt").read_text()[-2000:]
            raise Failed("silent", f"it did not end within {patience} s\n{said}")
        answer = json.loads(line)
        if not counted:
            return answer.get("error", f"no error, but {answer}")
        if "error" in answer:
            raise Failed("call", answer["error"])
        return answer["text"], answer["input"], answer["output"]

    def close(self):
        if self.process is not None:
            end(self.process)
            self.process.stdin.close()
            self.process.stdout.close()
            self.errors.close()
        self.process = None


class Program:
    """A program that is started for each call, in a home of its own."""

    def __init__(self, client, home):
        self.client, self.home = client, home

    def call(self, url, key, streamed, patience, counted):
        client = self.client
        home = Path(tempfile.mkdtemp(dir=self.home))
        work = home / "work"
        work.mkdir()
        files, lines = dict(client.files), []
        if client.page:
            files, lines = pasted(*client.page, url, key)
        else:
            files = {path: text.format(url=url, key=key) for path, text in files.items()}
        for path, text in files.items():
            path = Path(path.replace("~", str(home)))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        command = [client.command.format(model=client.model)]
        command += [] if streamed else [client.whole]
        command += [client.counted] if counted else []
        script = "\n".join(["set -e", *lines, " ".join(command)])
        variables = {name: value.format(url=url, key=key) for name, value in client.variables.items()}
        process = subprocess.Popen(
            ["bash", "-c", script],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if not counted else subprocess.PIPE,
            cwd=work,
            env=environment(client, home) | variables,
            start_new_session=True,
        )
        try:
            out, errors = (one or b"" for one in process.communicate(timeout=patience))
        except subprocess.TimeoutExpired as late:
            end(process)
            said = b"".join(process.communicate()[:1]) or late.stdout or b""
            said = said.decode(errors="replace")[-2000:]
            raise Failed("silent", f"it did not end within {patience} s\n{said}") from None
        finally:
            end(process)
        out = out.decode(errors="replace")
        if not counted:
            return out
        try:
            return client.read(out)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            said = f"{out[-1500:]}\n{errors.decode(errors='replace')[-1500:]}"
            raise Failed("call", f"{error!r} in what it printed\n{said}") from None

    def close(self):
        pass


def pasted(page, chapter, paths, url, key):
    """The files and lines that a page has in a chapter, for this service and key."""
    text = re.search(rf"^## {re.escape(chapter)}\n(.*?)(?=^## |\Z)", (DOCS / page).read_text(), re.M | re.S)[1]
    text = text.replace("https://tollgate.example.com", url).replace("tgk_…", key)
    files, lines = {}, []
    for language, block in re.findall(r"^```(\w+)\n(.*?)^```$", text, re.M | re.S):
        if language == "sh":
            # The program itself is started with other arguments.
            lines += [line for line in block.splitlines() if not re.fullmatch(r"claude|codex|gemini|opencode", line)]
        else:
            files[paths[language]] = block
    return files, lines


def plain(text):
    """Text without what a terminal or JSON puts into it, and without white space: programs break lines."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\\n", "").replace("\\", "")
    return re.sub(r"\s+", "", text)


def transcript(exchanges):
    """The last two exchanges."""
    return "\n".join(f"--- {one}" for one in exchanges[-2:])


def check_call(user, wire, merchant, streamed, enforcement):
    key = merchant.new_key({"enforcement": enforcement})
    try:
        text, used_input, used_output = user.call(wire.url, key["key"], streamed, PATIENCE, True)
    except Failed as error:
        raise Failed(error.kind, f"{error}\n{transcript(wire.exchanges())}") from None
    if "asimulatedmodel" not in plain(text):
        raise Failed("call", f"the answer is {text!r}\n{transcript(wire.exchanges())}")
    records = merchant.records(key)
    if not records or any(one["status"] != "completed" for one in records):
        raise Failed("record", f"the records are {records}")
    used = [(one["model_usage"]["input_tokens"], one["model_usage"]["output_tokens"]) for one in records]
    if isinstance(used_input, str):
        used = [(f"{sent / 1000:.1f}k", received) for sent, received in used]
    if (used_input, used_output) not in used:
        raise Failed("usage", f"it saw {used_input} and {used_output}, the records have {used}")


def check_refusal(user, wire, merchant, streamed, status, code, rules, prepare):
    key = merchant.new_key(rules, prepare)
    before = len(merchant.records(key))
    if prepare == "use up":
        # The bucket is empty for two seconds, and a program may need longer than that until it calls.
        wire.first(lambda: merchant.use(key))
    began, said, late = time.monotonic(), "", None
    try:
        said = user.call(wire.url, key["key"], streamed, user.client.refused_within, False)
    except Failed as error:
        late = error
    took = time.monotonic() - began
    exchanges = wire.exchanges()
    refused = [one for one in exchanges if (one.status, one.error.get("code")) == (status, code)]
    if not refused:
        raise Failed("wire", f"nothing was refused with {status} {code}; it says\n{said or late}\n{transcript(exchanges)}")
    shown = any(plain(one.error["message"]) in plain(said or str(late)) for one in refused)
    if late is not None:
        kind = "retries" if shown else "silent"
        raise Failed(kind, f"{late}\nafter {len(exchanges)} requests\n{transcript(exchanges)}")
    if prepare == "use up" and "asimulatedmodel" in plain(said):
        return  # It waited as long as it was asked to.
    if not shown:
        what = f"{refused[-1].error['message']!r} is not in what it says after {took:.1f} s"
        raise Failed("message", f"{what}\n{said[-2000:]}\n{transcript(exchanges)}")
    if len(merchant.records(key)) != before + (prepare == "use up"):
        raise Failed("record", "a refused call has a record")


def check(client, case, user, wire, merchant):
    """Why a case failed, in a word and at length; "" when it did not, "none" when the client has no such form."""
    if case in CALLS:
        streamed, enforcement = CALLS[case]
        if streamed not in client.forms:
            return "none", ""
        checks = [lambda: check_call(user, wire, merchant, streamed, enforcement)]
    else:
        checks = [
            lambda streamed=streamed: check_refusal(user, wire, merchant, streamed, *REFUSALS[case])
            for streamed in client.forms
        ]
    for one in checks:
        wire.begin()
        try:
            one()
        except Failed as error:
            return error.kind, str(error)
        except urllib.error.HTTPError as error:
            return "wire", f"{error.url}: {error.code} {error.read().decode(errors='replace')}"
    return "", ""


def run_client(client, cases):
    """The outcomes of a client's cases, and how long they took."""
    home = Path(tempfile.mkdtemp(dir=os.environ["CLIENTS_TESTS_FOLDER"]))
    user = (Program if client.command else Library)(client, home)
    address = urlsplit(URL)
    wire, merchant = Wire((address.hostname, address.port)), Merchant()
    began = time.monotonic()
    try:
        return {case: check(client, case, user, wire, merchant) for case in cases}, time.monotonic() - began
    finally:
        user.close()


def verdict(client, case, kind):
    """What stands in the table, and whether it is right."""
    expected = EXCEPTIONS.get((client.name, case), ("", ""))[0]
    if kind == "none":
        return "–", True
    # Whether a client repeats a call before or after the two seconds of that case is a matter of chance.
    if kind == expected or (not kind and case == "429 rate"):
        return (f"({kind})" if kind else "ok"), True
    return (kind.upper() if kind else "NOT NEEDED"), False


def versions():
    """What is installed, by the files that pin it."""
    found = {}
    for file in HERE.glob("requirements*.txt"):
        environment = file.stem.removeprefix("requirements").removeprefix("-") or "python"
        for name, version in re.findall(r"^([\w.-]+)==(\S+)", file.read_text(), re.M):
            found[environment, name] = version
    package = json.loads((HERE / "package.json").read_text())
    for name, version in (package["dependencies"] | package["devDependencies"]).items():
        found["node", name] = version
    return found


def unsaid():
    """What docs/guides/clients/index.md does not say of the clients and the exceptions."""
    page, pinned = (DOCS / "index.md").read_text(), versions()
    rows = [
        f"| {client.name} | {pinned[client.environment, client.package]} | {client.base_url} |" for client in CLIENTS
    ]
    behaviours = {}
    for (name, case), (_, reason) in EXCEPTIONS.items():
        behaviours.setdefault((name, reason), []).append(case)
    rows += [f"| {name} | {', '.join(cases)} | {reason} |" for (name, reason), cases in behaviours.items()]
    missing = [row for row in rows if row not in page]
    return [f"docs/guides/clients/index.md has no line\n{line}" for line in missing]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--short", action="store_true", help="a few clients, bounded calls")
    parser.add_argument("clients", nargs="*", help="names of clients, or beginnings of them; all when left out")
    arguments = parser.parse_args()
    chosen = CLIENTS
    if arguments.short:
        # Other tests run beside these, and a program may need ten seconds to start.
        chosen = [replace(one, refused_within=3 * one.refused_within) for one in CLIENTS if one.short]
    if arguments.clients:
        chosen = [one for one in chosen if one.name.lower().startswith(tuple(map(str.lower, arguments.clients)))]
    cases = [case for case in CASES if not (arguments.short and case.endswith(" strict"))]
    unknown = set(EXCEPTIONS) - {(one.name, case) for one in CLIENTS for case in CASES}
    faults = unsaid() + [f"clients.EXCEPTIONS: there is no {one}" for one in unknown]
    print(f"{'':30}{''.join(f'{case:>18}' for case in cases)}")
    passed = 0
    with ThreadPoolExecutor(2) as pool:
        for client, (outcomes, took) in zip(chosen, pool.map(lambda one: run_client(one, cases), chosen), strict=True):
            cells = []
            for case, (kind, said) in outcomes.items():
                cell, right = verdict(client, case, kind)
                cells.append(f"{cell:>18}")
                passed += right and kind != "none"
                if not right:
                    said = said or "clients.EXCEPTIONS has a row for it"
                    faults.append(f"{client.name}, {case}: {cell}\n{said}")
            print(f"{client.name:30}{''.join(cells)}  {took:.0f} s", flush=True)
    for fault in faults:
        print(f"\n=== {fault}")
    failed = len(faults)
    print(f"\n{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
