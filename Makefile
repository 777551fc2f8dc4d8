# Targets people type. Everything a target needs is set up by tools/setup, once; a second run does no set-up.
PY := .venv/bin/python
comma := ,
# Marks of the whole suite, and of what a contributor runs before each commit; the other marks have targets of their own.
SUITE := not dist and not ui and not kube and not failover and not islands and not karmada_programs and not netem and not nodes and not upgrade
SELECT := $(SUITE) and not cilium and not slow
# Python that is formatted and linted.
CODE := src lab tests tools benchmarks examples conftest.py

.PHONY: $(shell sed -n 's/^\([a-z][a-z-]*\):.*/\1/p' Makefile)
.DEFAULT_GOAL := help
help: ## list every target
	@sed -n 's/^\([a-z][a-z-]*\):[^#]*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | sort | awk -F '\t' '{ printf "make %-19s %s\n", $$1, $$2 }'

demo: setup ## run the main job: three clusters, one export, sixty calls
	@[ "$$(id -u)" = 0 ] || $(PY) -c 'from isthmus_lab import confinement; exit(bool(confinement.missing()))' || tools/setup envoy
	@$(PY) -m isthmus lab demo

demo-failover: setup ## where policies send calls while clusters fail: tiers, weights, routes, a canary, cuts under load
	@tools/setup envoy
	@$(PY) -m isthmus lab demo --story failover

demo-islands: setup ## two flat clusters and two islands: local, flat, island; a gateway killed, calls refused
	@tools/setup envoy
	@$(PY) -m isthmus lab demo --story islands

demo-karmada: setup karmada-tools ## Karmada's own programs place, scale, move and lose an app under load (needs Go)
	@$(PY) -m isthmus lab demo --story karmada

demo-lb: setup ## load balancing step by step, with tables and maps: no cluster, no root
	@$(PY) -m examples.load_balancing

test: setup-test ## what to run before each commit: each room's quick tests and a story in a lab; no Go. SELECT="marks" TESTS="paths"
	@$(PY) -m pytest -m "$(SELECT)" --numprocesses auto --dist loadscope --no-loadscope-reorder $(TESTS)

# The rooms in which versions of Python differ: tasks, time-outs, sockets and processes.
ROOMS := $(addprefix tests/,running statedb reflector statefile bounds config fair expressions model etcd kube admin health clusterset dns)
test-python: ## the quick tests of rooms in which versions of Python may differ, on another one: VERSION=3.13
	@tools/setup python $(or $(VERSION),3.13)
	@.cache/python-$(or $(VERSION),3.13)/bin/python -m pytest -m "$(SELECT) and not lab" --numprocesses auto --dist loadscope --no-loadscope-reorder $(or $(TESTS),$(ROOMS))

test-all: setup-all ## everything that this machine can run: the whole suite, the real Kubernetes, Cilium's and Karmada's programs, islands
	@tools/test-all "$(SUITE)"

test-dist: setup-test ## what `make dist` builds: twice the same, installable without a compiler
	@tools/setup dist
	@$(PY) -m pytest -q -m dist tests/tools/test_dist.py

ui: ## bundle the libraries of the page of `isthmus ui` from npm, as tools/ui/package-lock.json pins them
	@tools/ui/build

test-ui: setup-test ## the page of `isthmus ui` in Debian's Chromium: each view, a failover watched live, hostile names, 500 services
	@tools/setup ui
	@timeout -s INT -k 60 $(or $(MINUTES),5)m $(PY) -m pytest -rA --tb=short -m ui tests/ui

screenshots: setup-test ## docs/images/ui-*.png: the failover story on the page of `isthmus ui`, in a lab (root)
	@tools/setup ui
	@PYTHONPATH=tests/support $(PY) tools/screenshots.py

test-kube: setup-test ## the suites on a real kube-apiserver, on Cilium's programs, built first where they are missing (needs Go), and on Karmada's where these are built
	@tools/test-kube

test-nodes: setup-test ## the whole life on two clusters with real kubelets: install, join, call, upgrade, remove; built first where parts are missing (needs root, Go and Debian)
	@tools/test-nodes

test-upgrade: setup-test ## the previous release's processes beside today's, there and back under 200 calls/s and 1,000 held connections; MINUTES=10
	@timeout -s INT -k 60 $(or $(MINUTES),10)m tools/test-upgrade

check: setup-dev ## format, lint, types, import contracts, the decoding boundary, reference pages, the Helm chart, links of the documentation
	@.venv/bin/ruff format --check $(CODE)
	@.venv/bin/ruff check $(CODE)
	@.venv/bin/mypy
	@.venv/bin/lint-imports --no-cache
	@$(PY) tools/boundary.py
	@$(PY) tools/reference.py --check
	@$(PY) tools/chart.py --check
	@NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict -d .cache/site

docs: setup-dev ## build the documentation as a site: site/index.html
	@NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict

reference: setup-dev ## write docs/configuration.md, docs/api.md and docs/metrics.md from the code
	@$(PY) tools/reference.py

chart: setup-dev ## write the Helm chart deploy/chart from the bases and components of deploy/
	@$(PY) tools/chart.py

format: setup-dev ## let ruff write the files
	@.venv/bin/ruff format $(CODE)
	@.venv/bin/ruff check --fix $(CODE)

setup: ## what `make demo` needs
	@tools/setup run

setup-dev: ## what `make check` needs
	@tools/setup dev

setup-test: ## what `make test` needs
	@tools/setup test

setup-all: ## what `make test-all` needs, where there is Go: the real Kubernetes, Cilium's and Karmada's programs (twenty minutes, once)
	@tools/setup all

dist: ## the release of the commit that is checked out: wheels, sdist, SBOM and checksums in dist/
	@tools/setup dist
	@.cache/dist/bin/python tools/dist.py dist

images: ## the images of the commit that is checked out, for amd64 and arm64, in dist/images: BASE=python:3.12-slim-bookworm@sha256:… (needs buildah)
	@python3 tools/images.py dist/images --base $(or $(BASE),$(error BASE names the image to begin with, by its digest)) $(IMAGES)

bpf: ## compile the datapath
	@tools/setup bpf

mutate: setup-dev ## take the rule of each load-balancing scenario and test of trust out of a copy of the code, make each slip in it, and see the test fail: SCENARIOS="name…"
	@$(PY) tools/mutate.py $(SCENARIOS)

mutants: setup-test ## random edits of the code, each against its package's tests and others that import its module: SEED=1 N=40 PACKAGES="etcd kube"
	@$(PY) tools/mutants.py --select "$(SUITE) and not lab" $(if $(SEED),--seed $(SEED)) -n $(or $(N),40) $(PACKAGES)

bench: ## one of the benchmarks below, by the name that follows bench-: NAME=connect
	@$(MAKE) -s bench-$(or $(NAME),lb)

bench-lb: setup ## what load balancing costs, from objects to map entries: SHAPE=imports SERVICES=50000 ROUNDS=5 REFERENCE="PATH ARGUMENTS"
	@$(PY) benchmarks/bench_lb.py $(if $(SHAPE),--shape $(SHAPE)) $(if $(SERVICES),--services $(SERVICES)) \
		$(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(REFERENCE),--reference '$(REFERENCE)')

bench-apart: setup ## how much faster a second process for the maps would be, at most: SERVICES=50000 ROUNDS=5
	@$(PY) benchmarks/bench_apart.py $(if $(SERVICES),--services $(SERVICES)) $(if $(ROUNDS),--rounds $(ROUNDS))

bench-policy: setup-dev ## what a policy over 1,000 backends costs the planner, with its target
	@PYTHONPATH=tests/support $(PY) benchmarks/bench_policy.py

bench-policy-change: setup-test ## from the PATCH of a policy to its effect on all nodes, in a lab, with its target: TIMES=20 NODES=4
	@PYTHONPATH=tests/support $(PY) benchmarks/bench_policy_change.py --times $(or $(TIMES),20) --nodes $(or $(NODES),4)

bench-dns: setup-test ## names answered by the kernel, our server and CoreDNS (dnsperf; CoreDNS of make kube-tools): SECONDS=5
	@PYTHONPATH=tests/support SECONDS_EACH=$(or $(SECONDS),5) $(PY) benchmarks/bench_dns.py

bench-names: setup-test ## in a lab: from a deleted import to NXDOMAIN, and what a pod's first question gets: TIMES=20
	@PYTHONPATH=tests/support $(PY) benchmarks/bench_names.py --times $(or $(TIMES),20)

bench-connect: setup-test ## a call by our hooks, kube-proxy's rules and proxies, as ratios to a direct one: CALLS=100 ROUNDS=200 SIGNED=1 OUTPUT=docs/bench-connect
	@PYTHONPATH=tests/support CALLS=$(or $(CALLS),100) ROUNDS=$(or $(ROUNDS),200) $(PY) benchmarks/bench_connect.py

bench-proxy: setup-test ## a hop through the node's Envoy, HAProxy and nginx; ready, memory and push with many routes: SIZES=1000,10000
	@PYTHONPATH=tests/support CALLS=$(or $(CALLS),100) ROUNDS=$(or $(ROUNDS),100) SIZES=$(or $(SIZES),1000$(comma)10000) \
		$(PY) benchmarks/bench_proxy.py

bench-islands: setup-test ## a call through the Envoys of a node and of a gateway, HAProxies with TLS, ssh; with 20 ms; memory: CALLS=100 ROUNDS=100
	@PYTHONPATH=tests/support CALLS=$(or $(CALLS),100) ROUNDS=$(or $(ROUNDS),100) $(PY) benchmarks/bench_islands.py

bench-accounts: setup-test ## what passing accounts of pods to gateways costs a new connection: CALLS=400
	@PYTHONPATH=tests/support CALLS=$(or $(CALLS),400) $(PY) benchmarks/bench_accounts.py

bench-life: setup-test ## from nothing installed on two real nodes to the first call between them (needs what make test-nodes does)
	@tools/test-nodes --build && PYTHONPATH=tests/support PATH=$$PATH:$(CURDIR)/.cache/kube-tools $(PY) benchmarks/bench_life.py

bench-mcs: setup-dev ## from cold start to all ServiceImports written: EXPORTS=2000 CLUSTERS=5 APISERVER=real
	@PYTHONPATH=tests/support $(PY) benchmarks/bench_mcs.py $(if $(EXPORTS),--exports $(EXPORTS)) $(if $(CLUSTERS),--clusters $(CLUSTERS)) \
		$(if $(APISERVER),--apiserver $(APISERVER))

bench-mcs-change: setup-dev ## what one change costs the operator's decisions: EXPORTS="100 1000 5000" CLUSTERS=10
	@PYTHONPATH=tests/support $(PY) benchmarks/bench_mcs_change.py $(if $(EXPORTS),--exports $(EXPORTS)) \
		$(if $(CLUSTERS),--clusters $(CLUSTERS))

bench-export: setup-test ## from kubectl apply of an export to the first answer, with its target: TIMES=40
	@PYTHONPATH=tests/support $(PY) benchmarks/bench_export.py $(if $(TIMES),--times $(TIMES))

bench-diagnose: setup-test ## how long `isthmus diagnose` takes to name each of twenty faults in a lab, with its target
	@PYTHONPATH=tests/support $(PY) benchmarks/bench_diagnose.py

bench-map: setup-test ## frames while the map of `isthmus ui` is moved and zoomed, in Debian's Chromium: ROUNDS=4 BASE=main
	@tools/setup ui
	@PYTHONPATH=tests/support $(PY) benchmarks/bench_map.py $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(BASE),--base $(BASE))

bench-memory: setup-dev ## what records of one peer cost in memory, and what is given back: SIZE=10 megabytes
	@PYTHONPATH=tests/support $(PY) benchmarks/bench_memory.py $(if $(SIZE),--size $(SIZE))

bench-clusterset: setup-dev ## what it costs to hear other clusters: AGENTS=50
	@PYTHONPATH=tests/support $(PY) benchmarks/bench_clusterset.py $(if $(AGENTS),--agents $(AGENTS))

test-flood: setup-test ## a peer that writes half a million keys as fast as its etcd takes them
	@ISTHMUS_FLOOD=500000 $(PY) -m pytest -s tests/clusterset/test_clusterset_flood.py

test-failover: setup-test ## calls under load while pods, nodes, clusters, Envoys, gateways and our processes die: no connect may fail; MINUTES=30
	@timeout -s INT -k 60 $(or $(MINUTES),30)m $(PY) -m pytest -rA --tb=short lab/tests/test_lab_failover.py lab/tests/test_lab_replicated_etcd.py lab/tests/test_lab_routes.py \
		lab/tests/test_demo_islands.py lab/tests/test_lab_islands.py tests/datapath/test_refused_in_time.py

test-islands: setup-test ## 200 calls a second while gateways fall silent and die, a hundred of each end of a connection, another authority
	@timeout -s INT -k 60 $(or $(MINUTES),8)m $(PY) -m pytest -rA --tb=short -m islands tests/islands tests/gateway

test-kernel: setup-test ## programs, calls and names on Debian's older kernels, emulated: KERNEL=6.1 TESTS="FILE…" SECONDS_AT_MOST=600
	@tools/setup kernel $(KERNEL)
	@KERNEL=$(or $(KERNEL),6.1) tools/test-kernel $(TESTS)

fuzz-names: setup-test ## mutated frames, a million each, through the programs that read names and the server: COUNT=1000000 SEED=1
	@ISTHMUS_FUZZ=$(or $(COUNT),1000000) ISTHMUS_FUZZ_SEED=$(or $(SEED),1) \
		$(PY) -m pytest -s --timeout 7200 tests/datapath/test_names_fuzz.py

fuzz: setup-test ## hostile values in every field of every kind and record, through agent, operator, gateway, names and Envoy: MINUTES=5 SEED=1
	@ISTHMUS_FUZZ_SECONDS=$$(($(or $(MINUTES),5) * 60)) ISTHMUS_FUZZ_SEED=$(or $(SEED),1) \
		$(PY) -m pytest -s --timeout 0 tests/processes/test_fuzz_pipeline.py

scale-names: setup-test ## thousands of names on a node of a thousand pods: PODS=1000 NAMES=5000
	@PYTHONPATH=tests/support $(PY) benchmarks/names_at_scale.py scale --pods $(or $(PODS),1000) --names $(or $(NAMES),5000)

soak-names: setup-test ## ten million questions, after which nothing may have grown: QUESTIONS=10000000
	@PYTHONPATH=tests/support $(PY) benchmarks/names_at_scale.py soak --questions $(or $(QUESTIONS),10000000)

soak-calls: SEED := $(or $(SEED),$(shell date +%s))
soak-calls: setup-test ## random churn of backends and plans under calls: no connect fails, nothing grows: MINUTES=10 SEED=…
	@ISTHMUS_SOAK_SECONDS=$$(($(or $(MINUTES),10) * 60)) ISTHMUS_SOAK_SEED=$(SEED) \
		$(PY) -m pytest -s --timeout $$(($(or $(MINUTES),10) * 60 + 300)) tests/datapath/test_soak_calls.py

cilium-reader: ## build Cilium's own clustermesh programs for tests that run them beside ours (needs Go), once
	@tools/cilium-reader

chaos: setup-test ## three operators killed, stopped, paused and cut off at random come to equal imports: RUNS=20 SEED=1 APISERVER=real
	@ISTHMUS_CHAOS_RUNS=$(or $(RUNS),20) ISTHMUS_CHAOS_SEED=$(or $(SEED),1) $(PY) -m pytest -rA --tb=short \
		tests/mcs/test_operators_chaos.py -k $(if $(filter real,$(APISERVER)),kube,lab)

simulate: SEED := $(or $(SEED),$(shell date +%s))
simulate: setup-test ## operators of three clusters in virtual time, under faults; a failure is shrunk: HOURS=10 SEED=… CASES=dir
	@$(PY) -m isthmus_sim run --seed $(SEED) --hours $(or $(HOURS),1) --cases $(or $(CASES),.cache/simulation)

churn: SEED := $(or $(SEED),$(shell date +%s))
churn: setup-test ## a hostile tenant and a lying peer beside calls by name, through Envoy and to an island: MINUTES=120 SEED=…
	@PYTHONPATH=tests/support $(PY) tests/support/hostility/churn.py --minutes $(or $(MINUTES),5) --seed $(SEED)

soak: SEED := $(or $(SEED),$(shell date +%s))
soak: setup-test ## parts of a lab are killed at random moments, and nothing may be left: TIMES=50 SEED=… MINUTES=30
	@echo "make soak TIMES=$(or $(TIMES),50) SEED=$(SEED) MINUTES=$(or $(MINUTES),30)"
	@ISTHMUS_KILLS=$(or $(TIMES),50) ISTHMUS_KILLS_SEED=$(SEED) timeout -s INT -k 60 $(or $(MINUTES),30)m \
		$(PY) -m pytest lab/tests/test_lab_random_kills.py -v

kube-tools: ## build kube-apiserver, its like and etcd from pinned Go modules, once
	@tools/kube-tools

conformance: setup-test ## run the conformance suites of the Gateway API and of the MCS API in labs, compare and write their reports (needs make kube-tools); MCS_SUITE=program
	@PYTHONPATH=tests/support $(PY) tests/support/meshes/gateway_conformance.py
	@if [ -n "$(MCS_SUITE)" ]; then PYTHONPATH=tests/support $(PY) tests/support/clusters/mcs_conformance.py "$(MCS_SUITE)"; \
	else echo "not run: the suite of the MCS API; docs/conformance.md says how it is built, MCS_SUITE=program names it"; fi

karmada-tools: ## build Karmada's controllers, scheduler and webhooks from pinned Go modules, once (three minutes after the real Kubernetes is built)
	@tools/kube-tools kube-apiserver kube-controller-manager kubectl karmada-controller-manager karmada-scheduler karmada-webhook

test-karmada: setup-test karmada-tools ## members joined by Karmada's own programs, and their story; built first where they are missing (needs Go)
	@$(PY) -m pytest -m "$(or $(KARMADA),karmada_programs)" tests/karmada lab/tests/test_karmada_story.py

LOCK := uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-emit-package isthmus
lock: ## pin every package with its hashes (needs uv)
	$(LOCK) pyproject.toml -o requirements/run.lock
	$(LOCK) --group build -o requirements/build.lock
	$(LOCK) --group build -c requirements/run.lock -c requirements/build.lock lab/pyproject.toml -o requirements/lab.lock
	$(LOCK) --extra mcp -c requirements/run.lock pyproject.toml -o requirements/mcp.lock
	$(LOCK) --group build --group dev -c requirements/lab.lock -c requirements/mcp.lock lab/pyproject.toml -o requirements/dev.lock
	$(LOCK) --group bpf -o requirements/bpf.lock
	$(LOCK) --group dist -o requirements/dist.lock

xds-protos: ## refresh the descriptors of Envoy's messages
	@[ -x .cache/xds/bin/python ] || { python3 -m venv .cache/xds && .cache/xds/bin/pip install -q xds-protos==1.85.0; }
	@.cache/xds/bin/python tools/xds_protos.py

kube-protos: setup-dev ## refresh the descriptors by which the lab's API server reads protobuf, and Go's objects to test it (needs Go)
	@[ -x .cache/protoc/bin/python ] || { python3 -m venv .cache/protoc && .cache/protoc/bin/pip install -q grpcio-tools==1.85.1; }
	@PATH=$$PATH:/usr/local/go/bin .cache/protoc/bin/python tools/kubernetes_protos.py
	@tools/typed-objects

clean:
	rm -rf .venv src/isthmus/datapath/*.bpf.o
