package outbox

import "time"

// Attempt is one exchange with a receiver.
type Attempt struct {
	At       time.Time     `json:"at"`
	Duration time.Duration `json:"duration_ns"`
	Status   int           `json:"status,omitempty"` // 0 when no answer came
	Error    string        `json:"error,omitempty"`
	Answer   string        `json:"answer,omitempty"` // first bytes of the answer's body, made valid UTF-8
}

// Fate is how a delivery ended, for this process: each fate is durable once the
// settle batch that holds it has committed.
type Fate uint8

// The fates of a delivery.
const (
	Unmatched  Fate = iota // the event matches no destination
	Delivered              // the receiver answered 2xx
	Scheduled              // parked: a later attempt is due
	Dead                   // given up; waits in the dead letters for a person
	Repeated               // settled before a restart; nothing was sent
	Superseded             // the same row is sent as another event, from the backlog
)

// Outcome is the end of one delivery: one event at one destination.
type Outcome struct {
	Event       *Event
	Destination string
	Fate        Fate
	Deliveries  int // how many deliveries the event has in all; 0 when Unmatched
	Attempts    []Attempt
	Tries       int // attempts made over all rounds
	Status      int // the last answer's status code, 0 for none
	DoneAt      time.Time
	Reason      string // why it is Scheduled or Dead
	Ordered     bool   // the destination keeps the order of the event's lane

	// When Scheduled: how many rounds were made, and when the next is due. The
	// zero time is for one that waits behind an earlier event of its lane.
	Rounds      int
	NextAttempt time.Time

	// LetterID is the dead letter that this delivery came from; 0 for one that
	// came from the stream.
	LetterID int64
	ReplayID string // when a person asked for it
	// NextHeldUntil says, of a delivery that came from a dead letter, that the next
	// one of its lane is in hand too and until when nobody else shall take it up.
	NextHeldUntil time.Time

	// Parked says that the dispatcher holds back the event's lane until this is
	// settled, and then for as long as anything of the lane is parked.
	Parked bool

	// Set by the settler: Completes on the outcome with which every matching
	// destination has the event; Unsure when other deliveries of the event aren't
	// known to this process, so that the dead letters must be looked at first.
	Completes bool
	Unsure    bool
}

// String names the fate as logs and metrics do.
func (f Fate) String() string {
	switch f {
	case Unmatched:
		return "unmatched"
	case Delivered:
		return "delivered"
	case Scheduled:
		return "scheduled"
	case Dead:
		return "dead"
	case Repeated:
		return "repeated"
	default:
		return "superseded"
	}
}
