-- Jobs that send delivered events again, and how far they are.
CREATE TABLE {{.schema}}.replays (
  id                 text             PRIMARY KEY,
  state              text             NOT NULL DEFAULT 'QUEUED' CHECK (state IN ('QUEUED', 'RUNNING', 'DONE', 'CANCELLED', 'FAILED')),
  reason             text             NOT NULL DEFAULT '',    -- why it FAILED
  source             text             NOT NULL CHECK (source IN ('table', 'wal')),
  held_slot          text,                                    -- whose WAL is read
  from_lsn           pg_lsn           NOT NULL,               -- events committed at or after it
  until_lsn          pg_lsn           NOT NULL,               -- and before it
  since              timestamptz,                             -- committed at or after it
  until              timestamptz,                             -- and before it
  destinations       text[]           NOT NULL DEFAULT '{}',  -- empty for all
  event_types        text[]           NOT NULL DEFAULT '{}',  -- globs; empty for all
  aggregate_id       text,
  rate               double precision NOT NULL,               -- events a second; 0 for no limit
  total              bigint           NOT NULL,               -- deliveries when it was asked for
  delivered          bigint           NOT NULL DEFAULT 0,
  parked             bigint           NOT NULL DEFAULT 0,     -- failed, and waiting for a later attempt
  dead               bigint           NOT NULL DEFAULT 0,
  skipped            bigint           NOT NULL DEFAULT 0,     -- whose row or destination is gone
  cursor_lsn         pg_lsn           NOT NULL DEFAULT '0/0', -- everything up to here has an outcome
  cursor_index       bigint           NOT NULL DEFAULT 0,
  cursor_destination text             NOT NULL DEFAULT '',
  created_at         timestamptz      NOT NULL DEFAULT now(),
  started_at         timestamptz,
  ended_at           timestamptz
);
CREATE INDEX replays_open ON {{.schema}}.replays (created_at) WHERE state IN ('QUEUED', 'RUNNING');

-- How far the delivery log was trimmed: what was committed up to here can't be
-- replayed from it any more.
CREATE TABLE {{.schema}}.trimmed (
  what text        PRIMARY KEY,
  lsn  pg_lsn      NOT NULL,
  at   timestamptz NOT NULL
);
