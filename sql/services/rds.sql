-- Amazon RDS and Aurora for PostgreSQL: run it as the master user, in the database of the
-- outbox, after `cdc-relay init` has been run as the owner of the tables. Then run the
-- GRANT statements of sql/role.sql, or `cdc-relay init --grant-to cdc_relay` in their place.
CREATE ROLE cdc_relay LOGIN PASSWORD 'change me';
GRANT rds_replication TO cdc_relay;
