# What CI calls is what a developer calls.

TOOL := go tool -modfile=tools/go.mod

# What runs the tests on real servers; CI says tools/retest.
GOTEST ?= go test

KIND ?= mutex fair rwlock semaphore
SIMULATIONS := $(addprefix simulate-,$(KIND))

.PHONY: test race gate gates stress lint tidy fmt portable fips faults soak fuzz bench bench-all bench-once bench-test bench-peers bench-quick demo recording examples-test otel-test contrib-test browser-test interop rollout release release-test simulate models models-linger models-others mutants explore versions oldest-go $(SIMULATIONS)

test: ## the README's command
	$(GOTEST) $(PKG)

race:
	$(GOTEST) -race $(PKG)

PKG = ./...

# What .ci/run runs with tools/retest on servers of this machine.
GATE := test race bench-test examples-test otel-test contrib-test faults

gate: $(GATE)

gates: ## the names of these
	@echo $(GATE)

stress: ## the tests of the gate beside a loop on each core, RUNS times, and how often each failed; hours; GATE=test PKG=./fair narrows it down
	tools/stress $(RUNS) $(MAKE) -k $(GATE)
RUNS ?= 10

simulate: $(SIMULATIONS) ## drawn schedules of faults; N acquisitions and a virtual day for each primitive, or what WITHIN lets be reached; other ones each time, or those of SEED
N ?= 100000
WITHIN ?= 24h

$(SIMULATIONS): simulate-%:
	go test ./proptest -run '^TestSimulation$$/^$*$$' -v -timeout 24h -args -acquisitions=$(N) -within=$(WITHIN) -rapid.checks=50 $(addprefix -rapid.seed=,$(SEED))

models: models-others models-linger ## the simulation with delayed effects, rate limits, shared leases and redlocks against their promises, by CHECKS random runs each; a quarter of an hour on one core, half of that with -j2 -O; other ones each time, or those of SEED

models-linger: ## of these, shared leases
	go test ./proptest -count=1 -run '^TestLinger' -timeout 1h -args -rapid.checks=$(CHECKS) $(addprefix -rapid.seed=,$(SEED))

models-others: ## all but these
	go test ./proptest -count=1 -skip '^TestSimulation$$|^TestLinger' -timeout 1h -args -rapid.checks=$(CHECKS) $(addprefix -rapid.seed=,$(SEED))

CHECKS ?= 400

mutants: ## deliberate bugs, each of which the simulation, or the tests that it names, have to find; about half an hour; BUG narrows it down, by words of a name with _ between
	go test ./proptest -run '^TestMutants$$/$(BUG)' -v -timeout 3h -args -mutants

explore: ## every order of steps in small worlds, with deliberate bugs that must be found; twenty minutes; RUN narrows it down, as go test -run does
	go test ./internal/testing/explore -count=1 -v -parallel 2 -timeout 1h -run '$(RUN)' -args -explore
RUN ?= .

lint: ## formatting; vet and static analysis of every module, and whether its go.mod is tidy
	@out=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$out" || { echo "not gofmt-clean:"; echo "$$out"; exit 1; }
	@set -e; staticcheck=$$($(TOOL) -n staticcheck); for d in $(MODULES); do \
		echo "$$d"; tools/gomod $$d mod tidy -diff; (cd $$d && go vet ./... && $$staticcheck ./...); \
	done

portable: ## builds the published modules for other platforms, unoptimized, the adapters for two of them, and vets the root and otellockkeeper with their tests for those that have signals; the tests of what decides and parses, and two primitives on a real server, as 32-bit programs; the embedded server needs 64 bits
	@set -e; for target in $(PLATFORMS); do for d in $(PUBLISHED); do \
		case $$target:$$d in darwin/*:contrib/*) continue;; *:contrib/*|windows/*) check=build;; *) check=vet;; esac; \
		echo "$$target $$d"; (cd $$d && export GOOS=$${target%/*} GOARCH=$${target#*/}; go $$check $(UNOPTIMIZED) $$(go list ./... | grep -vE '$(UNPUBLISHED)')); \
	done; done
	GOARCH=386 $(GOTEST) $(UNOPTIMIZED) ./internal/claim ./internal/queue ./internal/share ./internal/ahead ./internal/protocol ./internal/timers
	GOARCH=386 LOCKKEEPER_REAL=all $(GOTEST) $(UNOPTIMIZED) -run '^TestConformance$$/^cases$$' ./ratelimit ./semaphore
PLATFORMS = linux/386 windows/amd64 darwin/arm64
PUBLISHED = . otellockkeeper $(patsubst %/go.mod,%,$(wildcard contrib/*/go.mod))
UNOPTIMIZED = -gcflags=all='-N -l'
UNPUBLISHED = /internal/testing/|/(examples|proptest)(/|$$)

fips: ## the demo, and a primitive on a real server, where only what FIPS 140-3 approves may be called
	go run -exec 'env GODEBUG=fips140=only' ./cmd/lockkeeper demo
	LOCKKEEPER_REAL=all $(GOTEST) -exec 'env GODEBUG=fips140=only' -run '^TestConformance$$/^cases$$' ./mutex

tidy: ## go mod tidy in every module
	@set -e; for d in $(MODULES); do tools/gomod $$d mod tidy; done

MODULES = $(shell git ls-files '*go.mod' | xargs dirname)

fmt:
	gofmt -w $$(git ls-files '*.go')

faults: ## real servers and processes that fail; a minute of random faults
	SOAK=1m $(GOTEST) -count=1 -v ./internal/testing/faults

soak: ## random faults for SOAK, with what is in use at the end of each round
	SOAK=$(SOAK) $(GOTEST) -count=1 -timeout 0 -v -run '^TestSoak$$' ./internal/testing/faults
SOAK ?= 10m

fuzz: ## every fuzz target for FUZZTIME
	@git grep -o '^func Fuzz[A-Za-z]*' -- '*_test.go' | while IFS=: read -r file func; do \
		name=$${func#func } dir=$$(dirname $$file); \
		echo "$$name ($$dir)"; \
		(cd $$dir && go test -run '^$$' -fuzz "^$$name$$" -fuzzminimizetime 100x -fuzztime $(FUZZTIME) . </dev/null) || exit 1; \
	done
FUZZTIME ?= 30s

bench: ## ratios; about five minutes, better on a quiet machine
	go test -run '^$$' -bench . -benchtime 3s -timeout 30m $(PKG)
bench: PKG = ./mutex

bench-all: ## every figure of docs/benchmarks.md, the README and bench/README.md, in one run of a commit; needs redis-server, etcd and valgrind on PATH; half an hour, on a machine that does nothing else
	@for c in redis-server etcd valgrind; do command -v $$c >/dev/null || { echo "needs $$c on PATH"; exit 1; }; done
	@test -z "$$(git status --porcelain)" || { echo "commit first: all figures are of one commit"; exit 1; }
	cd bench && go run . -plot ../docs/img -page ../docs/benchmarks.md,../README.md
	go test -run '^$$' -bench '$(FIGURES)' -timeout 1h -p 1 ./mutex ./fair ./rwlock ./semaphore ./ratelimit >bench/figures.txt
	cd bench && go test -run '^$$' -bench '$(FIGURES)' -timeout 1h -p 1 ./... >>figures.txt
	cd bench && go test -run '^$$' -bench Instructions -benchtime 1000x -timeout 1h . >>figures.txt
FIGURES := ^Benchmark(Handoff|Contended|Idle|Admit|Per|Acknowledged|Servers|Ahead.*)$$

bench-once: ## every benchmark of every module once, to see that it works; two minutes
	@git grep -l '^func Benchmark' -- '*_test.go' | xargs -n 1 dirname | sort -u | xargs -P 2 -I DIR sh -c \
		'out=$$(cd DIR && $(GOTEST) -run "^$$" -bench . -benchtime 1x . 2>&1); status=$$?; echo "$$out"; exit $$status'

bench-test: ## exclusion between redlock and redsync; the runner of bench-peers
	cd bench && $(GOTEST) -race ./...

bench-peers: ## beside other libraries; under ten minutes, better on a quiet machine
	cd bench && go run . $(ARGS)

bench-quick: ## the same with less of each, under a minute: for a look, not for figures
	cd bench && go run . -quick

demo:
	go run ./cmd/lockkeeper demo

recording: ## the animation of the README, from a run of the demo on this machine
	go run ./internal/cli/demo/record docs/img/demo.svg

versions: ## all tests on real servers, on each server version that the README names; VERSIONS, PACKAGES and ARGS narrow it down
	GOTEST='$(GOTEST)' tools/versions

# The first Go that go.mod lets in. It need not be installed: the go command fetches it.
OLDEST_GO := $(shell sed -n 's/^go //p' go.mod)

oldest-go: ## vets it with the oldest Go that go.mod lets in, and runs the tests of the core; go.mod may not ask for more than what it depends on
	@need=$$(go list -m -f '{{if not .Main}}{{.GoVersion}}{{end}}' all | sort -V | tail -n 1); \
	test "$$need" = $(OLDEST_GO) || { echo "go.mod asks for Go $(OLDEST_GO), what it depends on for $$need"; exit 1; }
	GOTOOLCHAIN=go$(OLDEST_GO) go vet ./...
	GOTOOLCHAIN=go$(OLDEST_GO) $(GOTEST) . ./mutex ./fair ./internal/keeper ./internal/share ./internal/server ./internal/transport ./internal/pubsub ./internal/testing/processes

examples-test: ## the examples that are modules of their own
	cd examples/fencing && $(GOTEST) ./...
	cd examples/payments && $(GOTEST) ./...
	cd examples/observed && $(GOTEST) ./...
	cd examples/migration && $(GOTEST) ./...

interop: ## a mutex beside the locks of other libraries, which it installs into ignored folders; about two minutes
	internal/testing/interop/install
	$(GOTEST) -count=1 -v ./internal/testing/interop

rollout: ## processes of the commit BEFORE beside those of now on one server: exclusion, order, permits
	$(GOTEST) -count=1 -v ./internal/testing/rollout -args -before=$(BEFORE)
BEFORE = e75203eb1217f875d5cf1f91bb7fbaea1ad0d780

otel-test: ## the module for OpenTelemetry
	cd otellockkeeper && $(GOTEST) -race ./...

contrib-test: ## the adapters for other libraries, each a module of its own
	@set -e; for d in contrib/*/; do echo "$$d"; (cd $$d && $(GOTEST) -race ./...); done

browser-test: ## the inspector's pages in Chromium; with SCREENSHOTS also pictures of them, in that directory
	cd inspector/browsertest && $(GOTEST) -count=1 . $(if $(SCREENSHOTS),-args -screenshots $(abspath $(SCREENSHOTS)))

release-test: ## gets the root and each adapter as their users would, from a file proxy of the last commit, and builds programs with them
	cd tools && $(GOTEST) -count=1 -timeout 30m -v ./release

release: ## says whether the last commit can be released as VERSION, such as v0.1.0; with APPLY=1 makes the commit and the tags; pushes nothing
	@cd tools && go run ./release -version='$(VERSION)' $(if $(filter 1,$(APPLY)),-apply)
