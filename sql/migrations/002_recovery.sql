-- Which slot this database's relay has, and what is to be sent that its stream
-- doesn't hold: the rows that were there, unsettled, when the slot was made.

CREATE TABLE {{.schema}}.slot_state (
  slot_name    text        PRIMARY KEY,
  making       boolean     NOT NULL DEFAULT false, -- it was begun to be made, and is of no use if that was broken off
  base_lsn     pg_lsn      NOT NULL DEFAULT '0/0', -- the backlog's events count as committed here, before all of the stream's
  until_lsn    pg_lsn      NOT NULL DEFAULT '0/0', -- up to here the stream can bring rows that are in the backlog too
  backlog_rows bigint      NOT NULL DEFAULT 0,
  made_at      timestamptz NOT NULL DEFAULT now(),
  finished_at  timestamptz            -- when the backlog was settled
);

CREATE TABLE {{.schema}}.backlog (
  seq       bigint NOT NULL PRIMARY KEY,
  outbox_id text   NOT NULL,
  settled   text[] NOT NULL DEFAULT '{}' -- destinations that have settled it before
);
CREATE INDEX backlog_outbox_id ON {{.schema}}.backlog (outbox_id);
