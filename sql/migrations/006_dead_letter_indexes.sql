-- To find the last position at which something is parked.
CREATE INDEX dead_letters_position ON {{.schema}}.dead_letters (commit_lsn);

-- Each row of a long outage is ended when its destination is back: what isn't needed to
-- find ended rows need not be kept then.
DROP INDEX {{.schema}}.dead_letters_state;
CREATE INDEX dead_letters_state ON {{.schema}}.dead_letters (state, id) WHERE state <> 'DELIVERED';
DROP INDEX {{.schema}}.dead_letters_ended;
