package inbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// store puts events into the inbox.
type store struct {
	db     Database
	table  string // quoted
	insert string
	again  string
}

func newStore(db Database, t Tables) *store {
	table := t.Inbox.Sanitize()
	// What came before under another id is looked for only where the partner's id is
	// not signed: an attacker could have sent the same body again under a new one.
	return &store{
		db: db, table: table,
		insert: `INSERT INTO ` + table + ` (id, partner_name, partner_event_id, payload, signature_verified, status, event_type, entity_key, body, body_sha256, headers, flagged)
			VALUES ($1::uuid, $2::text, $3::text, %s, $5::boolean, 'PENDING', nullif($6::text, ''), nullif($7::text, ''), $8::bytea, sha256($8::bytea), $9::text::jsonb,
				CASE WHEN $10::boolean AND EXISTS (SELECT FROM ` + table + ` b WHERE b.body_sha256 = sha256($8::bytea) AND b.partner_name = $2::text AND b.partner_event_id <> $3::text)
				THEN 'the same body came under another id before' END)
			ON CONFLICT (partner_name, partner_event_id) DO NOTHING`,
		// A row that is being processed is not waited for: then the count is one less.
		again: `UPDATE ` + table + ` i SET duplicate_count = duplicate_count + 1, last_seen_at = now(),
				flagged = CASE WHEN i.body_sha256 <> sha256($3::bytea) THEN 'another body came under the same id later' ELSE i.flagged END
			FROM (SELECT id FROM ` + table + ` WHERE partner_name = $1::text AND partner_event_id = $2::text FOR UPDATE SKIP LOCKED) l WHERE i.id = l.id`,
	}
}

// execer is a connection, a pool or a transaction.
type execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// put stores events, those of a batch in one transaction, and gives how many of them
// are new. It returns without error only when all are committed.
func (s *store) put(ctx context.Context, p *partner, header map[string]string, events []incoming) (stored int, err error) {
	text, err := json.Marshal(header)
	if err != nil {
		return 0, fmt.Errorf("encode headers: %w", err)
	}
	if len(events) == 1 {
		return s.one(ctx, s.db, p, string(text), events[0])
	}
	tx, err := s.db.Begin(ctx)
	if err != nil {
		return 0, fmt.Errorf("store a batch: %w", err)
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) // without effect after the commit
	for _, e := range events {
		n, err := s.one(ctx, tx, p, string(text), e)
		if err != nil {
			return 0, err
		}
		stored += n
	}
	if err := tx.Commit(ctx); err != nil {
		return 0, fmt.Errorf("store a batch: %w", err)
	}
	return stored, nil
}

func (s *store) one(ctx context.Context, db execer, p *partner, header string, e incoming) (int, error) {
	payload := "$4::text::jsonb"
	if !fitsJSONB(e.payload) {
		payload = "to_jsonb($4::text)"
	}
	id, err := uuid.NewV7()
	if err != nil {
		return 0, fmt.Errorf("make an id: %w", err)
	}
	args := []any{
		id, p.Name, e.id, printable(e.payload), p.verifier != nil, printable([]byte(e.eventType)), printable([]byte(e.entityKey)), e.body, header, p.preset.unsigned,
	}
	tag, err := s.tryInsert(ctx, db, fmt.Sprintf(s.insert, payload), args)
	var pg *pgconn.PgError
	if errors.As(err, &pg) && strings.HasPrefix(pg.Code, "22") {
		// A number or an escape that is JSON but no jsonb: kept as a text. The raw bytes
		// are kept beside it in any case.
		tag, err = s.tryInsert(ctx, db, fmt.Sprintf(s.insert, "to_jsonb($4::text)"), args)
	}
	if err != nil {
		return 0, fmt.Errorf("store event: %w", err)
	}
	if tag.RowsAffected() > 0 {
		return 1, nil
	}
	if _, err := db.Exec(ctx, s.again, p.Name, e.id, e.body); err != nil {
		return 0, fmt.Errorf("count a duplicate: %w", err)
	}
	return 0, nil
}

// tryInsert leaves a transaction usable when the statement fails.
func (s *store) tryInsert(ctx context.Context, db execer, statement string, args []any) (pgconn.CommandTag, error) {
	tx, within := db.(pgx.Tx)
	if !within {
		return db.Exec(ctx, statement, args...)
	}
	point, err := tx.Begin(ctx)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	tag, err := point.Exec(ctx, statement, args...)
	if err != nil {
		return tag, errors.Join(err, point.Rollback(ctx))
	}
	return tag, point.Commit(ctx)
}

// fitsJSONB tells whether a JSON document has no escaped zero, which jsonb can't hold.
func fitsJSONB(document []byte) bool { return !strings.Contains(string(document), `\u0000`) }

// printable makes text out of bytes, fit for a text column.
func printable(b []byte) string {
	return strings.ReplaceAll(strings.ToValidUTF8(string(b), "\uFFFD"), "\x00", "\uFFFD")
}
