package decoder

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/outbox"
)

// reader takes the fields of one message in turn. After the first field that
// the message is too short for, every further one is zero and err says which
// field was missed, so that the parse functions need one check at their end.
type reader struct {
	rest []byte
	err  error
}

func (r *reader) take(n int, field string) []byte {
	if r.err != nil {
		return nil
	}
	if n < 0 || len(r.rest) < n {
		r.err = fmt.Errorf("message ends within %s: %d bytes wanted, %d left", field, n, len(r.rest))
		return nil
	}
	taken := r.rest[:n]
	r.rest = r.rest[n:]
	return taken
}

func (r *reader) uint8(field string) byte {
	if b := r.take(1, field); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) uint16(field string) uint16 {
	if b := r.take(2, field); b != nil {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}

func (r *reader) uint32(field string) uint32 {
	if b := r.take(4, field); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (r *reader) uint64(field string) uint64 {
	if b := r.take(8, field); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

func (r *reader) lsn(field string) outbox.LSN { return outbox.LSN(r.uint64(field)) }

// postgresEpoch is the zero of the protocol's timestamps, 2000-01-01 00:00 UTC.
var postgresEpoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

func (r *reader) timestamp(field string) time.Time {
	micros := int64(r.uint64(field))
	return postgresEpoch.Add(time.Duration(micros) * time.Microsecond)
}

func (r *reader) cstring(field string) string {
	if r.err != nil {
		return ""
	}
	end := bytes.IndexByte(r.rest, 0)
	if end < 0 {
		r.err = fmt.Errorf("message ends within %s: no terminating zero byte", field)
		return ""
	}
	s := string(r.rest[:end])
	r.rest = r.rest[end+1:]
	return s
}
