#!/bin/sh
# Makes sure that there is a Postgres to start: server binaries, or a Docker
# daemon that answers. On Debian it installs Postgres where neither is there. Called
# with "tests", it also installs Chromium, and unpacks Prometheus' promtool to bin/tools,
# where those are missing.
set -eu
cd "$(dirname "$0")/.."

if [ "${1:-}" = tests ] && ! command -v promtool >/dev/null 2>&1 && [ ! -x bin/tools/promtool ]; then
	if ! command -v apt-get >/dev/null 2>&1; then
		echo "promtool is not on this machine: install it, it comes with Prometheus." >&2
		exit 1
	fi
	# Only unpacked: installed, the package would start a server.
	echo "promtool: none found; unpacking Debian's package prometheus to bin/tools"
	unpacked=$(mktemp -d)
	trap 'rm -rf "$unpacked"' EXIT
	if ! (cd "$unpacked" && apt-get download -qq prometheus >/dev/null 2>&1); then
		[ "$(id -u)" != 0 ] || apt-get update -qq
		(cd "$unpacked" && apt-get download -qq prometheus >/dev/null 2>&1) || {
			echo "Debian's package prometheus can't be had: run apt-get update as root, or install promtool." >&2
			exit 1
		}
	fi
	dpkg -x "$unpacked"/prometheus_*.deb "$unpacked"
	mkdir -p bin/tools
	cp "$unpacked/usr/bin/promtool" bin/tools/
fi

if [ "${1:-}" = tests ] && ! command -v systemd-analyze >/dev/null 2>&1; then
	if ! command -v apt-get >/dev/null 2>&1 || [ "$(id -u)" != 0 ]; then
		echo "systemd-analyze is not on this machine: install it, it comes with systemd." >&2
		exit 1
	fi
	echo "systemd-analyze: none found; installing Debian's package systemd"
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends systemd >/dev/null
fi

if [ "${1:-}" = tests ] && [ -z "${CDC_RELAY_TEST_CHROMIUM:-}" ]; then
	found=""
	for name in chromium chromium-browser google-chrome google-chrome-stable headless-shell; do
		if command -v "$name" >/dev/null 2>&1; then
			found=$name
		fi
	done
	if [ -n "$found" ]; then
		echo "Browser: $found"
	elif command -v apt-get >/dev/null 2>&1 && { [ "$(id -u)" = 0 ] || command -v sudo >/dev/null 2>&1; }; then
		sudo=""
		[ "$(id -u)" = 0 ] || sudo=sudo
		echo "Browser: none found; installing Debian's package chromium"
		$sudo apt-get update -qq
		DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends chromium >/dev/null
	else
		echo "No Chromium is on this machine: install one, or name it by CDC_RELAY_TEST_CHROMIUM." >&2
		exit 1
	fi
fi

if [ -n "${CDC_RELAY_TEST_DATABASE_URL:-}" ]; then
	echo "Postgres: the server of CDC_RELAY_TEST_DATABASE_URL"
	exit 0
fi
for dir in /usr/lib/postgresql/*/bin /usr/local/pgsql/bin /usr/pgsql/bin /opt/homebrew/opt/postgresql*/bin; do
	if [ -x "$dir/initdb" ] && [ -x "$dir/postgres" ]; then
		echo "Postgres: server binaries in $dir"
		exit 0
	fi
done
if command -v initdb >/dev/null 2>&1; then
	echo "Postgres: server binaries in PATH"
	exit 0
fi
if command -v docker >/dev/null 2>&1 && docker info >/dev/null 2>&1; then
	echo "Postgres: in a container, by the Docker daemon that answers"
	exit 0
fi
if command -v apt-get >/dev/null 2>&1; then
	as_root=""
	if [ "$(id -u)" != 0 ]; then
		if ! command -v sudo >/dev/null 2>&1; then
			echo "Neither Postgres nor Docker is here, and installing needs root: apt-get install postgresql" >&2
			exit 1
		fi
		as_root=sudo
	fi
	echo "Postgres: neither server binaries nor Docker found; installing Debian's package postgresql"
	$as_root apt-get update -qq
	DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -qq --no-install-recommends postgresql >/dev/null
	exit 0
fi
echo "Neither Postgres server binaries nor a Docker daemon is on this machine: install one of them." >&2
exit 1
