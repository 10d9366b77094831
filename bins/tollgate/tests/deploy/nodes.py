"""Runs two nodes, PostgreSQL over TLS and nginx, as the compose file in a folder configures them, and calls through nginx.

Usage: nodes.py PROGRAM FOLDER. The environment is that of a node.
"""

import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

PROGRAM, FOLDER = sys.argv[1], pathlib.Path(sys.argv[2])
SECRETS = FOLDER / "secrets"
BIN = max(pathlib.Path("/usr/lib/postgresql").glob("*/bin"))
processes = []


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def start(*command, as_postgres=False):
    if as_postgres and os.geteuid() == 0:
        command = ["runuser", "-u", "postgres", "--", *command]
    processes.append(subprocess.Popen([str(word) for word in command]))
    return processes[-1]


def get(port, path, key=None, method="GET", body=None):
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers, method=method)
    with urllib.request.urlopen(request, timeout=20) as response:
        return response.read()


def soon(what, try_it, within=60):
    deadline = time.monotonic() + within
    while True:
        try:
            return try_it()
        except (OSError, subprocess.CalledProcessError):
            assert time.monotonic() < deadline, f"{what} takes too long"
            time.sleep(0.1)


def start_database(port):
    """PostgreSQL with the certificate of the secrets, and a user who needs TLS and a password."""
    data = FOLDER / "database"
    data.mkdir()
    (FOLDER / "password").write_text((SECRETS / "database_password").read_text())
    for name in ("database.pem", "database.key"):
        shutil.copy(SECRETS / name, FOLDER / name)
    for path in (FOLDER, data, FOLDER / "password", FOLDER / "database.pem", FOLDER / "database.key"):
        path.chmod(0o700 if path.is_dir() else 0o600)
        if os.geteuid() == 0:
            shutil.chown(path, "postgres")
    as_user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    subprocess.run([*as_user, BIN / "initdb", "-D", data, "-U", "tollgate", "--auth=scram-sha-256",
                    f"--pwfile={FOLDER}/password"], check=True, stdout=subprocess.DEVNULL)
    (data / "pg_hba.conf").write_text("hostssl all all 127.0.0.1/32 scram-sha-256\n")
    start(BIN / "postgres", "-D", data, "-p", str(port), "-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={FOLDER}",
          "-c", "ssl=on", "-c", f"ssl_cert_file={FOLDER}/database.pem", "-c", f"ssl_key_file={FOLDER}/database.key",
          "-c", "log_min_messages=fatal", as_postgres=True)
    # The database of the user, as the image makes it.
    password = {"PGPASSWORD": (SECRETS / "database_password").read_text().strip()}
    create = [BIN / "createdb", "-h", "127.0.0.1", "-p", str(port), "-U", "tollgate", "tollgate"]
    soon("PostgreSQL", lambda: subprocess.run(create, check=True, env=os.environ | password, stderr=subprocess.DEVNULL))


def node_config(number, port, database):
    """The configuration of a node, with this machine's places."""
    own = FOLDER / f"node-{number}"
    own.mkdir()
    # The certificate is for the name `database`, which only the containers know.
    url = (SECRETS / "database_url").read_text()
    assert "@database/" in url and "verify-full" in url
    url = url.replace("@database/", f"@127.0.0.1:{database}/").replace("verify-full", "verify-ca")
    (own / "database_url").write_text(url.replace("/run/secrets/authority", str(SECRETS / "authority.pem")))
    text = (FOLDER / "tollgate.toml").read_text()
    text = text.replace("0.0.0.0:8080", f"127.0.0.1:{port}").replace("/run/secrets/database_url", str(own / "database_url"))
    text = text.replace("/run/secrets/", f"{SECRETS}/").replace("/var/lib/tollgate", str(own))
    (own / "tollgate.toml").write_text(text)
    (own / "tollgate.toml").chmod(0o600)
    return own / "tollgate.toml"


def main():
    for variable in ("TOLLGATE_LISTEN", "TOLLGATE_JOURNAL_DIR"):
        # These are places in the container; the configuration under test has its own.
        os.environ.pop(variable, None)
    database, balancer, ports = free_port(), free_port(), [free_port(), free_port()]
    start_database(database)
    configs = [node_config(number, port, database) for number, port in enumerate(ports)]
    nodes = [start(PROGRAM, "--config", config, "serve") for config in configs]
    nginx = (FOLDER / "nginx.conf").read_text()
    for number, port in enumerate(ports):
        nginx = nginx.replace(f"node-{number + 1}:8080", f"127.0.0.1:{port}")
    nginx = nginx.replace("listen 8080", f"listen 127.0.0.1:{balancer}")
    (FOLDER / "nginx.conf").write_text(f"pid {FOLDER}/nginx.pid;\nerror_log stderr warn;\n{nginx}")
    nginx = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    start(nginx, "-p", FOLDER, "-c", FOLDER / "nginx.conf", "-g", "daemon off;")
    for port in [*ports, balancer]:
        soon("a node", lambda: get(port, "/readyz"))

    made = subprocess.run([PROGRAM, "--config", configs[0], "--json", "merchant", "create", "Shop"],
                          check=True, capture_output=True, text=True)
    key = json.loads(made.stdout)["secret_key"]
    for _ in range(4):
        get(balancer, "/v1/connections", key, "POST", {})
    # One node ends, and the other one answers.
    nodes[0].terminate()
    assert nodes[0].wait(60) == 0
    for _ in range(4):
        get(balancer, "/v1/connections", key, "POST", {})
    connections = json.loads(get(ports[1], "/v1/connections?limit=100", key))["data"]
    assert len(connections) == 8, len(connections)
    print("two nodes behind nginx: 8 operations, 4 of them after one node has ended")


try:
    main()
finally:
    for process in reversed(processes):
        process.terminate()
    for process in processes:
        process.wait(60)
