-- Tables of the relay's own, in its schema.

CREATE TABLE {{.schema}}.deliveries (
  outbox_id     text        NOT NULL,
  destination   text        NOT NULL,
  commit_lsn    pg_lsn      NOT NULL,
  tx_index      bigint      NOT NULL,   -- place within the transaction, from 0
  delivered_at  timestamptz NOT NULL,
  attempts      integer     NOT NULL,
  status_code   integer,
  latency_ms    double precision,       -- from the row's commit to the receiver's answer
  replay_id     text                    -- null for the first delivery
);
-- Ascending, so that inserting stays at the index's right edge.
CREATE INDEX deliveries_position ON {{.schema}}.deliveries (commit_lsn, tx_index);
-- Retention deletes from the old end; a block range index costs next to nothing to keep.
CREATE INDEX deliveries_delivered_at ON {{.schema}}.deliveries USING brin (delivered_at);

CREATE TABLE {{.schema}}.dead_letters (
  id               bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  outbox_id        text        NOT NULL,
  destination      text        NOT NULL,
  state            text        NOT NULL CHECK (state IN ('SCHEDULED', 'DEAD', 'DELIVERED', 'DISCARDED')),
  reason           text        NOT NULL,
  commit_lsn       pg_lsn      NOT NULL,
  tx_index         bigint      NOT NULL,
  committed_at     timestamptz NOT NULL,
  lane             text,                  -- null where no order is kept
  aggregate_type   text,
  aggregate_id     text,
  event_type       text,
  payload          bytea,                 -- what is sent, byte for byte; null where the row had none
  payload_kind     text        NOT NULL CHECK (payload_kind IN ('json', 'text', 'binary')),
  headers          text,                  -- the headers column's text
  attempts         jsonb       NOT NULL DEFAULT '[]',
  attempt_count    integer     NOT NULL DEFAULT 0,
  rounds           integer     NOT NULL DEFAULT 0, -- goes at it: the inline attempts are the first, each later attempt one more
  next_attempt_at  timestamptz,           -- when SCHEDULED: null while an earlier row of the lane is to be sent first
  replay_id        text,                  -- when somebody asked for it to be sent again
  created_at       timestamptz NOT NULL DEFAULT now(),
  updated_at       timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX dead_letters_due ON {{.schema}}.dead_letters (destination, next_attempt_at) WHERE state = 'SCHEDULED' AND next_attempt_at IS NOT NULL;
CREATE INDEX dead_letters_lane ON {{.schema}}.dead_letters (destination, lane, commit_lsn, tx_index) WHERE state IN ('SCHEDULED', 'DEAD');
CREATE INDEX dead_letters_outbox_id ON {{.schema}}.dead_letters (outbox_id);
CREATE INDEX dead_letters_state ON {{.schema}}.dead_letters (state, id);
CREATE INDEX dead_letters_replay ON {{.schema}}.dead_letters (replay_id) WHERE replay_id IS NOT NULL;
CREATE INDEX dead_letters_ended ON {{.schema}}.dead_letters (updated_at) WHERE state <> 'SCHEDULED' AND lane IS NOT NULL;

-- Destinations that a person has paused.
CREATE TABLE {{.schema}}.paused_destinations (
  name       text        PRIMARY KEY,
  reason     text        NOT NULL DEFAULT '',
  paused_at  timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE {{.schema}}.checkpoints (
  id        bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name      text        UNIQUE,           -- null for the ones saved each minute
  lsn       pg_lsn      NOT NULL,
  saved_at  timestamptz NOT NULL DEFAULT now(),
  label     text,
  held_slot text                          -- the copied slot that keeps its WAL
);
CREATE INDEX checkpoints_saved_at ON {{.schema}}.checkpoints (saved_at);
