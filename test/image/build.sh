#!/bin/sh
# Builds the image cdc-relay-test-postgres:17 from Debian's packages, unless it is
# there. It needs root, debootstrap and a Docker daemon.
set -eu
image=cdc-relay-test-postgres:17
if docker image inspect "$image" >/dev/null 2>&1; then
	echo "image $image is there"
	exit 0
fi
here=$(cd "$(dirname "$0")" && pwd)
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
echo "building $image from Debian's packages (about two minutes)"
debootstrap --variant=minbase --include=postgresql trixie "$root" >"$root.log" 2>&1 || { tail -20 "$root.log" >&2; exit 1; }
tar -C "$root" -c . | docker import - cdc-relay-test-base:latest >/dev/null
docker build -q -t "$image" "$here"
