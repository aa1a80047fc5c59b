-- Since when the slot's stream may lack rows, because the publication did not
-- carry the outbox: a slot in that state is made anew.
ALTER TABLE {{.schema}}.slot_state ADD COLUMN unpublished_at timestamptz;
