package e2e

import (
	"os"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/throwaway"
	"github.com/cdc-relay/cdc-relay/test/database"
)

// TestRowsThatArriveBeforeTheyAreVisible: with a synchronous standby that doesn't
// answer, a commit is in the WAL, and delivered, long before other sessions see
// its rows; they are marked all the same when they appear.
func TestRowsThatArriveBeforeTheyAreVisible(t *testing.T) {
	t.Parallel()
	server, err := throwaway.Start(t.Context(), throwaway.Options{Image: os.Getenv("CDC_RELAY_TEST_IMAGE"), BinDir: os.Getenv("CDC_RELAY_TEST_BIN_DIR"), Settings: map[string]string{
		"synchronous_standby_names": "nobody", "synchronous_commit": "local",
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Stop() })
	b := setup(t, "")
	b.Database = database.On(t, server.URL)
	b.configure(t, b.destination("main", b.receiver.URL))
	b.run(t, "init")
	b.start(t)
	b.insertNumbers(t, 1, 1)
	b.receiver.await(1)
	b.confirmed(t)

	// Only the writer waits for the standby that isn't there: the relay's own
	// commits must not.
	writer := b.Connect(t)
	if _, err := writer.Exec(t.Context(), `SET synchronous_commit = on`); err != nil {
		t.Fatal(err)
	}
	written := make(chan error, 1)
	go func() {
		_, err := writer.Exec(t.Context(), `INSERT INTO outbox_events (id, payload) VALUES (gen_random_uuid(), '2')`)
		written <- err
	}()
	b.receiver.await(2)
	time.Sleep(time.Second)
	if n := database.One[int](t, b.Database, `SELECT count(*) FROM outbox_events`); n != 1 {
		t.Fatalf("%d rows are visible; the test wants the second one not to be yet", n)
	}
	b.Exec(t, `ALTER SYSTEM SET synchronous_standby_names = ''`)
	b.Exec(t, `SELECT pg_reload_conf()`)
	if err := <-written; err != nil {
		t.Fatal(err)
	}
	eventually(t, "the row to be marked", func() bool {
		return database.One[int](t, b.Database, `SELECT count(*) FROM outbox_events WHERE processed_at IS NOT NULL`) == 2
	})
}
