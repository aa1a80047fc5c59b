-- A server of your own: run it as a superuser, in the
-- database of the outbox, after `cdc-relay init` has been run as the owner of the tables.
-- Then run the GRANT statements of sql/role.sql, or `cdc-relay init --grant-to cdc_relay`.
CREATE ROLE cdc_relay LOGIN PASSWORD 'change me';
ALTER ROLE cdc_relay REPLICATION;
-- And once, each followed by a restart where the value changes:
ALTER SYSTEM SET wal_level = logical;
-- So that a relay that is away for long can't fill the disk. What is lost then is
-- made anew from the rows that are not settled.
ALTER SYSTEM SET max_slot_wal_keep_size = '50GB';
