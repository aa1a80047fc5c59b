-- Google Cloud SQL and AlloyDB for PostgreSQL: run it as user postgres, in the
-- database of the outbox, after `cdc-relay init` has been run as the owner of the tables.
-- Then run the GRANT statements of sql/role.sql, or `cdc-relay init --grant-to cdc_relay`.
CREATE ROLE cdc_relay LOGIN PASSWORD 'change me';
ALTER ROLE cdc_relay REPLICATION;
