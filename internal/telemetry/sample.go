package telemetry

import (
	"math"
	"sort"
	"sync"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/outbox"
)

// Sample are the figures of some time.
type Sample struct {
	Destinations []DestinationSample // by name
	P50, P99     time.Duration       // from commit to receipt, right to a twentieth
}

// DestinationSample counts what was settled for a destination.
type DestinationSample struct {
	Name                              string
	Delivered, Parked, Dead, Attempts int64
}

// sampler gathers a sample. Latencies are counted in buckets that grow by a tenth.
type sampler struct {
	mu           *sync.Mutex
	destinations map[string]*DestinationSample
	latencies    [latencyBuckets]int64
}

const (
	latencyBuckets = 256
	leastLatency   = 100 * time.Microsecond
	latencyGrowth  = 1.1
)

func newSampler() sampler {
	return sampler{mu: new(sync.Mutex), destinations: make(map[string]*DestinationSample)}
}

func (s *sampler) settled(batch []outbox.Outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range batch {
		o := &batch[i]
		if o.Destination == "" {
			continue // it matched none
		}
		d := s.destinations[o.Destination]
		if d == nil {
			d = &DestinationSample{Name: o.Destination}
			s.destinations[o.Destination] = d
		}
		d.Attempts += int64(len(o.Attempts))
		switch o.Fate {
		case outbox.Delivered:
			d.Delivered++
			if o.ReplayID == "" && o.LetterID == 0 {
				s.latencies[bucketOf(o.DoneAt.Sub(o.Event.CommitTime))]++
			}
		case outbox.Scheduled:
			d.Parked++
		case outbox.Dead:
			d.Dead++
		}
	}
}

func bucketOf(latency time.Duration) int {
	if latency <= leastLatency {
		return 0
	}
	bucket := math.Log(float64(latency)/float64(leastLatency)) / math.Log(latencyGrowth)
	return min(int(math.Ceil(bucket)), latencyBuckets-1)
}

// take gives what was gathered, and begins anew.
func (s *sampler) take() Sample {
	s.mu.Lock()
	defer s.mu.Unlock()
	sample := Sample{P50: s.quantile(0.5), P99: s.quantile(0.99)}
	for _, d := range s.destinations {
		sample.Destinations = append(sample.Destinations, *d)
	}
	sort.Slice(sample.Destinations, func(i, j int) bool { return sample.Destinations[i].Name < sample.Destinations[j].Name })
	clear(s.destinations)
	s.latencies = [latencyBuckets]int64{}
	return sample
}

// quantile is the middle of the bucket in which it lies; 0 when nothing was counted.
func (s *sampler) quantile(q float64) time.Duration {
	var total int64
	for _, n := range s.latencies {
		total += n
	}
	rank := int64(math.Ceil(q * float64(total)))
	var seen int64
	for bucket, n := range s.latencies {
		if seen += n; n > 0 && seen >= rank {
			upper := float64(leastLatency) * math.Pow(latencyGrowth, float64(bucket))
			return time.Duration(upper * (1 + 1/latencyGrowth) / 2)
		}
	}
	return 0
}
