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

//go:embed migrations/*.sql outbox.sql
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
func Outbox(identifiers map[string]string) (string, error) {
	t, err := template.ParseFS(files, "outbox.sql")
	if err != nil {
		return "", err
	}
	var b strings.Builder
	if err := t.Execute(&b, identifiers); err != nil {
		return "", err
	}
	return b.String(), nil
}
