package segment

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/internal/crashfs"
	"github.com/kafkatxn/kafkatxn/internal/fsx"
)

// story is a segment of which one operation takes its time, and what is told.
type story struct {
	t         *testing.T
	disk      *crashfs.FS
	fsync     bool
	confirmed bool

	mu       sync.Mutex
	ops      []string // that were done, "ended" among them
	at       int      // the operation that waits
	fail     bool     // and fails then
	waiting  bool
	held     chan struct{}
	open     int
	confirms int
	told     []string
}

var errStory = errors.New("of the story")

func (s *story) before(op fsx.Op, _ string) error {
	s.mu.Lock()
	wait := len(s.ops) == s.at && op != fsx.OpClose
	s.ops = append(s.ops, string(op))
	s.waiting = wait
	s.mu.Unlock()
	if wait {
		<-s.held
		if s.fail {
			return errStory
		}
	}
	return nil
}

func (s *story) after(op fsx.Op, _ string, err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil && op == fsx.OpOpenFile:
		s.open++
	case err == nil && op == fsx.OpClose:
		s.open--
	}
	return err
}

func (s *story) segment() *Segment {
	fsys := fsx.Hook(fsx.HookAfter(s.disk, s.after), s.before)
	if !s.confirmed {
		return New(fsys, "d/j", s.fsync)
	}
	f, err := fsys.OpenFile("d/j", os.O_RDWR|os.O_CREATE, 0o644)
	require.NoError(s.t, errors.Join(err, fsys.SyncDir("d")))
	return Confirmed(fsys, "d/j", f, s.fsync, func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.confirms++
		if s.fsync {
			require.Equal(s.t, string(fsx.OpSync), s.ops[len(s.ops)-1], "asked when the round is on the disk")
		}
		return nil
	})
}

// wait is a caller's. Of what is acknowledged the disk has all.
func (s *story) wait(j *Segment, r *Round, payload string) {
	err := j.Wait(r)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told = append(s.told, fmt.Sprint(payload, " ", err == nil))
	if err != nil {
		return
	}
	after := s.disk.Image(1)
	if s.fsync {
		after = s.disk.Image(0)
	}
	content, err := after.ReadFile("d/j")
	require.NoError(s.t, err)
	require.Contains(s.t, string(content), payload)
	if s.confirmed {
		require.Positive(s.t, s.confirms, "nobody was asked")
	}
}

// A segment is closed, or fails, while any of its operations is under way. Each who
// waits is told, what counts is on the disk, no file stays open, and when End has
// returned nothing is done any more. (I1, I12, I13)
func TestASegmentEndsAtAnyOperation(t *testing.T) {
	for _, fsync := range []bool{true, false} {
		for _, confirmed := range []bool{false, true} {
			for _, how := range []string{"close", "end", "fail", "go on"} {
				for at := 0; ; at++ {
					more := false
					synctest.Test(t, func(t *testing.T) { more = endAt(t, fsync, confirmed, how, at) })
					if !more {
						require.GreaterOrEqual(t, at, 2)
						break
					}
				}
			}
		}
	}
}

func endAt(t *testing.T, fsync, confirmed bool, how string, at int) (more bool) {
	disk := crashfs.New(1)
	require.NoError(t, fsx.MkdirSynced(disk, "d", 0o755))
	s := &story{t: t, disk: disk, fsync: fsync, confirmed: confirmed, at: -1, fail: how == "fail", held: make(chan struct{})}
	j := s.segment()
	s.ops, s.at = nil, at
	var rounds []*Round
	added := 0
	add := func(payload string) {
		_, r, err := j.Add([]byte(payload))
		if err != nil {
			return
		}
		added++
		rounds = append(rounds, r)
		go s.wait(j, r, payload)
		synctest.Wait()
	}
	for _, payload := range []string{"first", "second", "third"} {
		add(payload)
	}
	if s.waiting && how == "go on" && at == 0 && !confirmed {
		// What is too much for one round is two.
		_, a, err := j.Add(make([]byte, 101))
		require.NoError(t, err)
		_, b, err := j.Add(make([]byte, maxRound-100))
		require.NoError(t, err)
		require.NotSame(t, a, b)
	}
	more = s.waiting
	var ended chan struct{}
	switch how {
	case "close":
		j.Close()
	case "end":
		ended = make(chan struct{})
		go func() {
			j.End()
			s.mu.Lock()
			s.ops = append(s.ops, "ended")
			s.mu.Unlock()
			close(ended)
		}()
	}
	synctest.Wait()
	close(s.held)
	synctest.Wait()
	if how == "fail" && more {
		_, _, err := j.Add([]byte("late"))
		require.ErrorIs(t, err, errStory)
	}
	if ended != nil {
		<-ended
		require.Equal(t, "ended", s.ops[len(s.ops)-1])
	}
	require.Len(t, s.told, added, "at %d, %s: %v", at, how, s.ops)
	if how == "go on" {
		require.False(t, slices.ContainsFunc(s.told, func(s string) bool { return strings.HasSuffix(s, "false") }))
		require.LessOrEqual(t, cap(j.spare), keepRound)
		j.Close()
	}
	if !fsync {
		require.NotContains(t, s.ops, string(fsx.OpSync))
	}
	j.Close()
	synctest.Wait()
	require.Zero(t, s.open, "at %d, %s: %v", at, how, s.ops)
	return more
}
