"""Runs every code block of the documents, and compares what they show with what is answered.

The blocks of a page, or of the pages of a session, run in order, in one shell and one temporary folder, as for a
reader who pastes one after the other. `plan.py` says what is put in the place of ports, keys and providers, what a
block shows that has no command above it, and what cannot be run here. Without arguments all are run, else the named
ones; `--rust FOLDER` only writes the Rust programs of the documents as a project there.
"""

import base64
import json
import os
import random
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import yaml

import plan

ROOT = Path(__file__).resolve().parents[4]
# Seconds for one block. The demo books 90 days of calls first: 15 s alone, and many sessions run at once.
PATIENCE = 600 if "DOCUMENTS_ALL" in os.environ else 240
# The tables of the plan whose rows are for one block each.
TABLES = (
    *("BEFORE", "ANSWERS", "PARTS", "SERVERS", "AROUND", "FAILS"),
    *("EXPECTED", "VARIANTS", "MAPS", "NOT_RUN"),
)
# The leaders of the groups of processes that run.
groups = set()


class Wrong(Exception):
    """What is wrong with a block, in words."""


class Ended(Wrong):
    """Its shell has ended: the blocks behind it cannot run."""


@dataclass
class Block:
    document: str
    line: int
    chapter: str
    section: str
    language: str
    text: str

    def __str__(self):
        return f"{self.document}:{self.line} ({self.language or 'no language'})"


def blocks_of(document):
    """The fenced blocks of a document."""
    blocks, chapter, section, open_block = [], "", "", None
    for number, line in enumerate((ROOT / document).read_text().splitlines(keepends=True), 1):
        if open_block is not None:
            if line.strip() == "```":
                blocks.append(open_block)
                open_block = None
            else:
                open_block.text += line
        elif line.startswith("```"):
            open_block = Block(document, number, chapter, section, line[3:].strip(), "")
        elif line.lstrip().startswith("```"):
            raise Wrong(f"{document}:{number}: an indented fence is read by nobody")
        elif line.startswith("#"):
            section = line.strip()
            chapter = section if line.startswith("## ") else chapter
    if open_block is not None:
        raise Wrong(f"{open_block} does not end")
    return blocks


class Table:
    """A table of the plan: a row is for the one block of a document that has a piece of text."""

    def __init__(self, name, blocks):
        self.rows = {}
        for (document, piece), value in getattr(plan, name).items():
            named = [block for block in blocks if plan.belongs(block.document, document) and piece in block.text]
            if len(named) != 1:
                raise Wrong(f"plan.{name}: {len(named)} blocks of {document} have {piece!r}, not one")
            self.rows[id(named[0])] = value

    def get(self, block, default=None):
        return self.rows.get(id(block), default)


# What is different each time.
VARYING = [
    (r"\b(mch|con|wal|mtr|req|rfs|spk|sec|sbc|cbn|sub|txn|whk|evt|dlv)_[0-9A-Za-z]+…?", r"\1_#"),
    (r"\b(tgs|tgk)_[0-9A-Za-z*]+", r"\1_#"),
    (r"\b(chatcmpl|msg)[-_][0-9a-f]+", r"\1-#"),
    (r"\b\d{4}-\d\d-\d\d( |T)\d\d:\d\d:\d\d(\.\d+)?Z", "#time"),
    (r"(retry-after: |\"created\":|duration_us=|content-length: )\d+", r"\1#"),
    (r"[0-9a-f]{32}", "#trace"),
    (r"127\.0\.0\.1:\d+", "127.0.0.1:#"),
    (r"\b\d+ (wallets|transactions|requests)\b", r"# \1"),
    (r"\s+", " "),
]


def normal(text):
    for pattern, replacement in VARYING:
        text = re.sub(pattern, replacement, text)
    return text.strip()


def lines_of(text):
    """The lines without what varies; the headers of an answer are sorted, since their order means nothing."""
    lines, headers = [], []
    for line in [*map(normal, text.splitlines()), ""]:
        if re.match(r"[a-z0-9-]+: ", line, re.IGNORECASE):
            headers.append(line)
            continue
        lines += sorted(headers, key=str.lower)
        headers = []
        lines += [line] if line else []
    return lines


def compare_lines(shown, real):
    """Every line that is shown was answered, in this order; `…` stands for anything."""
    rest = lines_of(real)
    for line in lines_of(shown):
        pattern = re.compile(".*".join(re.escape(part) for part in re.split(r"\s*…\s*", line)))
        while rest and not pattern.fullmatch(rest[0]):
            rest.pop(0)
        if not rest:
            raise Wrong(f"this line was not answered, or not here: {line}\nThe answer was\n{real[:2000]}")
        rest.pop(0)


def json_of(text):
    """The JSON that a block shows: a value, or the fields of an object, or elements of a list."""
    text = re.sub(r",?\s*…(?=\s*[,}\]])", "", text).strip().rstrip(",")
    for candidate in (text, "{%s}" % text, "[%s]" % text):
        try:
            return json.loads(candidate)
        except ValueError:
            pass
    raise Wrong("it is not JSON, and no part of any")


def values_in(text):
    """Every JSON object and list that stands in a text at the beginning of a line, or behind another one."""
    decoder, values, position = json.JSONDecoder(), [], 0
    while (found := re.compile(r"[{\[]").search(text, position)) is not None:
        try:
            value, position = decoder.raw_decode(text, found.start())
            values.append(value)
        except ValueError:
            position = found.end()
    return values


def compare_json(shown, real, path="", exactly=False):
    """Each field that is shown was answered, with a value of that type; an error's are the same."""
    if type(shown) is not type(real):
        raise Wrong(f"{path or 'the whole'} is {json.dumps(real)[:200]}, not {json.dumps(shown)[:200]}")
    if isinstance(shown, dict):
        for key, value in shown.items():
            if key == "…":
                continue
            if key not in real:
                raise Wrong(f"{path}.{key} was not answered, but {', '.join(real) or 'nothing'}")
            compare_json(value, real[key], f"{path}.{key}", exactly or key == "error")
    elif isinstance(shown, list):
        if len(shown) > len(real) if not exactly else len(shown) != len(real):
            raise Wrong(f"{path} has {len(real)} elements, not {len(shown)}")
        for number, value in enumerate(shown):
            compare_json(value, real[number], f"{path}[{number}]", exactly)
    elif exactly and normal(str(shown)) != normal(str(real)):
        raise Wrong(f"{path} is {real!r}, not {shown!r}")


def refusals_in(shown):
    """The statuses above 399 that a block shows."""
    found = re.findall(r'^HTTP/[\d.]+ (\d{3})|"status":\s*(\d{3})\b', shown, re.MULTILINE)
    # A head and its body say the same.
    heads = [head for head, _ in found if head]
    return [int(one) for one in heads or [body for _, body in found] if int(one) >= 400]


def end_group(leader):
    """Ends a process that leads a group, and all of the group."""
    for kind, patience in ((signal.SIGTERM, 10), (signal.SIGKILL, 5)):
        deadline = time.monotonic() + patience
        try:
            os.killpg(leader.pid, kind)
            while time.monotonic() < deadline:
                leader.poll()
                os.killpg(leader.pid, 0)
                time.sleep(0.02)
        except ProcessLookupError:
            break
    leader.wait()
    groups.discard(leader.pid)


def end_all(*_):
    """At once, when the runner is told to end: its shells are in groups of their own."""
    for group in list(groups):
        os.killpg(group, signal.SIGKILL)
    os._exit(1)


class Session:
    """A shell into which the blocks of a document are pasted."""

    PRELUDE = """
set -euo pipefail
shopt -s inherit_errexit
curl() {
    case " $* " in
        # It looks at the status itself.
        *' -sf '* | *' --fail'*) command curl "$@" ;;
        *) command curl "$@" --write-out '%{stderr}status %{http_code}\\n' 2>>.session/statuses ;;
    esac
}
# What the plan asks for by.
api() {
    curl -s -X "$1" "$BASE/v1/$2" -H "Authorization: Bearer $KEY" -H "Content-Type: application/json" ${3:+-d "$3"}
}
"""

    def __init__(self, variables):
        self.folder = Path(tempfile.mkdtemp(dir=os.environ["DOCUMENTS_FOLDER"]))
        (self.folder / ".session").mkdir()
        for profile in ("dist", "release"):
            programs = self.folder / "target" / profile
            programs.mkdir(parents=True)
            (programs / "tollgate").symlink_to(Path(os.environ["PROGRAM"]).resolve())
        (self.folder / "node_modules").symlink_to(os.environ["DOCUMENTS_NODE_MODULES"])
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TOLLGATE_")}
        stand_ins = Path(__file__).parent / "stand-ins"
        built = Path(os.environ["PROGRAM"]).resolve().parent
        environment["PATH"] = f"{stand_ins}:{programs}:{Path(sys.executable).parent}:{environment['PATH']}:{built}"
        environment |= {"HOME": str(self.folder), "PYTHONUNBUFFERED": "1", "RUST_BACKTRACE": "0"}
        environment |= variables
        self.ends, write = os.pipe()
        self.bash = subprocess.Popen(
            ["bash", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[write],
            cwd=self.folder,
            env=environment,
            start_new_session=True,
        )
        groups.add(self.bash.pid)
        self.write_end = write
        os.close(write)
        self.count = 0
        self.server = None
        self.run(self.PRELUDE)

    def close(self):
        self.stop_server()
        end_group(self.bash)
        os.close(self.ends)
        shutil.rmtree(self.folder)

    def run(self, text, refusals=()):
        """Pastes lines, and answers what they print; the calls that are refused must be these."""
        self.count += 1
        paste, out, err = (self.folder / ".session" / f"{self.count}.{kind}" for kind in ("sh", "out", "err"))
        statuses = self.folder / ".session" / "statuses"
        paste.write_text(text)
        statuses.write_text("")
        # What is started in the background must not keep the pipe open on which the end is told.
        end = self.write_end
        line = f". {paste} >{out} 2>{err} </dev/null {end}>&-; ANSWER=$(cat {out}); echo >&{end}\n"
        try:
            self.bash.stdin.write(line.encode())
            self.bash.stdin.flush()
        except BrokenPipeError:
            raise Ended("the shell has ended before it") from None
        ended, _, _ = select.select([self.ends], [], [], PATIENCE)
        answer = out.read_text(errors="replace") if out.exists() else ""
        said = f"{answer}{err.read_text(errors='replace') if err.exists() else ''}{statuses.read_text()}"[-2000:]
        if not ended:
            raise Ended(f"it does not end within {PATIENCE} s:\n{said}")
        if not os.read(self.ends, 1):
            raise Ended(f"it fails:\n{said}")
        codes = [int(code) for code in re.findall(r"^status (\d{3})$", statuses.read_text(), re.MULTILINE)]
        refused = [code for code in codes if code >= 400 or code == 0]
        if refused != list(refusals):
            raise Wrong(f"calls were refused with {refused}, not {list(refusals)}:\n{said}")
        return answer

    def serve(self, text, wait):
        """Starts what does not end, in place of what was started so before, and waits by these lines."""
        self.stop_server()
        self.run("env -0 >.session/environment")
        variables = (self.folder / ".session" / "environment").read_text().split("\0")
        script, out = (self.folder / ".session" / name for name in ("server.sh", "server.out"))
        script.write_text(text)
        with out.open("w") as file:
            self.server = subprocess.Popen(
                ["bash", script],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                cwd=self.folder,
                env=dict(one.split("=", 1) for one in variables if "=" in one),
                start_new_session=True,
            )
        groups.add(self.server.pid)
        try:
            self.run(wait)
            return self.run(f"cat {out}")
        except Wrong as error:
            raise Ended(f"{error}\nwhat was started said:\n{out.read_text(errors='replace')[-2000:]}") from None

    def stop_server(self):
        if self.server is not None:
            end_group(self.server)
        self.server = None


class Site:
    """The service that documents are about which begin with one that runs, and a merchant there."""

    def __init__(self):
        self.url = os.environ["DOCUMENTS_URL"]
        self.key = os.environ["DOCUMENTS_OPERATOR_TOKEN"]

    def send(self, path, body):
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    def variables(self):
        """What a reader has who comes with a key: each document has a merchant of its own."""
        made = Site()
        made.key = made.send("/v1/operator/merchants", {"name": "Acme"})["secret_key"]
        customer = made.send("/v1/connections", {"name": "Ada"})
        made.send(f"/v1/wallets/{customer['wallet_id']}/credits", {"amount": "100"})
        tiers = [{"start": "0", "rate": "5"}]
        meter = {"name": "Standard", "meter_slug": "standard", "rate_type": "fixed", "tier_type": "tokens_1m"}
        meter = made.send("/v1/meters", meter | {"tiers": tiers})
        key = made.send("/v1/spend_keys", {"name": "App", "wallet_id": customer["wallet_id"]})
        token = {"secret_key": made.key, "connection_id": customer["connection_id"], "meter_slug": "standard"}
        return {
            "BASE": self.url,
            "TOKEN": base64.b64encode(json.dumps(token).encode()).decode(),
            "KEY": made.key,
            "FRESH_KEY": self.send("/v1/operator/merchants", {"name": "Acme"})["secret_key"],
            "CONNECTION": customer["connection_id"],
            "WALLET": customer["wallet_id"],
            "METER": meter["meter_id"],
            "SPEND_KEY": key["key"],
            "SPEND_KEY_ID": key["spend_key_id"],
        }


GIVEN_PORTS = set()


def free_port():
    """A port that nobody has, below those that the system gives to connections."""
    while True:
        port = random.randrange(20_000, 32_000)
        # Another session may have been given it and not use it yet.
        if port in GIVEN_PORTS:
            continue
        with socket.socket() as one:
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
            GIVEN_PORTS.add(port)
            return port


class Commands:
    """What can be typed: the program's subcommands and options, by its own help, and the justfile's recipes."""

    def __init__(self):
        self.helps = {}
        justfile = (ROOT / "justfile").read_text()
        self.recipes = set(re.findall(r"^([a-z][a-z-]*)\b[^:\n]*:(?!=)", justfile, re.MULTILINE))

    def help(self, path):
        if path not in self.helps:
            command = [os.environ["PROGRAM"], *path, "--help"]
            text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            listed = re.search(r"^Commands:\n((?: .*\n)+)", text, re.MULTILINE)
            below = re.findall(r"^  ([a-z][a-z-]*) ", listed[1], re.MULTILINE) if listed else []
            options = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", text.split("\nExamples:")[0]))
            self.helps[path] = set(below), options | {"-V", "--version"}
        return self.helps[path]

    def check(self, line):
        """A command line, maybe with `[…]` and words in capitals in it as documents write them."""
        words = re.split(r"\s(?:\||\|\||&&|;|>|<|&|#)(?:\s|$)", line)[0].split()
        while words and re.fullmatch(r"[A-Z_]+=\S*|\$|exec|sudo", words[0]):
            words.pop(0)
        if words[:1] == ["just"] and len(words) > 1 and words[1] not in self.recipes | {"--list"}:
            raise Wrong(f"the justfile has no recipe {words[1]}")
        if words[:1] != ["tollgate"]:
            return
        path = ()
        for word in words[1:]:
            below, options = self.help(path)
            word = word.strip("[]()…").split("=")[0]
            if word.startswith("-"):
                if word not in options and word != "-":
                    raise Wrong(f"`tollgate {' '.join(path)}` has no option {word}: {line}")
            elif word in below:
                path += (word,)
            elif below and not re.fullmatch(r"[A-Z]*", word):
                raise Wrong(f"`tollgate {' '.join(path)}` has no subcommand {word}: {line}")

    def check_shell(self, text):
        """Lines that are not run: the shell reads them, and knows no more than their form."""
        read = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
        if read.returncode != 0:
            raise Wrong(f"bash cannot read it: {read.stderr}")
        for line in text.replace("\\\n", " ").splitlines():
            # Within a container's command, too.
            self.check(re.sub(r"^.*? tollgate tollgate ", "tollgate ", line.strip()))

    def check_prose(self, document):
        """Commands in backticks, and indented ones."""
        text = re.sub(r"^```.*?^```", "", (ROOT / document).read_text(), flags=re.MULTILINE | re.DOTALL)
        lines = [code.replace("\n", " ") for code in re.findall(r"`([^`]+)`", text)]
        lines += [line.strip() for line in text.splitlines() if line.startswith("    ")]
        commands = [line for line in lines if re.match(r"(\S+=\S* )*(tollgate|just) ", line)]
        for line in commands:
            self.check(line)
        return len(commands)


def pages_of(name):
    """The pages of a session; a page alone is its own."""
    return plan.SESSIONS.get(name, [name])


class Document:
    """The pages of a session, and the shell in which their blocks run."""

    def __init__(self, name, blocks, tables, site):
        self.blocks, self.tables = blocks, tables
        self.text = "\n".join((ROOT / page).read_text() for page in pages_of(name))
        variables = site.variables()
        ports = {name: str(free_port()) for name in ("PORT", "DEMO_PORT", "RECEIVER_PORT", "DATABASE_PORT")}
        now = time.gmtime()
        days = {"TODAY": time.strftime("%Y-%m-%d", now), "NEXT_YEAR": str(now.tm_year + 1)}
        openai = os.environ["DOCUMENTS_OPENAI"]
        providers = {"OPENAI": openai, "SIMULATOR": openai.removesuffix("/v1"), "REPOSITORY": str(ROOT)}
        self.places = variables | ports | days | providers
        self.session = Session({one: variables[one] for one in plan.GIVEN.get(name, ())})
        self.answer = ""

    def filled(self, text):
        """Text of the plan with what stands for `{PORT}` and the like."""
        return re.sub(r"\{([A-Z_]+)\}", lambda found: self.places[found[1]], text)

    def substituted(self, block):
        text = block.text
        for document, language, old, new in plan.SUBSTITUTIONS:
            if plan.belongs(block.document, document) and language in ("*", block.language):
                text = text.replace(old, self.filled(new))
        return text

    def shown_after(self, block):
        """The block that shows what this one answers, if the next one does."""
        following = self.blocks[self.blocks.index(block) + 1 :][:1]
        shows = [
            one
            for one in following
            if one.language in ("json", "text")
            and one.section == block.section
            and not one.text.startswith("$ ")
            and not any(self.tables[name].get(one) for name in ("ANSWERS", "PARTS", "MAPS", "NOT_RUN"))
        ]
        return shows[0] if shows else None

    def run(self, block):
        text = self.substituted(block)
        before = self.tables["BEFORE"].get(block)
        if before is not None:
            self.session.run(self.filled(before))
        if block.language in ("json", "text"):
            self.run_shown(block, text)
        elif block.language == "yaml":
            yaml.safe_load(text)
        elif block.language == "toml":
            self.run_settings(block, text)
        else:
            self.run_program(block, text)
        for piece in self.tables["EXPECTED"].get(block, ()):
            if piece not in self.text or piece not in self.answer:
                raise Wrong(f"the document and the answer do not both say {piece!r}:\n{self.answer[-2000:]}")

    def run_settings(self, block, text):
        """A configuration, or what a manifest says: that one was built by it."""
        if text.startswith("[dependencies]"):
            return
        file = self.session.folder / "settings.toml"
        file.write_text(self.tables["AROUND"].get(block, "%s") % text)
        self.session.run(f"env -u TOLLGATE_CONFIG tollgate config check --config {file}")

    def run_program(self, block, text):
        if block.language == "sh":
            command = text
        else:
            command = self.command(block, text)
        wait = self.tables["SERVERS"].get(block)
        if wait is not None:
            self.answer = self.session.serve(command, self.filled(wait))
            return
        if (status := self.tables["FAILS"].get(block)) is not None:
            command = f"STATUS=0; ({command}) || STATUS=$?; [ $STATUS = {status} ]"
        shown = self.shown_after(block)
        self.answer = self.session.run(command, refusals_in(shown.text) if shown else ())
        for assignments, expected, times in self.tables["VARIANTS"].get(block, ()):
            answer = self.session.run(f"{self.filled(assignments)} {command}")
            if answer.count(expected) != times:
                raise Wrong(f"with {assignments} it does not say {expected!r} {times} times:\n{answer}")

    def command(self, block, text):
        """How the program that a block is is started."""
        if block.language == "rust":
            return os.path.join(os.environ["DOCUMENTS_RUST"], rust_name(block))
        if block.language == "js":
            # Which of the two kinds of module it is shows by how it takes others in.
            suffix, start = ("mjs" if text.startswith("import ") else "cjs"), "node"
        elif block.language == "python":
            suffix, start = "py", "python3"
        else:
            raise Wrong("nothing runs that language")
        # In the folder itself: Node looks for packages from there on.
        file = self.session.folder / f"line-{block.line}.{suffix}"
        file.write_text(text)
        return f"{start} {file}"

    def run_shown(self, block, text):
        part = self.tables["PARTS"].get(block)
        answers = self.tables["ANSWERS"].get(block)
        if part is not None:
            around, command = part
            value = around % re.sub(r",?\s*…", "", text).strip().rstrip(",")
            json.loads(value)
            (self.session.folder / "part.json").write_text(value)
            self.session.run(self.filled(command))
        elif self.tables["MAPS"].get(block):
            for path in re.findall(r"(?<!\S)(?:\.ci|bins|crates|docs|migrations|packaging)/\S*", text):
                if not (ROOT / path).exists():
                    raise Wrong(f"there is no {path}")
        elif text.startswith("$ "):
            for transcript in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
                command, _, printed = transcript.partition("\n")
                compare_lines(printed, self.session.run(f"{{ {command}; }} 2>&1 || true"))
        else:
            if answers is not None:
                self.answer = self.session.run(self.filled(answers), refusals_in(text))
            elif self.blocks.index(block) == 0 or not self.follows(block):
                raise Wrong("the plan does not say what it is the answer to")
            if block.language == "text":
                compare_lines(text, self.answer)
            elif not (real := values_in(self.answer)):
                raise Wrong(f"no JSON was answered:\n{self.answer[-2000:]}")
            else:
                compare_json(json_of(text), real[-1])

    def follows(self, block):
        """Whether the block before it is one whose answer it may show."""
        return self.shown_after(self.blocks[self.blocks.index(block) - 1]) is block


def rust_name(block):
    return f"{Path(block.document).stem}-{block.line}"


def write_rust(folder, blocks):
    """A project with each Rust block as a program; what it needs is what a document says it needs."""
    manifests = [block for block in blocks if block.text.startswith("[dependencies]")]
    manifests = [block.text for block in manifests if not plan.held(block)]
    if len(manifests) != 1:
        raise Wrong("not one block says what the Rust programs need")
    # The service is called without TLS here, and half the time of the build is TLS.
    needs = manifests[0].replace("features", "default-features = false, features")
    lock = (Path(__file__).parent / "Cargo.lock").read_text()
    files = {"Cargo.toml": plan.MANIFEST + needs, "Cargo.lock": lock}
    for block in blocks:
        if block.language == "rust" and not plan.held(block):
            files[f"src/bin/{rust_name(block)}.rs"] = block.text
    shutil.rmtree(folder / "src", ignore_errors=True)
    (folder / "src" / "bin").mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)


def run_document(name, blocks, tables, site, commands):
    """Runs a document; answers how many blocks ran, what did not, and what is wrong."""
    ran, not_run, wrong = 0, [], []
    document = Document(name, blocks, tables, site)
    try:
        for block in blocks:
            try:
                if reason := plan.held(block):
                    not_run.append((block, reason))
                elif reason := tables["NOT_RUN"].get(block):
                    if block.language in ("sh", ""):
                        commands.check_shell(block.text)
                    not_run.append((block, reason))
                else:
                    document.run(block)
                    ran += 1
            except (Wrong, ValueError, yaml.YAMLError) as error:
                wrong.append(f"{block}: {error}")
                if isinstance(error, Ended):
                    wrong[-1] += f"\n  What follows in {name} did not run."
                    break
        try:
            inline = sum(commands.check_prose(page) for page in pages_of(name))
        except Wrong as error:
            wrong.append(f"{name}: {error}")
            inline = 0
    finally:
        document.session.close()
    return ran, not_run, wrong, inline


def check_plan(blocks):
    """Nothing stands in the plan that no block needs; `Table` looks at the rest."""
    everything = [block for of_document in blocks.values() for block in of_document]
    for document, language, old, _ in plan.SUBSTITUTIONS:
        if not any(
            old in one.text and plan.belongs(one.document, document) and language in ("*", one.language)
            for one in everything
        ):
            raise Wrong(f"plan.SUBSTITUTIONS: no block of {document} has {old!r}")
    files = [*ROOT.glob("crates/*/**/*.rs"), *ROOT.glob("bins/tollgate/tests/clients/*.py")]
    sources = "".join(path.read_text() for path in files)
    for row in plan.HELD:
        document, chapter, test = row
        if test not in sources or not any(plan.held(one) for one in everything if one.document == document):
            raise Wrong(f"plan.HELD: {row} holds nothing")
    if strangers := set(plan.GIVEN) - set(blocks):
        raise Wrong(f"plan.GIVEN: there is no {strangers}")


def main(arguments):
    pages = [str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("docs/**/*.md"))]
    pages += [str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("crates/*/README.md"))]
    joined = {page for session in plan.SESSIONS.values() for page in session}
    names = [*plan.SESSIONS, "README.md", "CONTRIBUTING.md", *(page for page in pages if page not in joined)]
    blocks = {name: [block for page in pages_of(name) for block in blocks_of(page)] for name in names}
    everything = [block for name in names for block in blocks[name]]
    if arguments[:1] == ["--rust"]:
        write_rust(Path(arguments[1]), everything)
        return 0
    tables = {name: Table(name, everything) for name in TABLES}
    check_plan(blocks)
    site, commands, wrong, total = Site(), Commands(), [], 0
    # The longest begins first, and the others run beside it.
    names = sorted(arguments or names, key=lambda name: -len(blocks[name]))
    with ThreadPoolExecutor(2) as pool:
        results = pool.map(lambda name: run_document(name, blocks[name], tables, site, commands), names)
    for name, (ran, not_run, mistakes, inline) in zip(names, results, strict=True):
        print(f"{name}: {ran} blocks run, {len(not_run)} not, {inline} commands in the text looked up")
        reasons = {}
        for block, reason in not_run:
            reasons.setdefault(reason, []).append(str(block.line))
        for reason, lines in reasons.items():
            print(f"    not run, line {', '.join(lines)}: {reason}")
        for mistake in mistakes:
            print(f"  WRONG {mistake}", flush=True)
        wrong += mistakes
        total += ran
    print(f"{total} blocks run, {len(wrong)} wrong")
    return 1 if wrong or total == 0 else 0


if __name__ == "__main__":
    for kind in (signal.SIGINT, signal.SIGTERM):
        signal.signal(kind, end_all)
    try:
        sys.exit(main(sys.argv[1:]))
    except Wrong as error:
        sys.exit(f"documents: {error}")
