#!/usr/bin/env bash
# Starts a node on ./telesto-data, imports a real Wikipedia dump, shows a few queries with their answers, latencies and
# dollars, and leaves the server running. DEMO_EXIT=1 stops it at the end.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/setup.sh
need_rust
need_debian curl curl ca-certificates
listen="${DEMO_LISTEN:-127.0.0.1:5433}" http="${DEMO_HTTP:-127.0.0.1:8080}" data="$(realpath -m "${DEMO_DATA:-./telesto-data}")"
url="postgres://telesto@$listen/telesto"

build_demo
telesto="${TELESTO_BIN:-$CARGO_TARGET_DIR/debug/telesto}"
dump="$(scripts/fetch_dump.sh)"

say "starting: telesto start --bucket file://$data/bucket --listen $listen --http $http"
log="$(mktemp)"
# Dollars as if the bucket were S3 Standard: a local folder costs nothing.
"$telesto" start --bucket "file://$data/bucket" --data-dir "$data/node" --listen "$listen" --http "$http" --prices s3-standard >"$log" 2>&1 &
node=$!
stop() { kill "$node" 2>/dev/null || return 0; wait "$node" 2>/dev/null || return 0; }
trap stop EXIT
healthy() { kill -0 "$node" 2>/dev/null || { cat "$log" >&2; die "the node ended; see above"; }; curl -fsS "http://$http/health"; }
wait_for 120 healthy || { cat "$log" >&2; die "the node does not answer on http://$http/health"; }
cat "$log"

say "importing a real English Wikipedia dump (206 pages with their text, links and categories)"
"$DEMO" import mediawiki "$dump" --url "$url"

ask() {
    say "$1"
    "$telesto" sql --url "$url" --timing --command "$2"
}
ask "what is in it" "SELECT (SELECT count(*) FROM wiki_page) AS pages, (SELECT count(*) FROM wiki_link) AS links, (SELECT count(*) FROM wiki_category) AS categories"
ask "a page by its title (key path: unique index)" "SELECT page_id, title, latest_revision FROM wiki_page WHERE title = 'Anarchism'"
ask "backlinks: which pages link to Aristotle (key path: secondary index)" "SELECT from_page FROM wiki_link WHERE to_title = 'Aristotle' ORDER BY from_page"
ask "the most linked titles (DataFusion)" "SELECT to_title, count(*) AS links FROM wiki_link GROUP BY to_title ORDER BY links DESC, to_title LIMIT 5"
ask "the largest categories with a member of each (DataFusion)" "SELECT c.category, count(*) AS pages, min(p.title) AS first FROM wiki_category c JOIN wiki_page p ON p.page_id = c.page_id GROUP BY c.category ORDER BY pages DESC, c.category LIMIT 5"
ask "what a query does and costs" "EXPLAIN ANALYZE SELECT title FROM wiki_page WHERE page_id = 12"
ask "a transaction: rename a page; its backlinks move with it" "BEGIN; UPDATE wiki_page SET title = 'Anarchism (philosophy)' WHERE page_id = 12; UPDATE wiki_link SET to_title = 'Anarchism (philosophy)' WHERE to_title = 'Anarchism'; SELECT count(*) AS backlinks FROM wiki_link WHERE to_title = 'Anarchism (philosophy)'; ROLLBACK"
ask "a write that is acknowledged when the bucket has it, and its price (a quorum log alone makes no request)" "SET telesto.durability = bucket; UPDATE wiki_page SET title = 'Anarchism' WHERE page_id = 12"
say "requests and dollars so far, by what caused them (S3 Standard prices)"
curl -fsS "http://$http/metrics" | grep -E '^telesto_bucket_(requests|dollars)' | sort

if [ "${DEMO_EXIT:-0}" = 1 ]; then
    say "stopping (DEMO_EXIT=1)"
    kill "$node"; wait "$node"
    trap - EXIT
    echo "done"
else
    trap - EXIT
    say "the node goes on (process $node). Try:"
    echo "   psql 'host=${listen%:*} port=${listen#*:} user=telesto dbname=telesto sslmode=disable'"
    echo "   $telesto sql --url $url"
    echo "   $DEMO wiki --url $url      to read and edit the wiki in a browser"
    echo "   curl http://$http/metrics"
    echo "   kill $node    to stop it; kill -9 loses nothing either"
fi
