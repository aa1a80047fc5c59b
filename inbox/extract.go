package inbox

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"sort"
	"strings"

	"github.com/tidwall/gjson"
)

// incoming is one event of a request, ready to be stored.
type incoming struct {
	id        string
	eventType string
	entityKey string
	payload   []byte // JSON
	body      []byte // the raw bytes that the event came in
}

// errNotJSON and errNoID are the partner's faults: 400.
var (
	errNotJSON = errors.New("the body is not JSON")
	errNoID    = errors.New("there is no event id")
)

// events takes a request apart. The signature was verified over the raw bytes.
func (p *partner) events(h http.Header, body []byte) ([]incoming, error) {
	document, err := asJSON(h, body)
	if err != nil {
		return nil, err
	}
	items, err := p.items(document)
	if err != nil {
		return nil, err
	}
	events := make([]incoming, 0, len(items))
	for i, item := range items {
		e := incoming{payload: item, body: body}
		if p.preset.split != "" {
			e.body = item
		}
		e.id = first(p.preset.id, h, item)
		if e.id == "" && p.preset.hash {
			e.id = "sha256:" + digest(fmt.Appendf(nil, "%s/%d/%s", p.Name, i, item))
		}
		if e.id == "" {
			return nil, errNoID
		}
		if len(e.id) > idColumn {
			e.id = "sha256:" + digest([]byte(e.id))
		}
		e.eventType, e.entityKey = first(p.preset.eventType, h, item), first(p.EntityKey, h, item)
		events = append(events, e)
	}
	return events, nil
}

// idColumn is the width of partner_event_id.
const idColumn = 100

// asJSON gives the body as a JSON document: a form's fields become an object, or,
// where the form has one field "payload", that is the document.
func asJSON(h http.Header, body []byte) ([]byte, error) {
	kind, _, _ := mime.ParseMediaType(h.Get("Content-Type"))
	if kind != "application/x-www-form-urlencoded" {
		if !gjson.ValidBytes(body) || !json.Valid(body) {
			return nil, errNotJSON
		}
		return body, nil
	}
	form, err := url.ParseQuery(string(body))
	if err != nil {
		return nil, errNotJSON
	}
	if payload := form.Get("payload"); len(form) == 1 && json.Valid([]byte(payload)) {
		return []byte(payload), nil
	}
	fields := make(map[string]any, len(form))
	for name, values := range form {
		if len(values) == 1 {
			fields[name] = values[0]
		} else {
			fields[name] = values
		}
	}
	return json.Marshal(fields)
}

// items splits a batch. A body that is no batch is one item.
func (p *partner) items(document []byte) ([][]byte, error) {
	if p.preset.split == "" {
		return [][]byte{document}, nil
	}
	list := gjson.ParseBytes(document)
	if p.preset.split != "@this" {
		list = list.Get(p.preset.split)
	}
	if !list.IsArray() {
		return nil, fmt.Errorf("%w: %s is no array", errNotJSON, p.preset.split)
	}
	var items [][]byte
	for _, item := range list.Array() {
		if p.preset.unwrap != "" {
			item = item.Get(p.preset.unwrap)
		}
		if !item.Exists() {
			return nil, fmt.Errorf("%w: an item has no %s", errNotJSON, p.preset.unwrap)
		}
		items = append(items, []byte(item.Raw))
	}
	return items, nil
}

// first gives the value of the first source that has one.
func first(sources []string, h http.Header, item []byte) string {
	for _, source := range sources {
		if value := joined(source, h, item); value != "" {
			return value
		}
	}
	return ""
}

// joined gives the value of a source; "" if any part of it is missing.
func joined(source string, h http.Header, item []byte) string {
	var parts []string
	for part := range strings.SplitSeq(source, "+") {
		kind, name, _ := strings.Cut(part, ":")
		value := ""
		switch kind {
		case "header":
			value = h.Get(name)
		case "json":
			value = gjson.GetBytes(item, name).String()
		case "body":
			value = digest(item)
		}
		if value == "" {
			return ""
		}
		parts = append(parts, value)
	}
	return strings.Join(parts, ".")
}

func checkSources(list []string) error {
	for _, source := range list {
		for part := range strings.SplitSeq(source, "+") {
			kind, name, found := strings.Cut(part, ":")
			if !found || name == "" || kind != "header" && kind != "json" && part != "body:sha256" {
				return fmt.Errorf("%q is neither header:Name nor json:path", part)
			}
		}
	}
	return nil
}

func digest(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}
