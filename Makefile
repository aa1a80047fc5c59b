# The doors of this repository. `make demo` and `make test` install or start what
# they lack and say so; see test/prepare.sh.

GO ?= go

.PHONY: demo test race lint fuzz build clean

build:
	$(GO) build -o bin/cdc-relay ./cmd/cdc-relay

demo: build
	@test/prepare.sh
	./bin/cdc-relay demo $(DEMO_FLAGS)

test:
	@test/prepare.sh tests
	$(GO) test -count=1 ./...
	$(GO) -C test/deploy test -count=1 ./...

race:
	@test/prepare.sh tests
	CDC_RELAY_TEST_RACE=1 $(GO) test -count=1 -race -timeout=30m ./...

lint:
	$(GO) vet ./...
	$(GO) tool staticcheck ./...
	$(GO) -C test/deploy vet ./...
	@unformatted=$$($(GO) tool gofumpt -l .); if [ -n "$$unformatted" ]; then echo "gofumpt would change:"; echo "$$unformatted"; exit 1; fi

FUZZTIME ?= 60s
fuzz:
	$(GO) test -run='^$$' -fuzz=FuzzDecode -fuzztime=$(FUZZTIME) ./decoder

clean:
	rm -rf bin

.PHONY: bench
bench:
	@test/prepare.sh
	$(GO) run ./test/bench $(BENCH_FLAGS)

DURATION ?= 20m
SEED ?= 1
.PHONY: chaos
chaos:
	@test/prepare.sh
	CDC_RELAY_CHAOS_DURATION=$(DURATION) CDC_RELAY_CHAOS_SEED=$(SEED) $(GO) test -count=1 -v -timeout=24h -run TestChaos ./test/chaos

.PHONY: failover
failover:
	$(GO) test -count=1 -v -tags failover ./test/failover

# The end-to-end suite on each major version of PostgreSQL.
MAJORS ?= 14 15 16 17 18
.PHONY: matrix
matrix:
	@test/matrix.sh $(MAJORS) -- $(MATRIX_FLAGS)

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
CERTIFICATES ?= /etc/ssl/certs/ca-certificates.crt
.PHONY: image
image:
	@mkdir -p bin/image
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags "-s -w -X main.version=$(VERSION:v%=%)" -o bin/image/cdc-relay ./cmd/cdc-relay
	cp $(CERTIFICATES) bin/image/ca-certificates.crt
	docker build -f deploy/container/Dockerfile -t cdc-relay:latest bin/image

# Archives, Debian packages, SBOM and checksums in bin/release.
.PHONY: release
release:
	deploy/release.sh $(VERSION)
