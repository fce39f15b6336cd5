package offsets_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/internal/kept"
	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/offsets"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

type deaf struct{}

func (deaf) Commit(context.Context, string, []offsets.Offset) error { return nil }

// W12, I13: of groups that were deleted, producers that have gone and calls that
// were left nothing is kept, with a hook and without.
func TestNothingIsKeptOfWhatIsOver(t *testing.T) {
	for _, hook := range []offsets.OffsetHook{nil, deaf{}} {
		synctest.Test(t, func(t *testing.T) {
			now := time.UnixMilli(1_000_000)
			m, err := offsets.New(offsets.Config{Log: offsets.NewMemLog(), Hook: hook, Now: func() time.Time { return now }})
			if err != nil {
				t.Fatal(err)
			}
			ctx := t.Context()
			if err := m.Load(ctx); err != nil {
				t.Fatal(err)
			}
			left, leave := context.WithCancel(ctx)
			leave()
			for i := range 500 {
				group := fmt.Sprint("g", i)
				who := txnstate.Producer{ID: int64(i), Epoch: 0}
				os := []offsets.Offset{{Topic: "t", Partition: 0, Offset: 1}, {Topic: "t", Partition: 1, Offset: 1}}
				end := m.Announce(group, os)
				g, _, err := m.Verify(group, who, fence.ModeAdd)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := m.Stage(ctx, group, who, g, os); err != nil {
					t.Fatal(err)
				}
				_, _ = m.Stage(left, group, who, g, os)
				_, _ = m.Commit(left, group, os)
				if _, err := m.Commit(ctx, group, os[:1]); err != nil {
					t.Fatal(err)
				}
				end()
				end()
				if i%3 > 0 {
					mk := markers.Marker{Producer: who, Commit: i%3 == 1}
					_ = m.Marker(left, txnstate.OffsetsPartition(group), mk)
					if err := m.Marker(ctx, txnstate.OffsetsPartition(group), mk); err != nil {
						t.Fatal(err)
					}
				}
				if err := m.DeleteGroup(ctx, group); err != nil {
					t.Fatal(err)
				}
				if i%3 == 0 { // the group has gone before its transaction
					if err := m.Marker(ctx, txnstate.OffsetsPartition(group), markers.Marker{Producer: who}); err != nil {
						t.Fatal(err)
					}
				}
			}
			now = now.Add(48 * time.Hour) // producers are looked for when there is something to do
			for i := range 500 {
				if err := m.DeleteGroup(ctx, fmt.Sprint("g", i)); err != nil {
					t.Fatal(err)
				}
			}
			synctest.Wait()
			if more := kept.In(m).More(nil, 60); len(more) > 0 {
				t.Errorf("hook %v, kept:%s", hook, more)
			}
			if err := m.Close(ctx); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// What the Manager can't do at present is shown in WriteTxnMarkers as a partition
// that is not led here; all else as it is.
func TestMarkerAnswers(t *testing.T) {
	for c := txnstate.Code(-1); c < 130; c++ {
		want := c
		switch c {
		case txnstate.CodeCoordinatorLoading, txnstate.CodeCoordinatorNotAvailable, txnstate.CodeNotCoordinator:
			want = txnstate.CodeNotLeaderOrFollower
		}
		if got := offsets.MarkerAnswer(c.Errorf("", "no")); c != 0 && got != want {
			t.Errorf("%s is shown as %s, want %s", c, got, want)
		}
	}
	if got := offsets.MarkerAnswer(nil); got != txnstate.CodeNone {
		t.Error(got)
	}
}

// What is kept is no piece of the caller's strings, which may be pieces of a
// request's buffer: one committed offset would keep all of it in memory.
func TestWhatIsKeptIsNoPieceOfARequest_I13(t *testing.T) {
	m, err := offsets.New(offsets.Config{Log: offsets.NewMemLog()})
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	if err := m.Load(ctx); err != nil {
		t.Fatal(err)
	}
	defer m.Close(ctx)
	request := strings.Repeat("g", 100_000)
	inside := func(s string) bool {
		from, at := uintptr(unsafe.Pointer(unsafe.StringData(request))), uintptr(unsafe.Pointer(unsafe.StringData(s)))
		return at >= from && at < from+uintptr(len(request))
	}
	group, topic, metadata := request[:5], request[10:20], request[20:40]
	commit := []offsets.Offset{{Topic: topic, Partition: 0, Offset: 1, Metadata: metadata}}
	if _, err := m.Commit(ctx, group, commit); err != nil {
		t.Fatal(err)
	}
	for _, g := range m.Groups() {
		if inside(g) {
			t.Error("the group's name is a piece of the request")
		}
	}
	got, err := m.Fetch(group, nil, false)
	if err != nil || len(got) != 1 {
		t.Fatal(got, err)
	}
	if inside(got[0].Topic) || inside(got[0].Metadata) {
		t.Error("a topic's name, or metadata, is a piece of the request")
	}
}
