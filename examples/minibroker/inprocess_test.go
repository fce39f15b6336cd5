package minibroker

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kafkatxn/kafkatxn/conformance"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/wire"
)

// Every answer that Apache Kafka was recorded to give is this broker's too
// (I14). The requests go to the broker's handlers without a socket, and time is
// moved instead of waited for.
func TestAnswersAreKafkas_InProcess_I14(t *testing.T) {
	b := start(t, Config{TwoPhaseCommit: true, AbortInterval: time.Hour, KafkaFencing: true, StopOnFencedEpoch: true, RetriesAsKafka: true})
	o := inProcess(b)
	if testing.Short() {
		o.Scenarios = some
	}
	conformance.Run(t, "", o)
}

// So they are where the finalised transaction.version is below 2, and where ids
// expire (F34).
func TestAnswersAreKafkas_OtherSettings_I14(t *testing.T) {
	for suite, cfg := range map[string]Config{
		"level1": {TransactionVersion: txnstate.TV1},
		"level0": {TransactionVersion: txnstate.ServerTV0},
		"expiry": {ExpireAfter: 6 * time.Second},
	} {
		cfg.AbortInterval, cfg.KafkaFencing, cfg.StopOnFencedEpoch, cfg.RetriesAsKafka = time.Hour, true, true, true
		o := inProcess(start(t, cfg))
		o.Suites = []string{suite}
		if testing.Short() {
			o.Scenarios = some
		}
		conformance.Run(t, "", o)
	}
}

// inProcess replays against a broker without a socket.
func inProcess(b *Broker) conformance.Options {
	const who = "User:ANONYMOUS"
	h := conformance.Handler{
		Handle: func(ctx context.Context, req kmsg.Request) (kmsg.Response, error) { return b.Handle(ctx, req, who) },
		HandleRaw: func(ctx context.Context, key, version int16, body []byte) ([]byte, error) {
			req, err := b.handler.NewRequest(key, version)
			if err != nil {
				return nil, err
			}
			if err := req.ReadFrom(body); err != nil {
				return nil, err
			}
			resp, err := b.Handle(ctx, req, who)
			if err != nil || resp == nil {
				return nil, wire.ErrClose
			}
			return resp.AppendTo(nil), nil
		},
	}
	return conformance.Options{
		Dial:  h.Dial,
		Sleep: b.Advance,
		Now:   b.now,
		// A fetch with nothing to return waits for real, as its client asked for.
		Parallel: 32, ParallelAll: true,
	}
}
