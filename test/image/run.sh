#!/bin/sh
# Builds the product's image and has a container of it relay: as a user without rights,
# with a root that can't be written, from a Postgres in a container beside it to a
# receiver that is the same image. It needs a Docker daemon, and test/image/build.sh.
set -eu
cd "$(dirname "$0")/../.."
make image >/dev/null
size=$(docker image inspect cdc-relay:latest --format '{{.Size}}')
echo "the image has $size bytes"
[ "$size" -lt 40000000 ]
[ "$(docker image inspect cdc-relay:latest --format '{{.Config.User}}')" = 65532:65532 ]

name=cdc-relay-test-$$
secret=whsec_dGhlIHNlY3JldCBvZiB0aGUgdHJ5LW91dA==
cleanup() {
	docker rm -f "$name-postgres" "$name-receiver" "$name-relay" >/dev/null 2>&1 || true
	docker network rm "$name" >/dev/null 2>&1 || true
}
trap cleanup EXIT
safely="--read-only --cap-drop ALL --security-opt no-new-privileges --network $name"
docker network create "$name" >/dev/null
docker run -d --name "$name-postgres" --network "$name" cdc-relay-test-postgres:17 postgres -c wal_level=logical >/dev/null
# shellcheck disable=SC2086 # these are options
docker run -d --name "$name-receiver" $safely cdc-relay:latest demo receiver --listen 0.0.0.0:8090 --secret "$secret" >/dev/null
# shellcheck disable=SC2086
docker run -d --name "$name-relay" --restart on-failure:30 $safely \
	-e CDC_RELAY_DATABASE_URL="postgres://postgres@$name-postgres:5432/postgres" -e CDC_RELAY_DESTINATIONS_0_NAME=receiver \
	-e CDC_RELAY_DESTINATIONS_0_URL="http://$name-receiver:8090/orders" -e CDC_RELAY_DESTINATIONS_0_SECRETS="$secret" \
	-e CDC_RELAY_DESTINATIONS_0_ALLOW_PRIVATE_NETWORKS=true cdc-relay:latest >/dev/null

within() { # seconds, then a command that is tried until it succeeds
	left=$1
	shift
	until "$@" >/dev/null 2>&1; do
		left=$((left - 1))
		if [ "$left" = 0 ]; then
			echo "waited in vain for: $*" >&2
			docker logs "$name-relay" 2>&1 | tail -20 >&2
			exit 1
		fi
		sleep 1
	done
}
psql() { docker exec "$name-postgres" psql -U postgres -v ON_ERROR_STOP=1 -c "$1"; }
within 60 psql "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload) VALUES (gen_random_uuid(), 'order', gen_random_uuid(), 'order.created', '{}')"
received() { docker logs "$name-receiver" 2>&1 | grep -q '"order.created" attempt 1'; }
within 60 received
docker stop -t 45 "$name-relay" >/dev/null
[ "$(docker inspect "$name-relay" --format '{{.State.ExitCode}}')" = 0 ]
echo "the image relays, and ends with 0"
