// Package sql holds the SQL files of the product: the migrations of the relay's
// own tables, the default outbox, and statements for database administrators.
//
// The migrations are templates over {{.schema}}, numbered and never changed once
// released.
package sql

import (
	"embed"
	"io/fs"
	"strings"
	"text/template"
)

//go:embed migrations/*.sql outbox.sql inbox.sql
var files embed.FS

// Migrations holds the numbered migrations at its top level.
func Migrations() fs.FS {
	migrations, err := fs.Sub(files, "migrations")
	if err != nil {
		panic(err) // the directory is embedded
	}
	return migrations
}

// Outbox gives the statement that creates the default outbox table. The values
// are quoted identifiers; an empty one leaves its column out.
func Outbox(identifiers map[string]string) (string, error) { return render("outbox.sql", identifiers) }

// Inbox gives the statements that create what is missing of the inbox: the quoted
// table, the prefix of its indexes' names, and the quoted schema of the relay's own
// tables.
func Inbox(table, index, schema string) (string, error) {
	return render("inbox.sql", map[string]string{"table": table, "index": index, "schema": schema})
}

func render(file string, values map[string]string) (string, error) {
	t, err := template.ParseFS(files, file)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	if err := t.Execute(&b, values); err != nil {
		return "", err
	}
	return b.String(), nil
}
