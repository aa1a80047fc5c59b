-- The role that the relay runs as, with the least privileges, where somebody else owns
-- the tables. These are the statements for the default names, with an inbox and
-- outbox.retention; for your config: cdc-relay init --print-sql --grant-to cdc_relay.
-- An inbox handler that is a SQL function wants EXECUTE on it and what it does besides.

CREATE ROLE cdc_relay LOGIN PASSWORD 'change me';

ALTER ROLE "cdc_relay" REPLICATION; -- on RDS and Aurora: GRANT rds_replication TO "cdc_relay";
GRANT USAGE ON SCHEMA "cdc_relay" TO "cdc_relay";
GRANT SELECT ON TABLE "cdc_relay"."schema_version" TO "cdc_relay";
GRANT SELECT, INSERT, UPDATE, DELETE ON TABLE "cdc_relay"."instances" TO "cdc_relay";
GRANT SELECT, INSERT, DELETE ON TABLE "cdc_relay"."samples" TO "cdc_relay";
GRANT SELECT, INSERT, UPDATE ON TABLE "cdc_relay"."audit" TO "cdc_relay";
GRANT SELECT, INSERT, DELETE ON TABLE "cdc_relay"."deliveries" TO "cdc_relay";
GRANT SELECT, INSERT, UPDATE, DELETE ON TABLE "cdc_relay"."dead_letters" TO "cdc_relay";
GRANT SELECT, INSERT, UPDATE, DELETE ON TABLE "cdc_relay"."paused_destinations" TO "cdc_relay";
GRANT SELECT, INSERT, UPDATE, DELETE ON TABLE "cdc_relay"."checkpoints" TO "cdc_relay";
GRANT SELECT, INSERT, UPDATE, DELETE ON TABLE "cdc_relay"."slot_state" TO "cdc_relay";
GRANT SELECT, INSERT, DELETE ON TABLE "cdc_relay"."backlog" TO "cdc_relay";
GRANT SELECT, INSERT, UPDATE ON TABLE "cdc_relay"."replays" TO "cdc_relay";
GRANT SELECT, INSERT, UPDATE ON TABLE "cdc_relay"."trimmed" TO "cdc_relay";
GRANT USAGE ON SCHEMA "public" TO "cdc_relay";
GRANT SELECT ON TABLE "public"."outbox_events" TO "cdc_relay";
GRANT UPDATE ("processed_at") ON TABLE "public"."outbox_events" TO "cdc_relay";
GRANT DELETE ON TABLE "public"."outbox_events" TO "cdc_relay";
GRANT SELECT, INSERT, UPDATE, DELETE ON TABLE "public"."webhook_inbox" TO "cdc_relay";
GRANT SELECT, INSERT, UPDATE ON TABLE "cdc_relay"."entity_states" TO "cdc_relay";
