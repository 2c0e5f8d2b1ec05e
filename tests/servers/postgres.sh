#!/bin/sh
# A private PostgreSQL 15 on 127.0.0.1:PORT, the reference that answers are compared with.
#
#   postgres.sh start PORT [DIR]    starts it (installs Debian's postgresql when missing or old), waits until it answers
#   postgres.sh stop  PORT [DIR]    stops it and removes DIR
#   postgres.sh url   PORT          prints its URL
#
# User `postgres`, database `postgres`, no password, C collation, UTC, fsync off unless FSYNC=on, compiled expressions unless JIT=off.
# DIR defaults to a folder of its own under $TMPDIR. Nothing outside DIR is touched; a server that Debian's
# package may have started on 5432 is left alone.
set -eu
command=${1:?usage: postgres.sh start|stop|url PORT [DIR]}
port=${2:?usage: postgres.sh start|stop|url PORT [DIR]}
dir=${3:-${TMPDIR:-/tmp}/telesto-postgres-$port}
bin=/usr/lib/postgresql/15/bin
# Answers are compared with those of this minor release: older ones change rows through views that do not show them.
least=15.20

# Whether what is installed is older than that.
is_old() {
    version=$($bin/postgres --version | sed -n 's/^postgres (PostgreSQL) \([0-9.]*\).*/\1/p')
    [ "$(printf '%s\n' "$least" "$version" | sort -V | head -n 1)" != "$least" ]
}

# PostgreSQL refuses to run as root: as root, run it as the package's own user.
as_owner() {
    if [ "$(id -u)" = 0 ]; then runuser -u postgres -- "$@"; else "$@"; fi
}

case $command in
url)
    echo "postgres://postgres@127.0.0.1:$port/postgres?sslmode=disable"
    ;;
start)
    # Another test may be installing it, or something else: nobody begins with half of it.
    lock="${XDG_RUNTIME_DIR:-/tmp}/telesto-setup-$(id -u).lock"
    exec 9>"$lock"
    flock -w 1200 9 || { echo "another installation does not end; see who holds $lock" >&2; exit 1; }
    if [ ! -x $bin/postgres ] || is_old; then
        if [ "$(id -u)" != 0 ]; then
            echo "PostgreSQL $least or a later 15 is not installed; install Debian's package postgresql-15" >&2
            exit 1
        fi
        apt-get update -q >&2 9>&- || {
            echo "apt-get update failed; is the network up? Or install Debian's package postgresql-15 by hand" >&2
            exit 1
        }
        # Do not let the package create and start a cluster of its own.
        mkdir -p /etc/postgresql-common
        [ -e /etc/postgresql-common/createcluster.conf ] ||
            echo 'create_main_cluster = false' > /etc/postgresql-common/createcluster.conf
        DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends postgresql-15 >&2 9>&- || {
            echo "apt-get install postgresql-15 failed; install it by hand" >&2
            exit 1
        }
        if is_old; then
            echo "Debian gives no PostgreSQL 15 from $least on here; install one by hand" >&2
            exit 1
        fi
    fi
    exec 9>&-
    if [ ! -d "$dir/data" ]; then
        mkdir -p "$dir"
        [ "$(id -u)" != 0 ] || chown postgres "$dir"
        as_owner $bin/initdb -D "$dir/data" -U postgres -A trust -E UTF8 --locale=C --no-sync >/dev/null
    fi
    as_owner $bin/pg_ctl -D "$dir/data" -l "$dir/log" -w -t 30 -o "-p $port -k $dir -c listen_addresses=127.0.0.1 \
        -c fsync=${FSYNC:-off} -c jit=${JIT:-on} -c timezone=UTC -c log_timezone=UTC -c max_connections=50" start >/dev/null || {
        tail -n 20 "$dir/log" >&2
        exit 1
    }
    "$0" url "$port"
    ;;
stop)
    if [ -d "$dir/data" ]; then
        as_owner $bin/pg_ctl -D "$dir/data" -m immediate -w stop >/dev/null 2>&1 || true
        # Tens of thousands of small files: minutes, on some disks. Nobody waits for it.
        gone=$(mktemp -d "$dir.gone-XXXXXX")
        mv "$dir" "$gone"
        nohup rm -rf "$gone" >/dev/null 2>&1 </dev/null &
    fi
    ;;
*)
    echo "unknown command $command; use start, stop or url" >&2
    exit 2
    ;;
esac
