package replication

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/decoder"
)

func (s *session) connect(ctx context.Context) (err error) {
	s.conn, err = open(ctx, s.stream.options.Config)
	return err
}

// open opens a replication connection on which rows come in the form that the
// decoder reads.
func open(ctx context.Context, config *pgconn.Config) (*pgconn.PgConn, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	config = config.Copy()
	config.RuntimeParams["replication"] = "database"
	config.RuntimeParams["client_encoding"] = "UTF8"
	config.RuntimeParams["bytea_output"] = "hex"
	conn, err := pgconn.ConnectConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("open replication connection: %w", err)
	}
	return conn, nil
}

// start asks for the stream from the slot's own position. A position given here
// that is ahead of the slot's would silently skip events, one behind it is
// silently moved up: so none is given.
func (s *session) start(ctx context.Context, oid uint32) error {
	if err := s.identify(ctx); err != nil {
		return err
	}
	timeout, err := walSenderTimeout(ctx, s.conn)
	if err != nil {
		return err
	}
	s.walTimeout = timeout
	s.interval = statusInterval(timeout)
	s.silence = max(timeout, 6*s.interval)
	s.lastHeard = time.Now()
	table := s.stream.options.Table
	table.OID = oid
	s.decoder = decoder.New(table)
	return startReplication(ctx, s.conn, s.stream.options.Slot, s.stream.options.Publication)
}

func startReplication(ctx context.Context, conn *pgconn.PgConn, slot, publication string) error {
	options := pglogrepl.StartReplicationOptions{PluginArgs: []string{
		"proto_version '1'",
		"publication_names " + quoteLiteral(quoteIdentifier(publication)),
	}}
	if err := pglogrepl.StartReplication(ctx, conn, quoteIdentifier(slot), 0, options); err != nil {
		return fmt.Errorf("start replication on slot %q: %w", slot, err)
	}
	return nil
}

// identify asks who the server is. On another system or timeline, as after a
// failover, positions that were seen before can stand for other events: then what
// is in flight is settled first, and everything is looked at anew.
func (s *session) identify(ctx context.Context) error {
	system, err := pglogrepl.IdentifySystem(ctx, s.conn)
	if err != nil {
		return fmt.Errorf("identify the server: %w", err)
	}
	identity := fmt.Sprintf("%s/%d", system.SystemID, system.Timeline)
	if known := s.stream.system; known != "" && known != identity {
		s.stream.options.Log.Warn().Str("was", known).Str("is", identity).Msg("another server or timeline answers; settling what is in flight before going on")
		if !s.stream.settleDown(ctx) {
			return ctx.Err()
		}
		s.stream.startOver()
	}
	s.stream.system = identity
	return nil
}

func walSenderTimeout(ctx context.Context, conn *pgconn.PgConn) (time.Duration, error) {
	results, err := conn.Exec(ctx, "SHOW wal_sender_timeout").ReadAll()
	if err != nil {
		return 0, fmt.Errorf("read wal_sender_timeout: %w", err)
	}
	if len(results) != 1 || len(results[0].Rows) != 1 {
		return 0, errors.New("read wal_sender_timeout: no row")
	}
	return parseInterval(string(results[0].Rows[0][0])), nil
}

// parseInterval reads what SHOW prints of a time setting, such as 60s, 5s, 1min
// or 500ms. What it can't read counts as not set.
func parseInterval(text string) time.Duration {
	text = strings.Replace(strings.Replace(text, "min", "m", 1), "d", "h", 1)
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0
	}
	return d
}

// statusInterval leaves three chances within the server's time-out.
func statusInterval(timeout time.Duration) time.Duration {
	const usual = 10 * time.Second
	if timeout <= 0 {
		return usual
	}
	return max(min(timeout/3, usual), tick)
}

func quoteIdentifier(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

func quoteLiteral(text string) string { return `'` + strings.ReplaceAll(text, `'`, `''`) + `'` }
