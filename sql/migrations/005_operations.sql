-- What people see of the relays, and what they have done.

-- Each process that runs, as it told of itself a few seconds ago.
CREATE TABLE {{.schema}}.instances (
  id          text        PRIMARY KEY,
  host        text        NOT NULL,
  version     text        NOT NULL,
  started_at  timestamptz NOT NULL,
  seen_at     timestamptz NOT NULL,
  state       text        NOT NULL,            -- streaming, standby, connecting, …; receiving for an inbox alone
  reason      text        NOT NULL DEFAULT '',
  live        jsonb       NOT NULL             -- what only the process itself knows: circuits, queues, window
);

-- Figures of some seconds each, kept for a bit more than an hour, for charts.
CREATE TABLE {{.schema}}.samples (
  instance_id text        NOT NULL,
  at          timestamptz NOT NULL,            -- the end of these seconds
  figures     jsonb       NOT NULL,
  PRIMARY KEY (at, instance_id)
);

-- Each action of a person, written before it is done and completed after it.
CREATE TABLE {{.schema}}.audit (
  id       bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at       timestamptz NOT NULL DEFAULT now(),
  actor    text        NOT NULL,               -- who, as far as is known
  action   text        NOT NULL,               -- dead-letters.replay, destination.pause, …
  subject  text        NOT NULL DEFAULT '',    -- what it was done to
  detail   jsonb       NOT NULL DEFAULT '{}',  -- with what settings
  outcome  text                                -- null: under way, or broken off
);

-- To find an event's deliveries by its id. Of a block range only a bloom filter is
-- kept, which costs the writing of the log next to nothing.
CREATE INDEX deliveries_outbox_id ON {{.schema}}.deliveries
  USING brin (outbox_id text_bloom_ops (n_distinct_per_range = 2500, false_positive_rate = 0.01))
  WITH (pages_per_range = 32, autosummarize = on);
