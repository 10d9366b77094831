# Runs a PostgreSQL server for as long as its owner lives, then leaves nothing behind.
# Arguments: the owner's process id, the directory, the lock file, the directory of the programs, the
# server's options.
owner=$1 dir=$2 lock=$3 bin=$4 options=$5

alive() {
    # Not kill -0: this shell may run as another user than the owner, who could then not be told
    # from a process that has gone. And one that has ended but was not waited for is gone too.
    if [ -r /proc/self/stat ]; then
        { read -r stat <"/proc/$owner/stat"; } 2>/dev/null || return 1
        case ${stat##*) } in Z* | X*) return 1 ;; esac
    else
        ps -p "$owner" >/dev/null
    fi
}

clean_up() {
    "$bin/pg_ctl" stop -D "$dir/data" -m immediate
    rm -rf "$dir" "$lock"
    exit
}

# Also when asked to end: the server must not be left alone.
trap clean_up TERM INT HUP

{
    "$bin/initdb" -D "$dir/data" --username=postgres --auth=trust --encoding=UTF8 --locale=C \
        --no-sync --no-instructions &&
    "$bin/pg_ctl" start -w -D "$dir/data" -l "$dir/server.log" -o "-c listen_addresses='' \
        -c unix_socket_directories='$dir' -c max_connections=200 $options"
} >"$dir/start.log" 2>&1 && echo ready

# Whoever waits for the line above must not wait for this shell.
exec >/dev/null 2>&1
# A server that a test has stopped comes back.
while alive && { [ -e "$dir/stopped" ] || "$bin/pg_ctl" status -D "$dir/data"; }; do sleep 1; done
clean_up
