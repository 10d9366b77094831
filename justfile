# What is done often. `just --list` shows it.

# Run the demo: a temporary store, simulated providers, curl lines to paste.
demo:
    cargo run --release -- demo

# Run all tests; PostgreSQL's run where its binaries are installed.
test:
    cargo test --workspace

# Run the official SDKs of both formats against the program; needs python3, and PyPI once.
sdk:
    bins/tollgate/tests/sdk/run

# Run every code block of the documents; `just documents api` those of one session, `just documents --all` the
# benchmarks, too. Needs python3, node, openssl, sqlite3 and PostgreSQL, and once PyPI, the npm registry and crates.io.
documents *what:
    bins/tollgate/tests/documents/run {{what}}

# Show the documentation as a site at http://127.0.0.1:8000; needs python3, and PyPI once.
site:
    scripts/site serve

# Lint the prose of documents, help, pages and OpenAPI; `just prose --fix` corrects what it can. Needs python3 and
# node, and once the npm registry.
prose *options:
    bins/tollgate/tests/prose/run {{options}}

# Validate the Kubernetes manifests, and run the compose file's nodes; needs python3, nginx, and PyPI once.
deploy:
    bins/tollgate/tests/deploy/run

# Read the archive by DuckDB and from S3, and validate the FOCUS export; needs python3, and PyPI once.
engines:
    bins/tollgate/tests/engines/run

# Kill the primary of a replicated PostgreSQL under load; needs python3, and Debian's patroni and etcd-server.
failover seconds="10":
    bins/tollgate/tests/failover/run {{seconds}}

# Lint the OpenAPI document, and call the program with clients that are generated from it; needs python3 and node.
generated:
    bins/tollgate/tests/generated/run

# Use the dashboard in Chromium: five tasks, every form twice, and axe; needs node, and once the npm registry.
browser *files:
    bins/tollgate/tests/browser/run {{files}}

# Everything a change must pass.
ci:
    .ci/run

# Fuzz what is read from strangers: `just fuzz sse 600`; also json_stream, frames, urls. Needs a
# nightly compiler and cargo-fuzz. What is found is written to fuzz/artifacts.
fuzz target seconds="600":
    mkdir -p fuzz/corpus/{{target}}
    cargo +nightly fuzz run --sanitizer none {{target}} fuzz/corpus/{{target}} fuzz/seeds/{{target}} -- \
        -max_total_time={{seconds}} -max_len=8192 -timeout=10 -dict=fuzz/words.dict

# Fuzz every operation of the OpenAPI document against the program: `just fuzz-http 600`; needs python3,
# and PyPI once.
fuzz-http seconds="600":
    bins/tollgate/tests/fuzz/run {{seconds}}

# Write the examples of the OpenAPI document anew, as the program answers them; needs python3.
examples:
    scripts/openapi-examples/run

# Build the container image; needs Docker.
image:
    docker build --build-arg COMMIT=$(git rev-parse --short=12 HEAD) -t tollgate .

# Format and lint.
tidy:
    cargo fmt --all
    cargo clippy --workspace --all-targets -- -D warnings

# How long a quote takes.
bench:
    cargo bench -p tollgate-pricing

# Count the instructions of what is done for every call; `just instructions --accept` accepts them.
instructions *options:
    scripts/instructions {{options}}

# What a call costs beside nginx and beside no proxy at all; `just bench-proxy --database postgres`.
bench-proxy *options:
    cargo run --profile dist -p tollgate-bench -- proxy {{options}}

# What the ledger takes of a call, by thread, with nothing around it: `just bench-ledger 64 600 4 3000` for 64 callers,
# ten minutes, four pairs of metadata, 3,000 calls a second.
bench-ledger callers="16" seconds="5" pairs="0" rate="0":
    cargo run --release -p tollgate-store --example ledger -- {{callers}} {{seconds}} {{pairs}} {{rate}}

# How that cost grows with bodies, spend keys and records, and what refusals cost.
bench-growth *options:
    cargo run --profile dist -p tollgate-bench -- bodies keys records refusals {{options}}

# What several nodes on one PostgreSQL do.
bench-nodes *options:
    cargo run --profile dist -p tollgate-bench -- nodes --database postgres {{options}}

# What calls cost while events wait for receivers that are dead.
bench-webhooks *options:
    cargo run --profile dist -p tollgate-bench -- webhooks {{options}}

# Voice sessions on WebSockets beside calls, and idle sockets; `just bench-sockets --database postgres`.
bench-sockets *options:
    cargo run --profile dist -p tollgate-bench -- sockets {{options}}

# How long lists and sums take among many records: `just bench-lists sqlite:/tmp/lists.db 1000000`.
bench-lists url records *words:
    cargo run --release -p tollgate-store --example lists -- {{url}} {{records}} {{words}}

# The long forms of the tests of docs/RELIABILITY.md: `just soak 10` makes random calls for ten minutes,
# and lets a thousand clients read a kilobyte a second, a line of 2 GB pass, nodes die thirty times and under
# thousands of jobs, and the store be away for half a minute.
soak minutes="10":
    SOAK_SECONDS=$(({{minutes}} * 60)) SOAK_CLIENTS=1000 SOAK_CLIENT_SECONDS=60 SOAK_LINE_MB=2048 \
        cargo test --release -p tollgate --test program -- soak:: --nocapture --test-threads=1
    KILLS=30 OUTAGE_SECONDS=30 \
        cargo test --release -p tollgate --test program -- deaths:: outage:: --nocapture --test-threads=1
    JOBS=3000 cargo test --release -p tollgate --test program -- jobs:: --nocapture --test-threads=1
    RACE_SEEDS=100 cargo test --release -p tollgate-store --test faults
    RACE_SEEDS=100 cargo test --release -p tollgate-store --test store -- spend_keys:: subscription_races:: subscription_model::

# What is built into Tollgate, as CycloneDX: bins/tollgate/tollgate.cdx.json. Needs cargo-cyclonedx.
sbom:
    cargo cyclonedx --format json --manifest-path bins/tollgate/Cargo.toml

# Check licences, bans and sources of the dependencies; needs cargo-deny.
deny:
    cargo deny check bans licenses sources

# Compare the prices of random calls with an independent implementation; needs python3, and PyPI once.
oracle *seed:
    scripts/oracle/run {{seed}}

# Make the built-in prices anew from the price lists that `scripts/prices.env` names.
catalog:
    scripts/catalog/run
