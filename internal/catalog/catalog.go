// Package catalog reads what Postgres knows of the outbox table: that it is
// there, which columns it has and of which types. It starts no goroutine.
package catalog

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Name is a table's name with its schema, exact as in the catalog.
type Name struct{ Schema, Table string }

// ParseName reads schema.table, where a part in double quotes may hold dots, and
// a part without them stands for itself. The schema defaults to public.
func ParseName(text string) (Name, error) {
	var parts []string
	for rest := text; ; {
		part, tail, err := cutIdentifier(rest)
		if err != nil {
			return Name{}, fmt.Errorf("table name %q: %w", text, err)
		}
		parts = append(parts, part)
		if tail == "" {
			break
		}
		rest = tail[1:]
	}
	switch len(parts) {
	case 1:
		return Name{Schema: "public", Table: parts[0]}, nil
	case 2:
		return Name{Schema: parts[0], Table: parts[1]}, nil
	default:
		return Name{}, fmt.Errorf("table name %q has %d parts; write schema.table, in double quotes what holds a dot", text, len(parts))
	}
}

// cutIdentifier takes one identifier off the front; tail is empty or starts with a dot.
func cutIdentifier(text string) (identifier, tail string, err error) {
	if strings.HasPrefix(text, `"`) {
		for i := 1; i < len(text); i++ {
			if text[i] != '"' {
				continue
			}
			if i+1 < len(text) && text[i+1] == '"' {
				i++
				continue
			}
			identifier, tail = strings.ReplaceAll(text[1:i], `""`, `"`), text[i+1:]
			if tail != "" && tail[0] != '.' {
				return "", "", errors.New("there is text after a closing quote")
			}
			return identifier, tail, checkIdentifier(identifier)
		}
		return "", "", errors.New("a quote is not closed")
	}
	end := strings.IndexByte(text, '.')
	if end < 0 {
		end = len(text)
	}
	return text[:end], text[end:], checkIdentifier(text[:end])
}

func checkIdentifier(identifier string) error {
	if identifier == "" {
		return errors.New("a part is empty")
	}
	if strings.ContainsRune(identifier, 0) {
		return errors.New("a zero byte can't stand in a name")
	}
	return nil
}

// Sanitize gives the name quoted for SQL.
func (n Name) Sanitize() string { return pgx.Identifier{n.Schema, n.Table}.Sanitize() }

// String gives the name for messages.
func (n Name) String() string { return n.Schema + "." + n.Table }

// Querier is what catalog reads with: a connection, a pool or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Executor can execute besides.
type Executor interface {
	Querier
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// Table is what the catalog says of a table.
type Table struct {
	OID     uint32
	Kind    string            // pg_class.relkind: r ordinary, p partitioned
	Columns map[string]string // name to type, as format_type writes it
}

// ErrNoTable says that there is no such table.
var ErrNoTable = errors.New("table does not exist")

// Read looks a table up. The error is ErrNoTable when there is none.
func Read(ctx context.Context, q Querier, name Name) (Table, error) {
	var t Table
	err := q.QueryRow(ctx, `SELECT c.oid, c.relkind::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = $1 AND c.relname = $2 AND c.relkind IN ('r', 'p')`, name.Schema, name.Table).Scan(&t.OID, &t.Kind)
	if errors.Is(err, pgx.ErrNoRows) {
		return t, fmt.Errorf("%s: %w", name, ErrNoTable)
	}
	if err != nil {
		return t, fmt.Errorf("look up table %s: %w", name, err)
	}
	rows, err := q.Query(ctx, `SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
		WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped`, t.OID)
	if err != nil {
		return t, fmt.Errorf("look up columns of %s: %w", name, err)
	}
	t.Columns = make(map[string]string)
	var column, kind string
	_, err = pgx.ForEachRow(rows, []any{&column, &kind}, func() error {
		t.Columns[column] = kind
		return nil
	})
	if err != nil {
		return t, fmt.Errorf("look up columns of %s: %w", name, err)
	}
	return t, nil
}
