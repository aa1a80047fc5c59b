package e2e

import (
	"fmt"
	"net/http"
	"testing"
)

// TestG8AdminInbox goes through what an operator does with inbound events at the page:
// find those that are quarantined, read one, have it processed again, discard another.
func TestG8AdminInbox(t *testing.T) {
	t.Parallel()
	inbox, service := freeAddress(t), newReceiver(t)
	refuse := newToggle(1)
	service.answering(func(w http.ResponseWriter, _ request) {
		if refuse.load() > 0 {
			w.WriteHeader(http.StatusInternalServerError)
			fmt.Fprint(w, "no such order <b>yet</b>")
		}
	})
	a := setupAdmin(t, fmt.Sprintf(`
inbox:
  listen: %q
  partners: [ { name: shop, preset: standard, secrets: [ %s ], entity_key: [ "json:order" ] } ]
  processing: { handler: { url: %q, secrets: [ %s ] }, schedule: [ 10ms ] }
`, inbox, secret, service.URL, secret))
	inbound := &inboxBundle{bundle: a.bundle, address: inbox}
	inbound.deliver(t, "evt-1", `{"type": "order.paid", "order": "A-1", "card": {"number": "4111"}}`)
	inbound.deliver(t, "evt-2", `{"type": "order.shipped", "order": "<script>document.title='harmed'</script>"}`)
	inbound.becomes(t, "evt-1", "QUARANTINED", "")
	inbound.becomes(t, "evt-2", "QUARANTINED", "")

	b := openBrowser(t, a.url)
	b.open("/inbox")
	b.picture("sign-in")
	b.signIn("grace", operatorToken)
	b.open("/inbox")
	b.says("order.paid", "order.shipped", "QUARANTINED", "shop")
	b.picture("inbox")
	b.follow("evt-1")
	b.says("A-1", "500", "‹redacted›")
	b.picture("inbound")
	refuse.store(0)
	b.press("Process again")
	b.says("1")
	inbound.becomes(t, "evt-1", "PROCESSED", "APPLIED")
	b.open("/inbox")
	b.follow("evt-2")
	b.says("<script>document.title='harmed'</script>")
	b.press("Discard")
	b.picture("confirm")
	b.fill("input[name=reason]", "a test of theirs")
	b.press("Discard")
	inbound.becomes(t, "evt-2", "PROCESSED", "DISCARDED")
	b.open("/audit")
	b.says("grace", "inbox.replay", "inbox.discard")
	if title := b.evaluate("document.title"); title == "harmed" {
		t.Error("a payload's script ran")
	}
}
