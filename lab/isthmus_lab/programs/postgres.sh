#!/bin/sh
# The image postgres, by Debian's package: makes a database cluster in $PGDATA where there is none, as user postgres.
# POSTGRES_USER, POSTGRES_PASSWORD, POSTGRES_DB and POSTGRES_HOST_AUTH_METHOD mean what they mean in the image.
set -eu
bin=$(ls -d /usr/lib/postgresql/*/bin | sort -V | tail -1)
data=${PGDATA:-/var/lib/postgresql/data} user=${POSTGRES_USER:-postgres}
as() { setpriv --reuid=postgres --regid=postgres --clear-groups "$@"; }
mkdir -p "$data" /var/run/postgresql
chown -R postgres:postgres "$data" /var/run/postgresql
chmod 700 "$data"
if [ ! -s "$data/PG_VERSION" ]; then
	secret=$(mktemp) && printf '%s\n' "${POSTGRES_PASSWORD:-}" >"$secret" && chown postgres "$secret"
	as "$bin/initdb" -D "$data" -U "$user" -E UTF8 ${POSTGRES_PASSWORD:+--pwfile="$secret"} >/dev/null
	rm -f "$secret"
	method=${POSTGRES_HOST_AUTH_METHOD:-scram-sha-256}
	[ -n "${POSTGRES_PASSWORD:-}" ] || method=trust
	printf 'host all all all %s\n' "$method" >>"$data/pg_hba.conf"
	if [ -n "${POSTGRES_DB:-}" ] && [ "$POSTGRES_DB" != postgres ]; then
		printf 'CREATE DATABASE "%s"\n' "$POSTGRES_DB" | as "$bin/postgres" --single -D "$data" postgres >/dev/null
	fi
fi
exec setpriv --reuid=postgres --regid=postgres --clear-groups "$bin/postgres" -D "$data" -c listen_addresses='*' "$@"
