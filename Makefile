# Telesto. Every target does its own set-up; see README.md.
SHELL := /bin/bash
export CARGO_TARGET_DIR ?= $(HOME)/.cache/telesto/target
SEED ?= 1
SECONDS ?= 60

.PHONY: help demo demo-cluster demo-regions demo-two-regions demo-social test soak regress bench bench-field bench-geo bench-regions bench-s3db bench-failover bench-cluster bench-cloudtps bench-scalaris bench-commit bench-encryption bench-instructions dist lint sim sim-geo fuzz console-assets build clean

help: ## list the targets
	@grep -E '^[a-z0-9-]+:.*##' Makefile | sed -E 's/^([a-z0-9-]+):.*## /  make \1\t/'

demo: ## start a node on ./telesto-data, import a real Wikipedia dump, show queries with latency and dollars
	@scripts/demo.sh

demo-cluster: ## three nodes on this machine and a load; one is killed every ten seconds: what clients see of it
	@scripts/demo_cluster.sh

demo-regions: ## three regions on this machine, with links as slow as between continents; one is cut off and comes back
	@scripts/demo_regions.sh

demo-two-regions: ## the bookstore in two regions on this machine, an application server in each; checked in both at the end
	@scripts/demo_two_regions.sh

demo-social: ## a social network in seven regions on this machine: users, placement and links of Saturn's evaluation
	@scripts/demo_social.sh

test: ## every test: unit, simulation, SQL against PostgreSQL, S3 servers, drivers, kill -9
	@scripts/test.sh

soak: ## the long versions of what make test runs briefly: make soak, or make soak STAGES="sim middlebox"
	@scripts/soak.sh $(STAGES)

regress: ## PostgreSQL's own regression files beside PostgreSQL 15: make regress FILES="privileges boolean" OUT=folder
	@REGRESS_DIFFERENCES=$(OUT) tests/e2e/regress.sh $(FILES)

bench: ## benchmarks, as ratios measured side by side in one run
	@scripts/bench.sh

bench-field: ## TPC-H, TPC-C, YCSB, SmallBank and TATP beside PostgreSQL 15, in turns: make bench-field ARGS='--parts "tpch tpcc" --rounds 5'
	@scripts/bench_field.sh $(ARGS)

bench-geo: ## the causal planes between regions beside Saturn's figures: tables, and plots in OUT
	@cargo run --release --quiet -p telesto-geo-bench -- --out $(or $(OUT),$(CARGO_TARGET_DIR)/bench-geo)

bench-regions: ## the causal planes on real regions of this machine beside Saturn's throughput (Figures 5 and 8a): make bench-regions ARGS="--regions 3"
	@scripts/bench_regions.sh $(ARGS)
bench-s3db: ## dollars and seconds of each level of consistency beside "Building a Database on S3": tables, and plots in OUT
	@cargo run --release --quiet -p telesto-s3db-bench -- --out $(or $(OUT),$(CARGO_TARGET_DIR)/bench-s3db) $(ARGS)
bench-failover: ## for how long commits stop when a node of three fails, by the way it fails: make bench-failover RUNS=9 (takes root)
	@scripts/bench_failover.sh

bench-cluster: ## messages, bytes, syncs, requests and processor time of a transaction on 1, 3 and 5 nodes; then beside etcd by one client
	@scripts/bench_cluster.sh

bench-cloudtps: ## joins, updates, a cluster that grows and failures over time beside CloudTPS' figures: make bench-cloudtps OUT=folder ARGS="--nodes 1,3"
	@OUT="$(OUT)" scripts/bench_cloudtps.sh $(ARGS)

bench-scalaris: ## reads and increments by number of nodes and clients beside Scalaris' figures, and a node that is killed: make bench-scalaris OUT=folder
	@OUT="$(OUT)" scripts/bench_scalaris.sh $(ARGS)

bench-commit: ## what an entry of the log takes until two of three nodes have it, beside a round trip, a sync and bare threads
	@cargo run --release --quiet -p telesto-commit-bench -- $(ARGS)

bench-encryption: ## throughput with and without encryption, in turns on one machine
	@scripts/bench_encryption.sh

bench-instructions: ## instructions of a session for a statement, counted by valgrind: the same whatever else the machine does
	@scripts/bench_instructions.sh

lint: ## rustfmt, clippy, rustdoc, house rules, licences
	@scripts/lint.sh

sim: ## replay one simulation seed: make sim SEED=7, or SEED=7 SQL=1
	@cargo run --quiet -p telesto-sim -- --seed $(SEED) $(if $(SQL),--sql) --verbose

sim-geo: ## replay one seed of the regions' simulation: make sim-geo SEED=7
	@cargo run --quiet -p telesto-geo-sim -- --seed $(SEED) --verbose

fuzz: ## hostile input for longer than make test: make fuzz SECONDS=60 TARGETS="sql key"
	@fuzz/run.sh $(SECONDS) $(TARGETS)

console-assets: ## the console's scripts and styles anew, from crates/console/web
	@tests/e2e/console_assets.sh --write

build: ## the telesto binary, development profile
	@cargo build -p telesto

dist: ## a release archive with checksums and, beside it, its debug information and the demos: make dist OUT=folder
	@scripts/dist.sh $(OUT)

clean: ## remove build products
	@cargo clean
