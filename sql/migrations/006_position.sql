-- To find the last position at which something is parked.
CREATE INDEX dead_letters_position ON {{.schema}}.dead_letters (commit_lsn);
