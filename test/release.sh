#!/bin/sh
# Builds the release, installs its Debian package on this machine, uses it, and takes
# it away again. It needs root, and a machine where cdc-relay isn't installed.
set -eu
cd "$(dirname "$0")/.."
if dpkg -s cdc-relay >/dev/null 2>&1; then
	echo "the package cdc-relay is installed here: this test would replace it" >&2
	exit 1
fi
deploy/release.sh 0.0.1 >/dev/null
(cd bin/release && sha256sum --check --quiet SHA256SUMS)
for platform in linux_amd64 linux_arm64 darwin_amd64 darwin_arm64; do
	tar tzf "bin/release/cdc-relay_0.0.1_$platform.tar.gz" | grep -q '/cdc-relay$' || { echo "no program for $platform" >&2; exit 1; }
done
grep -q '"bomFormat": "CycloneDX"' bin/release/*.sbom.json
grep -q 'pkg:golang/github.com/jackc/pglogrepl' bin/release/*.sbom.json

trap 'dpkg --purge cdc-relay >/dev/null' EXIT
dpkg -i "bin/release/cdc-relay_0.0.1_$(dpkg --print-architecture).deb" >/dev/null
[ "$(cdc-relay version)" = "cdc-relay 0.0.1" ]
gzip -dc /usr/share/man/man1/cdc-relay.1.gz | grep -q 'write-ahead log'
bash -c 'source /usr/share/bash-completion/completions/cdc-relay && complete -p cdc-relay' >/dev/null
cdc-relay __complete dlq re 2>/dev/null | grep -q '^replay'
[ "$(stat -c '%U:%G %a' /etc/cdc-relay/cdc-relay.yaml)" = "root:cdc-relay 640" ]
systemd-analyze verify --man=no cdc-relay.service
systemd-analyze security --offline=yes --threshold=15 cdc-relay.service >/dev/null
echo "the release is built, and its package works"
