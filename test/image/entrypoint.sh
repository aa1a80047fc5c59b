#!/bin/sh
# Runs the server with the arguments that the official image takes: postgres -c …
set -eu
[ "${1:-}" = postgres ] && shift
exec /postgres-bin/postgres -D /data -c "listen_addresses=*" "$@"
