"""The archive in a folder and in a bucket, as the program writes it, and as DuckDB reads it."""

import csv
import io
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from decimal import Decimal

import boto3
import duckdb

program, filler, moto_server, folder = sys.argv[1:]
RECORDS = 3000


def configuration(name, archive_url, endpoint=None):
    """A configuration with a copy of the database."""
    database = f"{folder}/{name}.db"
    shutil.copy(f"{folder}/filled.db", database)
    lines = [
        f'database_url = "sqlite:{database}"',
        f'archive_url = "{archive_url}"',
        "records_keep_days = 20",
    ]
    if endpoint:
        lines.append(f'archive_endpoint = "{endpoint}"')
    path = f"{folder}/{name}.toml"
    with open(path, "w") as file:
        file.write("\n".join(lines) + "\n")
    os.chmod(path, 0o600)
    return path


def tollgate(config, *arguments, status=0, **environment):
    done = subprocess.run(
        [program, "--config", config, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == status, f"{arguments}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout if status == 0 else done.stderr


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


def records(config, merchants, **environment):
    """All records of the merchants, by CSV."""
    all_records = []
    for merchant in merchants:
        text = tollgate(config, "requests", "--merchant", merchant, "--csv", **environment)
        all_records += csv.DictReader(io.StringIO(text))
    return all_records


def check_archive(config, merchants, before, **environment):
    ran = json.loads(tollgate(config, "archive", "run", "--json", **environment))
    assert ran["waits"] is None and len(ran["sealed"]) >= 2, ran
    listed = lines(tollgate(config, "archive", "list", "--json", **environment))
    assert [month["month"] for month in listed] == [month["month"] for month in ran["sealed"]]
    tollgate(config, "archive", "verify", **environment)
    audit = json.loads(tollgate(config, "audit", "--archive", "--json", **environment))
    assert audit["differences"] == [] and audit["requests"] == RECORDS, audit
    here = json.loads(tollgate(config, "audit", "--json"))
    left = sum(month["records"] for month in listed)
    assert here["differences"] == [] and here["requests"] == RECORDS - left, (here, left)
    assert records(config, merchants, **environment) == before, "the records have changed"
    return listed


def check_duckdb(connection, path, months, before):
    """The sums by DuckDB are those of the manifests and of the records."""
    rows = connection.execute(
        f"""SELECT month, count(*), sum(total_request_cost), sum(model_usage_input_tokens)
            FROM read_parquet('{path}/requests/*/*.parquet', hive_partitioning = true) GROUP BY month ORDER BY month"""
    ).fetchall()
    assert [(month, count) for month, count, *_ in rows] == [
        (month["month"], month["records"]) for month in months
    ], rows
    for month, _, cost, tokens in rows:
        of_month = [one for one in before if one["created_at"].startswith(month)]
        assert cost == sum(Decimal(one["total_request_cost"]) for one in of_month), (month, cost)
        assert tokens == sum(int(one["model_usage.input_tokens"]) for one in of_month)
    kinds = dict(
        connection.execute(
            f"SELECT column_name, column_type FROM (DESCRIBE FROM read_parquet('{path}/requests/*/*.parquet'))"
        ).fetchall()
    )
    assert kinds["total_request_cost"] == "DECIMAL(38,10)", kinds
    assert kinds["created_at"] == "TIMESTAMP WITH TIME ZONE", kinds
    assert kinds["model_usage_input_tokens"] == "BIGINT", kinds
    # Every field of the CSV is a column, with `_` for the dots; the breakdown of the fee is in the outcome.
    names = {name.replace(".", "_") for name in before[0]} - {"fee_breakdown"}
    assert names <= set(kinds), names - set(kinds)


subprocess.run([filler, f"sqlite:{folder}/filled.db", str(RECORDS), "fill"], check=True)

config = configuration("local", f"file://{folder}/archive")
merchants = [one["merchant_id"] for one in lines(tollgate(config, "merchant", "list", "--json"))]
before = records(config, merchants)
assert len(before) == RECORDS
months = check_archive(config, merchants, before)
connection = duckdb.connect()
connection.execute("SET TimeZone = 'UTC'")
check_duckdb(connection, f"{folder}/archive", months, before)
manifest = json.load(open(f"{folder}/archive/manifests/{months[0]['month']}.json"))
sums = manifest["sums"]["requests"]
cost = sum(Decimal(of_merchant["total_request_cost"]) for of_merchant in sums.values())
(sum_of_files,) = connection.execute(
    f"SELECT sum(total_request_cost) FROM '{folder}/archive/requests/month={months[0]['month']}/*.parquet'"
).fetchone()
assert cost == sum_of_files
print(f"a folder: {len(months)} months, as DuckDB reads them")

with open(f"{folder}/focus.csv", "w") as file:
    file.write(tollgate(config, "export", "focus", "--month", months[1]["month"]))
with open(f"{folder}/focus.csv") as file:
    exported = list(csv.DictReader(file))
of_month = [one for one in before if one["created_at"].startswith(months[1]["month"])]
for column, field in [("BilledCost", "total_request_cost"), ("ListCost", "model_usage.total_cost")]:
    total = sum(Decimal(row[column]) for row in exported)
    assert total == sum(Decimal(one[field]) for one in of_month), (column, total)

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
endpoint = f"http://127.0.0.1:{port}"
server = subprocess.Popen(
    [moto_server, "-H", "127.0.0.1", "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
)
try:
    for _ in range(300):
        try:
            urllib.request.urlopen(f"{endpoint}/moto-api/").close()
            break
        except OSError:
            time.sleep(0.1)
    keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}
    os.environ.update({**keys, "AWS_DEFAULT_REGION": "us-east-1"})
    bucket = boto3.client("s3", endpoint_url=endpoint)
    bucket.create_bucket(Bucket="records")
    config = configuration("bucket", "s3://records/tollgate/prod", endpoint)
    in_bucket = check_archive(config, merchants, before)
    paths = [one["Key"] for one in bucket.list_objects_v2(Bucket="records")["Contents"]]
    assert all(path.startswith("tollgate/prod/") for path in paths), paths
    assert [month["files"] for month in in_bucket] == [month["files"] for month in months]
    # The files are the same as in the folder.
    for path in paths:
        if path.endswith(".parquet"):
            content = bucket.get_object(Bucket="records", Key=path)["Body"].read()
            local = open(f"{folder}/archive/{path.removeprefix('tollgate/prod/')}", "rb").read()
            assert content == local, path
    later = configuration("later", "s3://records/tollgate/other", endpoint)
finally:
    server.terminate()
    server.wait()

# Without the server, nothing is lost and nothing is deleted.
began = time.monotonic()
error = tollgate(later, "archive", "run", "--json", status=1)
assert "the archive cannot be reached" in error, error
assert json.loads(tollgate(later, "audit", "--json"))["requests"] == RECORDS
error = tollgate(config, "requests", "--merchant", merchants[0], "--csv", status=1)
assert "store_unavailable" in error, error
took = time.monotonic() - began
# Each gives up after seconds, but other stages compute meanwhile.
assert took < 180, took
print(f"a bucket: {len(in_bucket)} months; without its server the commands fail, after {took:.0f} s together")
