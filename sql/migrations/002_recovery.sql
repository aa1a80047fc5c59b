-- Which slot this database's relay has, and what is to be sent that its stream
-- doesn't hold: the rows that were there, unsettled, when the slot was made.

CREATE TABLE {{.schema}}.slot_state (
  slot_name    text        PRIMARY KEY,
  base_lsn     pg_lsn      NOT NULL,  -- the backlog's events count as committed just before it
  until_lsn    pg_lsn      NOT NULL,  -- rows of the backlog can be in the stream too, up to here
  backlog_rows bigint      NOT NULL,
  made_at      timestamptz NOT NULL DEFAULT now(),
  finished_at  timestamptz            -- when the backlog was settled
);

CREATE TABLE {{.schema}}.backlog (
  seq       bigint NOT NULL PRIMARY KEY,
  outbox_id text   NOT NULL,
  settled   text[] NOT NULL DEFAULT '{}' -- destinations that have settled it before
);
CREATE INDEX backlog_outbox_id ON {{.schema}}.backlog (outbox_id);
