package minibroker

import (
	"context"
	"encoding/binary"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/internal/fsx"
	kxoffsets "github.com/kafkatxn/kafkatxn/offsets"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
)

// Groups are forgotten with their partition, when it is given up and when it is taken
// over: what somebody still holds of one is dead (I10).
func TestGroupsAreForgottenWithTheirPartition_I10(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTrio(t, Config{})
		n := tr.nodes[2]
		c, o, gs := n.cluster, n.cluster.offsets, n.groups
		id := ""
		for i := 0; id == "" || c.coordinator(txnstate.OffsetsPartition(id)) != n.cfg.NodeID; i++ {
			id = string(rune('a' + i))
		}
		p := txnstate.OffsetsPartition(id)
		served := func() bool {
			o.mu.Lock()
			defer o.mu.Unlock()
			return o.parts[p].served && !o.parts[p].busy
		}
		for !served() {
			time.Sleep(every)
		}
		put := func() *group {
			gs.mu.Lock()
			defer gs.mu.Unlock()
			gs.byID[id] = newGroup(id, 0, gs.now())
			return gs.byID[id]
		}
		forgotten := func(what string, g *group) {
			t.Helper()
			gs.mu.Lock()
			now := gs.byID[id]
			gs.mu.Unlock()
			g.mu.Lock()
			state := g.state
			g.mu.Unlock()
			require.Nil(t, now, what)
			require.Equal(t, kxoffsets.GroupDead, state, what)
		}
		// A broker that has slept takes nothing over for a while: what came during its
		// sleep has to be read first.
		c.mu.Lock()
		c.rested = time.Now().Add(5 * c.patience())
		c.mu.Unlock()
		synctest.Wait() // a round that is under way has asked before
		g := put()
		o.unload(p)
		forgotten("given up", g)
		g = put() // by a request from before
		time.Sleep(4 * c.patience())
		require.False(t, served(), "it has slept")
		for !served() {
			time.Sleep(every)
		}
		forgotten("taken over", g)
	})
}

// A partition that is taken over knows the fences that came while another led it
// (W13); and a broker that has slept takes none over for a while.
func TestATakeoverKnowsTheFences_W13(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTrio(t, Config{})
		n := tr.nodes[2]
		require.Zero(t, tr.create(tr.nodes[1], "t", 3))
		part := tr.partitionOn(n, "t")
		c := n.cluster
		tr.leads("t", part)
		require.NoError(t, c.refresh())
		topic := n.topics.get("t")
		led := func() *partitionLog { return n.led(topic, part) }
		tr.ends("t", part) // asks until there is an answer
		l := led()
		require.NotNil(t, l)
		who := txnstate.Producer{ID: 7}
		require.NoError(t, l.append(recordBatch(who, 0, 1, 1, true)))
		require.NoError(t, tr.nodes[1].cluster.writer.Fence(t.Context(), txnstate.Producer{ID: 7, Epoch: 5}))
		time.Sleep(5 * time.Second)

		c.mu.Lock()
		c.rested = time.Now().Add(5 * c.patience())
		c.mu.Unlock()
		synctest.Wait() // a round that is under way has asked before
		l.stop(kafkaErrorf(kerr.NotLeaderForPartition, "for a test"))
		time.Sleep(4 * c.patience())
		require.Nil(t, led(), "it has slept")
		time.Sleep(3 * c.patience())
		l = led()
		require.NotNil(t, l)
		// Before anybody can ask it: the next log is not shown yet.
		next, err := c.openLog(&leading{topic: topic}, part)
		require.NoError(t, err)
		for _, l := range []*partitionLog{l, next} {
			l.With(func(p *fence.Partition) {
				st, known := p.Producer(7)
				if !known || st.FencedBelow != 5 {
					t.Errorf("%+v", st)
				}
			})
		}
		next.close()

		// The same of a partition of offsets.
		id := ""
		for i := 0; id == "" || c.coordinator(txnstate.OffsetsPartition(id)) != n.cfg.NodeID; i++ {
			id = string(rune('a' + i))
		}
		at := txnstate.OffsetsPartition(id)
		// Another producer: the partition may have been loaded when the fence was there.
		stager := txnstate.Producer{ID: 8}
		g, _, err := n.offsets.Verify(id, stager, fence.ModeAdd)
		require.NoError(t, err)
		_, err = n.offsets.Stage(t.Context(), id, stager, g, []kxoffsets.Offset{{Topic: "t", Offset: 1}})
		require.NoError(t, err)
		c.offsets.unload(at)
		require.NoError(t, tr.nodes[1].cluster.writer.Fence(t.Context(), txnstate.Producer{ID: 8, Epoch: 5}))
		time.Sleep(3 * c.patience())
		sts, err := n.offsets.Producers(at)
		require.NoError(t, err)
		require.Len(t, sts, 1)
		require.EqualValues(t, 5, sts[0].FencedBelow)
	})
}

// What two have begun to write is at two offsets, is shown up to where it is durable,
// and that does not go back when the later is told first.
func TestWritesOnTheirWayHaveOffsetsOfTheirOwn(t *testing.T) {
	disk := fsx.Mem()
	l := diskLog(t, disk)
	begin := func() func(context.Context) error {
		b := plain(1, 10)
		h, _, _, err := fence.ParseHeader(b)
		require.NoError(t, err)
		wait, err := l.Start(b, admitAll(h))
		require.NoError(t, err)
		return wait
	}
	first, second := begin(), begin()
	for offset, want := range map[int64]error{0: nil, 1: nil, 2: nil, 3: kerr.OffsetOutOfRange} {
		s, err := l.selectFrom(offset, 1000, true, false)
		if want == nil {
			require.NoError(t, err, offset)
			require.Empty(t, s.batches, "nothing is durable")
		} else {
			require.Equal(t, kerr.OffsetOutOfRange.Code, codeOf(err))
		}
	}
	require.NoError(t, second(t.Context()))
	at, _ := l.ends()
	require.EqualValues(t, 2, at.high)
	require.NoError(t, first(t.Context()))
	at, _ = l.ends()
	require.EqualValues(t, 2, at.high)
	s, err := l.selectFrom(0, 1000, true, false)
	require.NoError(t, err)
	raw, err := l.read(s)
	require.NoError(t, err)
	require.EqualValues(t, 0, binary.BigEndian.Uint64(raw))
	require.EqualValues(t, 1, binary.BigEndian.Uint64(raw[len(raw)/2:]))
	l.close()
	l = diskLog(t, disk)
	at, err = l.ends()
	require.NoError(t, err)
	require.EqualValues(t, 2, at.high)
	l.close()
}

// A log that is given up, or deleted, says so to all who wait, and says the same from
// then on.
func TestALogThatIsGivenUpTellsWhoWaits(t *testing.T) {
	moved := func(l *partitionLog) { l.stop(kafkaErrorf(kerr.NotLeaderForPartition, "moved")) }
	for _, c := range []struct {
		ends []func(*partitionLog)
		want *kerr.Error
	}{
		{[]func(*partitionLog){moved, (*partitionLog).remove}, kerr.NotLeaderForPartition},
		{[]func(*partitionLog){(*partitionLog).remove, moved}, kerr.UnknownTopicOrPartition},
	} {
		l := newPartitionLog("t", 0, 1<<20)
		told := make(chan struct{}, 1)
		done := l.watch(told)
		for i, end := range c.ends {
			end(l)
			if i == 0 {
				require.Len(t, told, 1)
			}
			_, err := l.ends()
			require.Equal(t, c.want.Code, codeOf(err))
			require.Equal(t, c.want.Code, codeOf(l.append(plain(1, 1))))
		}
		done()
	}
}

// A batch may be as long as the limit, and no longer.
func TestABatchMayBeAsLongAsTheLimit(t *testing.T) {
	b := plain(1, 100)
	require.NoError(t, newPartitionLog("t", 0, len(b)).append(b))
	require.Equal(t, kerr.MessageTooLarge.Code, codeOf(newPartitionLog("t", 0, len(b)-1).append(b)))
}
