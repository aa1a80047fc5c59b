package decoder

import (
	"encoding/binary"
	"time"
)

// The builders write pgoutput messages as the protocol page lays them out.

func beginMessage(final uint64, at time.Time) []byte {
	b := binary.BigEndian.AppendUint64([]byte{'B'}, final)
	b = binary.BigEndian.AppendUint64(b, uint64(at.Sub(postgresEpoch).Microseconds()))
	return binary.BigEndian.AppendUint32(b, 77)
}

func commitMessage(commit, end uint64) []byte {
	b := binary.BigEndian.AppendUint64([]byte{'C', 0}, commit)
	b = binary.BigEndian.AppendUint64(b, end)
	return binary.BigEndian.AppendUint64(b, 0)
}

type testColumn struct {
	name string
	oid  uint32
}

func relationMessage(id uint32, schema, name string, columns ...testColumn) []byte {
	b := binary.BigEndian.AppendUint32([]byte{'R'}, id)
	b = append(append(b, schema...), 0)
	b = append(append(b, name...), 0, 'd')
	b = binary.BigEndian.AppendUint16(b, uint16(len(columns)))
	for _, c := range columns {
		b = append(b, 0)
		b = append(append(b, c.name...), 0)
		b = binary.BigEndian.AppendUint32(b, c.oid)
		b = binary.BigEndian.AppendUint32(b, 0xffffffff)
	}
	return b
}

// null and unchanged stand for the values that have no text.
type (
	null      struct{}
	unchanged struct{}
)

func insertMessage(id uint32, values ...any) []byte {
	b := binary.BigEndian.AppendUint32([]byte{'I'}, id)
	b = binary.BigEndian.AppendUint16(append(b, 'N'), uint16(len(values)))
	for _, v := range values {
		switch v := v.(type) {
		case null:
			b = append(b, 'n')
		case unchanged:
			b = append(b, 'u')
		case string:
			b = binary.BigEndian.AppendUint32(append(b, 't'), uint32(len(v)))
			b = append(b, v...)
		}
	}
	return b
}
