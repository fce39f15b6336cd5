package wire_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/wire"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestConfigNamesEveryComplaint(t *testing.T) {
	h := newHost(t, nil)
	for want, c := range map[string]wire.Config{
		"Topics is required|nothing to serve":          {},
		"Verifier is required":                         {Topics: h, Leader: h},
		"TransactionVersion is 3":                      {Topics: h, Coordinator: h.coordinator, TransactionVersion: 3},
		"TransactionVersion is 1, and the coordinator": {Topics: h, Coordinator: h.coordinator, TransactionVersion: txnstate.TV1},
	} {
		_, err := wire.New(c)
		for _, part := range strings.Split(want, "|") {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%q is missing in: %v", part, err)
			}
		}
	}
}

// A broker that lacks a role does not advertise its APIs, and closes on them.
func TestRoles(t *testing.T) {
	h := newHost(t, nil)
	find := func(context.Context, int8, string) (int32, string, int32, error) { return 0, "", 0, nil }
	for _, tt := range []struct {
		name string
		c    wire.Config
		want string
	}{
		{"a coordinator", wire.Config{Topics: h, Coordinator: h.coordinator}, "[{22 0 5} {24 0 5} {25 0 4} {26 0 5} {65 0 0} {66 0 2}]"},
		{"a leader", wire.Config{Topics: h, Leader: h, Verifier: short{}}, "[{0 3 13} {27 1 2} {61 0 0}]"},
		{"a group coordinator", wire.Config{Topics: h, Offsets: h.offsets, Verifier: short{}}, "[{8 2 10} {9 1 10} {27 1 2} {28 0 6}]"},
		{"a directory", wire.Config{Topics: h, FindCoordinator: find}, "[{10 0 6}]"},
		{"without topic ids", wire.Config{Topics: h, Leader: h, Offsets: h.offsets, Groups: h, Verifier: short{}, WithoutTopicIDs: true}, "[{0 3 12} {8 2 9} {9 1 9} {27 1 2} {28 0 5} {61 0 0}]"},
		{"two-phase commit", wire.Config{Topics: h, Coordinator: h.coordinator, TwoPhaseCommit: true}, "[{22 0 6} {24 0 5} {25 0 4} {26 0 5} {65 0 0} {66 0 2}]"},
	} {
		w, err := wire.New(tt.c)
		if err != nil {
			t.Fatal(tt.name, err)
		}
		if got := fmt.Sprint(w.Versions()); got != tt.want {
			t.Errorf("%s serves %s, want %s", tt.name, got, tt.want)
		}
		served := map[int16]wire.APIVersion{}
		for _, v := range w.Versions() {
			served[v.Key] = v
		}
		for key := int16(0); key < 100; key++ {
			for v := int16(0); v < 20; v++ {
				a, ok := served[key]
				ok = ok && a.Min <= v && v <= a.Max
				req, err := w.NewRequest(key, v)
				if ok != (err == nil) {
					t.Errorf("%s: %s v%d: %v", tt.name, kmsg.NameForKey(key), v, err)
				}
				if ok {
					if req.GetVersion() != v || req.Key() != key {
						t.Errorf("%s v%d: an empty %T v%d", kmsg.NameForKey(key), v, req, req.GetVersion())
					}
					continue
				}
				if req := kmsg.RequestForKey(key); req != nil {
					req.SetVersion(v)
					if resp, err := w.Handle(t.Context(), req, ""); resp != nil || !errors.Is(err, wire.ErrClose) {
						t.Errorf("%s: %s v%d is answered: %v, %v", tt.name, kmsg.NameForKey(key), v, resp, err)
					}
				}
			}
		}
	}
}

// kmsg would take the flags of v6 for tags: its type is refused at that version.
func TestInitProducerIDV6NeedsItsType(t *testing.T) {
	h := newHost(t, func(w *wire.Config, _ *txnstate.Config) { w.TwoPhaseCommit = true })
	req := kmsg.NewPtrInitProducerIDRequest()
	req.Version = 6
	if _, err := h.Handle(t.Context(), req, ""); !errors.Is(err, wire.ErrClose) {
		t.Errorf("%v", err)
	}
	if _, err := h.Handle(t.Context(), nil, ""); !errors.Is(err, wire.ErrClose) {
		t.Errorf("no request: %v", err)
	}
}

// Clients use protocol 2 only where it is finalised.
func TestFeatures(t *testing.T) {
	for tv, want := range map[txnstate.TransactionVersion]int16{txnstate.ServerTV0: 0, txnstate.TV1: 1, 0: 2} {
		h := newHost(t, func(_ *wire.Config, c *txnstate.Config) { c.TransactionVersion = tv })
		supported, finalized := h.Features()
		if len(supported) != 1 || supported[0].Name != "transaction.version" || supported[0].MaxVersion != 2 || supported[0].MinVersion != 0 {
			t.Errorf("supported %+v", supported)
		}
		if want == 0 && len(finalized) != 0 || want > 0 && (len(finalized) != 1 || finalized[0].MaxVersionLevel != want) {
			t.Errorf("level %d is finalised as %+v", want, finalized)
		}
	}
}
