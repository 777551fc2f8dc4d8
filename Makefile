# Targets people type. Everything a target needs is set up by tools/setup, once; a second run does no set-up.
PY := .venv/bin/python
comma := ,
SELECT := not kube and not failover and not islands and not karmada_programs and not netem

.PHONY: test-kernel fuzz-names scale-names soak-names demo demo-failover demo-islands demo-karmada demo-lb test test-kube test-failover test-islands check format lock setup setup-dev setup-test bpf mutate mutants bench-lb bench-apart bench-policy bench-policy-change bench-mcs bench-mcs-change bench-export bench-diagnose bench-clusterset test-flood cilium-reader chaos soak soak-calls kube-tools karmada-tools test-karmada kube-protos xds-protos lock clean bench-dns bench-names bench-connect bench-proxy bench-islands gateway-report
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

test: setup-test ## every test but the slow suites, two at a time for each core where memory allows
	@$(PY) -m pytest -m "$(SELECT)" --numprocesses auto --dist loadscope --no-loadscope-reorder

test-kube: setup-test ## the suites on a real kube-apiserver, on Cilium's programs, built first where they are missing (needs Go), and on Karmada's where these are built
	@tools/test-kube

check: setup-dev ## format, lint, types, import contracts
	@.venv/bin/ruff format --check src tests tools benchmarks examples
	@.venv/bin/ruff check src tests tools benchmarks examples
	@.venv/bin/mypy
	@.venv/bin/lint-imports --no-cache

format: setup-dev ## let ruff write the files
	@.venv/bin/ruff format src tests tools benchmarks examples
	@.venv/bin/ruff check --fix src tests tools benchmarks examples

setup: ## what `make demo` needs
	@tools/setup run

setup-dev: ## what `make check` needs
	@tools/setup dev

setup-test: ## what `make test` needs
	@tools/setup test

bpf: ## compile the datapath
	@tools/setup bpf

mutate: setup-dev ## take the rule of each load-balancing scenario out of a copy of the code, and see it fail
	@$(PY) tools/mutate.py $(SCENARIOS)

mutants: setup-test ## random edits of the code, each against its package's tests and others that import its module: SEED=1 N=40 PACKAGES="etcd kube"
	@$(PY) tools/mutants.py --select "$(SELECT) and not lab" $(if $(SEED),--seed $(SEED)) -n $(or $(N),40) $(PACKAGES)

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

bench-connect: setup-test ## a call by our hooks, kube-proxy's rules and proxies, as ratios to a direct one: CALLS=100 ROUNDS=200 OUTPUT=docs/bench-connect
	@PYTHONPATH=tests/support CALLS=$(or $(CALLS),100) ROUNDS=$(or $(ROUNDS),200) $(PY) benchmarks/bench_connect.py

bench-proxy: setup-test ## a hop through the node's Envoy, HAProxy and nginx; ready, memory and push with many routes: SIZES=1000,10000
	@PYTHONPATH=tests/support CALLS=$(or $(CALLS),100) ROUNDS=$(or $(ROUNDS),100) SIZES=$(or $(SIZES),1000$(comma)10000) \
		$(PY) benchmarks/bench_proxy.py

bench-islands: setup-test ## a call through the Envoys of a node and of a gateway, HAProxies with TLS, ssh; with 20 ms; memory: CALLS=100 ROUNDS=100
	@PYTHONPATH=tests/support CALLS=$(or $(CALLS),100) ROUNDS=$(or $(ROUNDS),100) $(PY) benchmarks/bench_islands.py

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

bench-clusterset: setup-dev ## what it costs to hear other clusters: AGENTS=50
	@PYTHONPATH=tests/support $(PY) benchmarks/bench_clusterset.py $(if $(AGENTS),--agents $(AGENTS))

test-flood: setup-test ## a peer that writes half a million keys as fast as its etcd takes them
	@ISTHMUS_FLOOD=500000 $(PY) -m pytest -s tests/clusterset/test_clusterset_flood.py

test-failover: setup-test ## calls under load while pods, nodes, clusters, Envoys, gateways and our processes die: no connect may fail; MINUTES=20
	@timeout -s INT -k 60 $(or $(MINUTES),20)m $(PY) -m pytest -rA --tb=short tests/lab/test_lab_failover.py tests/lab/test_lab_routes.py \
		tests/lab/test_demo_islands.py tests/lab/test_lab_islands.py tests/datapath/test_refused_in_time.py

test-islands: setup-test ## 200 calls a second while gateways fall silent and die, a hundred of each end of a connection, another authority
	@timeout -s INT -k 60 $(or $(MINUTES),8)m $(PY) -m pytest -rA --tb=short tests/islands

test-kernel: setup-test ## programs, calls and names on Debian's older kernels, emulated: KERNEL=6.1 TESTS="FILE…" SECONDS_AT_MOST=600
	@tools/setup kernel $(KERNEL)
	@KERNEL=$(or $(KERNEL),6.1) tools/test-kernel $(TESTS)

fuzz-names: setup-test ## mutated frames, a million each, through the programs that read names and the server: COUNT=1000000 SEED=1
	@ISTHMUS_FUZZ=$(or $(COUNT),1000000) ISTHMUS_FUZZ_SEED=$(or $(SEED),1) \
		$(PY) -m pytest -s --timeout 7200 tests/datapath/test_names_fuzz.py

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

soak: SEED := $(or $(SEED),$(shell date +%s))
soak: setup-test ## parts of a lab are killed at random moments, and nothing may be left: TIMES=50 SEED=… MINUTES=30
	@echo "make soak TIMES=$(or $(TIMES),50) SEED=$(SEED) MINUTES=$(or $(MINUTES),30)"
	@ISTHMUS_KILLS=$(or $(TIMES),50) ISTHMUS_KILLS_SEED=$(SEED) timeout -s INT -k 60 $(or $(MINUTES),30)m \
		$(PY) -m pytest tests/lab/test_lab_random_kills.py -v

kube-tools: ## build kube-apiserver, its like and etcd from pinned Go modules, once
	@tools/kube-tools

gateway-report: setup-test ## run the Gateway API's conformance suite for meshes in a lab, and write its report (needs make kube-tools)
	@PYTHONPATH=tests/support $(PY) tests/support/gateway_conformance.py

karmada-tools: ## build Karmada's controllers, scheduler and webhooks from pinned Go modules, once (three minutes after the real Kubernetes is built)
	@tools/kube-tools kube-apiserver kube-controller-manager kubectl karmada-controller-manager karmada-scheduler karmada-webhook

test-karmada: setup-test karmada-tools ## members joined by Karmada's own programs, and their story; built first where they are missing (needs Go)
	@$(PY) -m pytest -m "$(or $(KARMADA),karmada_programs)" tests/karmada

LOCK := uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-emit-package isthmus
lock: ## pin every package with its hashes (needs uv)
	$(LOCK) --group build pyproject.toml -o requirements/run.lock
	$(LOCK) --group build -c requirements/run.lock src/isthmus_lab/pyproject.toml -o requirements/lab.lock
	$(LOCK) --group build --group dev -c requirements/lab.lock src/isthmus_lab/pyproject.toml -o requirements/dev.lock
	$(LOCK) --group bpf -o requirements/bpf.lock

xds-protos: ## refresh the descriptors of Envoy's messages
	@[ -x .cache/xds/bin/python ] || { python3 -m venv .cache/xds && .cache/xds/bin/pip install -q xds-protos==1.85.0; }
	@.cache/xds/bin/python tools/xds_protos.py

kube-protos: setup-dev ## refresh the descriptors by which the lab's API server reads protobuf, and Go's objects to test it (needs Go)
	@[ -x .cache/protoc/bin/python ] || { python3 -m venv .cache/protoc && .cache/protoc/bin/pip install -q grpcio-tools==1.85.1; }
	@PATH=$$PATH:/usr/local/go/bin .cache/protoc/bin/python tools/kubernetes_protos.py
	@tools/typed-objects

clean:
	rm -rf .venv src/isthmus/datapath/*.bpf.o
