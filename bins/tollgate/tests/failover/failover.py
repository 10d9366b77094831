"""Kills the primary of a replicated PostgreSQL while 64 callers call, and looks for every answer.

Usage: failover.py synchronous|asynchronous PROGRAM PROVIDER FOLDER SECONDS
"""

import http.client
import json
import os
import pathlib
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

REPLICATION, PROGRAM, PROVIDER, FOLDER, SECONDS = sys.argv[1:]
FOLDER, SECONDS = pathlib.Path(FOLDER), float(SECONDS)
IS_SYNCHRONOUS = {"synchronous": True, "asynchronous": False}[REPLICATION]
CALLERS, NODES = 64, 2
# From the moment at which the new primary takes writes, in seconds.
MUST_ANSWER_WITHIN = 10
BIN = max(pathlib.Path("/usr/lib/postgresql").glob("*/bin"))
processes = []


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def start(name, *command, as_postgres=False, **environment):
    """Starts a process in a group of its own."""
    if as_postgres and os.geteuid() == 0:
        command = ["runuser", "-u", "postgres", "--", *command]
    log = open(FOLDER / f"{name}.log", "wb")
    process = subprocess.Popen(
        command, stdout=log, stderr=log, env=os.environ | environment, start_new_session=True
    )
    processes.append(process)
    return process


def soon(what, condition, within=60):
    """Waits until `condition` is true, and answers it."""
    deadline = time.monotonic() + within
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what} took longer than {within} s; see {FOLDER}"
        time.sleep(0.05)
    return found


def is_answered(url):
    try:
        with urllib.request.urlopen(url, timeout=1) as response:
            return response.status == 200
    except OSError:
        return False


class Server:
    """A PostgreSQL server that Patroni runs."""

    def __init__(self, number, etcd):
        self.name, self.port, self.rest = f"server-{number}", free_port(), free_port()
        self.data = FOLDER / self.name
        users = {"superuser": {"username": "postgres"}, "replication": {"username": "replicator"}}
        settings = {
            "scope": "tollgate",
            "name": self.name,
            "restapi": {"listen": f"127.0.0.1:{self.rest}", "connect_address": f"127.0.0.1:{self.rest}"},
            "etcd3": {"hosts": f"127.0.0.1:{etcd}"},
            "bootstrap": {
                "dcs": {
                    "ttl": 20,
                    "loop_wait": 1,
                    "retry_timeout": 3,
                    "synchronous_mode": IS_SYNCHRONOUS,
                    "postgresql": {"use_pg_rewind": False, "parameters": {"max_connections": 100}},
                },
                "initdb": [{"encoding": "UTF8"}, {"auth": "trust"}],
            },
            "postgresql": {
                "listen": f"127.0.0.1:{self.port}",
                "connect_address": f"127.0.0.1:{self.port}",
                "data_dir": str(self.data),
                "bin_dir": str(BIN),
                "pgpass": str(FOLDER / f"{self.name}.pgpass"),
                "authentication": users,
                "pg_hba": ["local all all trust", "host all all 127.0.0.1/32 trust",
                           "host replication all 127.0.0.1/32 trust"],
                "parameters": {"unix_socket_directories": str(FOLDER)},
            },
        }
        # YAML has JSON within it.
        (FOLDER / f"{self.name}.yml").write_text(json.dumps(settings))
        self.process = start(self.name, "patroni", str(FOLDER / f"{self.name}.yml"), as_postgres=True)

    def is_primary(self):
        return is_answered(f"http://127.0.0.1:{self.rest}/primary")

    def is_standby(self):
        kind = "synchronous" if IS_SYNCHRONOUS else "replica"
        return is_answered(f"http://127.0.0.1:{self.rest}/{kind}")

    def query(self, sql):
        command = [BIN / "psql", "-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres", "-tAc", sql]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()

    def children(self):
        """PostgreSQL's processes: Patroni gives them a session of their own."""
        postmaster = int((self.data / "postmaster.pid").read_text().split()[0])
        return [postmaster] + [
            int(line.split()[0])
            for line in subprocess.run(
                ["ps", "-o", "pid=", "--ppid", str(postmaster)], capture_output=True, text=True
            ).stdout.splitlines()
        ]

    def kill(self):
        """As a machine that loses its power."""
        kill_group(self.process, signal.SIGKILL)
        for pid in self.children():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def wal_receiver(self):
        return int(self.query("SELECT pid FROM pg_stat_wal_receiver"))


def kill_group(process, with_signal):
    try:
        os.killpg(process.pid, with_signal)
    except ProcessLookupError:
        pass


def configure(number, servers):
    hosts = ",".join(f"127.0.0.1:{server.port}" for server in servers)
    config = FOLDER / f"node-{number}.toml"
    config.write_text(f"""
listen = "127.0.0.1:0"
database_url = "postgres://postgres@{hosts}/tollgate?target_session_attrs=read-write"
journal_dir = "{FOLDER}/journal-{number}"
operator_token = "an-operator-token-of-the-failover-test"
[providers.openai]
base_url = "{PROVIDER}"
api_key = "simulated"
allow_private_network = true
""")
    config.chmod(0o600)
    return str(config)


def start_node(number, servers):
    config = configure(number, servers)
    start(f"node-{number}", PROGRAM, "serve", "--config", config)
    log = FOLDER / f"node-{number}.log"
    soon(f"node {number}", lambda: "listens on http://" in log.read_text())
    return log.read_text().split("listens on http://")[1].split()[0]


def tollgate(config, *command):
    done = subprocess.run([PROGRAM, *command, "--config", config], capture_output=True, text=True)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


def send(node, method, path, key, body=None):
    request = urllib.request.Request(
        f"http://{node}{path}",
        None if body is None else json.dumps(body).encode(),
        {"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
        method=method,
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


class Callers:
    """Callers that call until they are stopped, and note every whole answer."""

    def __init__(self, nodes, key):
        self.nodes, self.key = nodes, key
        # The time of each answer, the id of its record.
        self.answers, self.refused, self.ends = [], 0, threading.Event()
        self.threads = [threading.Thread(target=self.call, args=(number,)) for number in range(CALLERS)]
        for thread in self.threads:
            thread.start()

    def call(self, number):
        host = self.nodes[number % len(self.nodes)]
        body = json.dumps({
            "model": "gpt-4o-mini", "max_tokens": 20, "messages": [{"role": "user", "content": "Hello"}],
        })
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        connection = http.client.HTTPConnection(host, timeout=60)
        while not self.ends.is_set():
            try:
                connection.request("POST", "/v1/chat/completions", body, headers)
                response = connection.getresponse()
                response.read()
                if response.status == 200:
                    self.answers.append((time.monotonic(), response.headers["x-service-request-id"]))
                else:
                    assert response.status == 503, response.status
                    self.refused += 1
                    time.sleep(0.25)
            except (OSError, http.client.HTTPException):
                connection.close()
        connection.close()

    def stop(self):
        self.ends.set()
        for thread in self.threads:
            thread.join()


def main():
    FOLDER.mkdir(mode=0o755)
    if os.geteuid() == 0:
        shutil.chown(FOLDER, pwd.getpwnam("postgres").pw_uid)
    client, peer = free_port(), free_port()
    urls = [f"http://127.0.0.1:{port}" for port in (client, peer)]
    start("etcd", "etcd", "--data-dir", str(FOLDER / "etcd"), "--name", "etcd",
          "--listen-client-urls", urls[0], "--advertise-client-urls", urls[0],
          "--listen-peer-urls", urls[1], "--initial-advertise-peer-urls", urls[1],
          "--initial-cluster", f"etcd={urls[1]}", as_postgres=True, ETCD_UNSUPPORTED_ARCH="arm64")
    soon("etcd", lambda: is_answered(f"{urls[0]}/health"))
    primary = Server(1, client)
    soon("the first primary", primary.is_primary)
    standby = Server(2, client)
    soon("the standby", standby.is_standby)
    primary.query("CREATE DATABASE tollgate")

    nodes = [start_node(number, [primary, standby]) for number in range(NODES)]
    config = str(FOLDER / "node-0.toml")
    merchant = json.loads(tollgate(config, "merchant", "create", "Failover", "--json"))
    key = merchant["secret_key"]
    callers = Callers(nodes, key)
    time.sleep(SECONDS)
    stopped, arrived = None, len(callers.answers)
    if not IS_SYNCHRONOUS:
        # The standby lacks what is committed from now on. A call takes less than half a second.
        stopped = standby.wal_receiver()
        os.kill(stopped, signal.SIGSTOP)
        time.sleep(0.5)
        arrived = len(callers.answers)
        time.sleep(1)
    killed = time.monotonic()
    primary.kill()
    if stopped:
        os.kill(stopped, signal.SIGCONT)
    before = len(callers.answers)
    soon("the new primary", standby.is_primary)
    promoted = time.monotonic()
    # The answers of now may belong to calls that were admitted before.
    soon("an answer after the failover", lambda: callers.answers[-1][0] > promoted, MUST_ANSWER_WITHIN)
    back = next(at for at, _ in callers.answers if at > promoted)
    time.sleep(SECONDS)
    callers.stop()
    time.sleep(5)

    ids = [request_id for _, request_id in callers.answers]
    assert len(set(ids)) == len(ids)
    found = {}
    after = None
    while True:
        page = send(nodes[0], "GET", "/v1/requests?limit=100" + (f"&cursor={after}" if after else ""), key)
        for record in page["data"]:
            found[record["request_id"]] = record
        if not page["has_more"]:
            break
        after = page["next_cursor"]
    lost = [one for one in ids if found.get(one, {}).get("status") != "completed"]
    pending = [one for one in found.values() if one["status"] == "pending"]
    again = sum("booked again" in (FOLDER / f"node-{number}.log").read_text() for number in range(NODES))
    print(
        f"{REPLICATION}: {len(ids)} answers, {before} of them before; the primary was replaced after "
        f"{promoted - killed:.1f} s without {before - arrived} of them, and a call was answered {back - promoted:.1f} s later; "
        f"{len(lost)} answers lost, {len(pending)} calls open, {callers.refused} refused meanwhile"
    )
    assert arrived > 100 and len(ids) > before
    assert IS_SYNCHRONOUS or before > arrived, "the standby lacked nothing"
    assert lost == [], lost[:10]
    assert pending == [], pending[:3]
    assert again > 0, "no node has noticed the failover"
    tollgate(config, "audit")


try:
    main()
finally:
    for process in reversed(processes):
        kill_group(process, signal.SIGTERM)
    deadline = time.monotonic() + 15
    for process in processes:
        try:
            process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            kill_group(process, signal.SIGKILL)
