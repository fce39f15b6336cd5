package minibroker

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kafkatxn/kafkatxn/internal/crashfs"
	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// A member that waits for its assignment, and whose round is overtaken by the next,
// is told at once: it has to join again.
func TestAnAssignmentThatDoesNotComeIsToldOf(t *testing.T) {
	now := time.UnixMilli(1000)
	g := newGroup("g", 0, now)
	join := func(member string) (string, <-chan *kmsg.JoinGroupResponse) {
		r := kmsg.NewPtrJoinGroupRequest()
		r.Version, r.MemberID, r.ProtocolType, r.SessionTimeoutMillis, r.RebalanceTimeoutMillis = 3, member, "consumer", 10_000, 60_000
		r.Protocols = protocols("range")
		answer, wait := g.join(r, client{id: "c"}, 10, now)
		require.Nil(t, answer)
		for id, m := range g.members {
			if member == "" && m.joining == wait {
				member = id
			}
		}
		return member, wait
	}
	_, wait := join("")
	a := (<-wait).MemberID
	b, _ := join("")
	_, wait = join(a)
	generation := (<-wait).Generation
	follower := a
	if g.leader == a {
		follower = b
	}
	r := kmsg.NewPtrSyncGroupRequest()
	r.MemberID, r.Generation = follower, generation
	answer, syncing := g.sync(r, now)
	require.Nil(t, answer)
	require.Empty(t, syncing)
	join("")
	require.Len(t, syncing, 1)
	refused(t, kerr.RebalanceInProgress, (<-syncing).ErrorCode)
}

// One member is enough for a group not to be empty.
func TestAGroupWithAMemberIsNotDeleted(t *testing.T) {
	h := newGroupHost(t, Config{})
	member := h.joined("g").get(t).MemberID
	r := kmsg.NewPtrDeleteGroupsRequest()
	r.Groups = []string{"g"}
	remove := func() int16 { return ask[*kmsg.DeleteGroupsResponse](t, h.b, r, 2).Groups[0].ErrorCode }
	refused(t, kerr.NonEmptyGroup, remove())
	refused(t, nil, h.leave("g", member))
	refused(t, nil, remove())
}

// A static member commits under its instance, and nobody else does (F31, KIP-345).
func TestF31_AnInstanceIsOneMembers(t *testing.T) {
	h := newGroupHost(t, Config{Topics: map[string]int32{"t": 1}})
	r := h.request("g", "")
	r.InstanceID = kmsg.StringPtr("i")
	x := h.join(r).get(t)
	refused(t, nil, x.ErrorCode)
	h.sync("g", x.MemberID, x.Generation, x.MemberID).get(t)
	for member, want := range map[string]*kerr.Error{x.MemberID: nil, "other": kerr.FencedInstanceID} {
		c := kmsg.NewPtrOffsetCommitRequest()
		c.Group, c.MemberID, c.InstanceID, c.Generation = "g", member, kmsg.StringPtr("i"), x.Generation
		c.Topics = []kmsg.OffsetCommitRequestTopic{{Topic: "t", Partitions: []kmsg.OffsetCommitRequestTopicPartition{{Offset: 1, LeaderEpoch: -1}}}}
		refused(t, want, ask[*kmsg.OffsetCommitResponse](t, h.b, c, 8).Topics[0].Partitions[0].ErrorCode)
		hb := kmsg.NewPtrHeartbeatRequest()
		hb.Group, hb.MemberID, hb.InstanceID, hb.Generation = "g", member, kmsg.StringPtr("i"), x.Generation
		refused(t, want, ask[*kmsg.HeartbeatResponse](t, h.b, hb, 4).ErrorCode)
	}
}

// Who waits for a group that moves to another broker is told to look for it there.
func TestWhoWaitsForAGroupThatMovesIsTold(t *testing.T) {
	h := newGroupHost(t, Config{})
	h.joined("g").get(t)
	second := h.joined("g")
	h.waiting("g", 1)
	h.b.groups.forget(txnstate.OffsetsPartition("g"))
	refused(t, kerr.NotCoordinator, second.get(t).ErrorCode)
}

// A member id that was given and is not used yet keeps its group.
func TestAGivenMemberIDKeepsItsGroup(t *testing.T) {
	h := newGroupHost(t, Config{})
	refused(t, kerr.MemberIDRequired, h.join(h.request("g", "")).get(t).ErrorCode)
	gs := h.b.groups
	later := h.b.now().Add(time.Hour)
	gs.mu.Lock()
	defer gs.mu.Unlock()
	require.Zero(t, gs.sweep(later, true))
	gs.byID["g"].tick(later)
	require.Equal(t, 1, gs.sweep(later, true))
}

// A change that a broker has taken in, or was told of, outlasts a loss of power,
// whoever made it.
func TestAChangeThatIsKnownIsDurable(t *testing.T) {
	disk := crashfs.New(0)
	require.NoError(t, disk.MkdirAll("d", 0o755))
	require.NoError(t, disk.SyncDir("/"))
	errSync := errors.New("no sync")
	broken := false
	read := func(fsys fsx.FS) (*changes, *[]string) {
		var got []string
		c, err := openChanges(Config{FS: fsys, Dir: "d", Fsync: Always}, func(ch change) error {
			got = append(got, ch.Create.Name)
			return nil
		})
		require.NoError(t, err)
		return c, &got
	}
	made := func(c *changes, name string) error {
		return c.add(func() (change, error) { return change{Create: &topicJSON{Name: name}}, nil })
	}
	want := func(names ...string) {
		t.Helper()
		for image := range uint64(4) {
			_, got := read(disk.Image(image))
			require.Equal(t, names, *got)
		}
	}
	a, seen := read(fsx.Hook(disk, func(op fsx.Op, _ string) error {
		if op == fsx.OpSyncDir && broken {
			return errSync
		}
		return nil
	}))
	require.NoError(t, made(a, "one"))
	require.Equal(t, []string{"one"}, *seen)
	want("one")
	require.NoError(t, a.refresh())
	require.Equal(t, []string{"one"}, *seen, "once")

	b, seen := read(disk)
	broken = true
	require.ErrorIs(t, made(a, "two"), errSync) // and it is there
	require.NoError(t, b.refresh())
	require.Equal(t, []string{"one", "two"}, *seen)
	want("one", "two")
}

// A partition is not taken over before the markers that have arrived are done with,
// nor at once by a broker that has just lost it.
func TestATakeoverWaitsForWhatHasArrived_F14(t *testing.T) {
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
		lose := func() {
			l.stop(kafkaErrorf(kerr.NotLeaderForPartition, "for a test"))
			_, _ = c.lead(topic, part) // finds it down
			time.Sleep(c.patience() / 2)
			require.Nil(t, led(), "others have a try")
		}
		lose()
		time.Sleep(c.patience())
		l = led()
		require.NotNil(t, l)

		end := c.arrived()
		lose()
		time.Sleep(5 * c.patience())
		require.Nil(t, led(), "a marker has arrived")
		end()
		time.Sleep(c.patience())
		require.NotNil(t, led())

		// The same of what groups have.
		o := c.offsets
		group := int32(0)
		for c.coordinator(group) != n.cfg.NodeID {
			group++
		}
		served := func() *offsetsPart {
			o.mu.Lock()
			defer o.mu.Unlock()
			if x := o.parts[group]; x.served && x.log != nil {
				return &x
			}
			return nil
		}
		lost := func() {
			x := served()
			require.NotNil(t, x)
			require.Error(t, o.failed(group, x.log, kafkaErrorf(kerr.NotCoordinator, "for a test")))
		}
		lost()
		time.Sleep(5 * c.patience())
		end = c.arrived()
		lost()
		time.Sleep(5 * c.patience())
		require.Nil(t, served(), "a marker has arrived")
		end()
		time.Sleep(c.patience())
		require.NotNil(t, served())
	})
}

// Offsets of a topic that was deleted while nobody served its groups are not those of
// the next topic with the name.
func TestOffsetsOfADeletedTopicDoNotComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTrio(t, Config{})
		n := tr.nodes[3]
		require.Zero(t, tr.create(tr.nodes[1], "t", 1))
		group := tr.keyOn(0, n, "g")
		c := kmsg.NewPtrOffsetCommitRequest()
		c.Group, c.Generation = group, -1
		c.Topics = []kmsg.OffsetCommitRequestTopic{{Topic: "t", Partitions: []kmsg.OffsetCommitRequestTopicPartition{{Offset: 7, LeaderEpoch: -1}}}}
		tr.untilAt(0, group, func(n *node) int16 {
			return as[*kmsg.OffsetCommitResponse](tr, n, c, 8).Topics[0].Partitions[0].ErrorCode
		})
		n.kill()
		drop := kmsg.NewPtrDeleteTopicsRequest()
		drop.TopicNames = []string{"t"}
		require.Zero(t, as[*kmsg.DeleteTopicsResponse](tr, tr.nodes[1], drop, 5).Topics[0].ErrorCode)
		time.Sleep(5 * tr.nodes[1].cfg.Lease)
		require.Zero(t, tr.create(tr.nodes[2], "t", 1))
		offset, _ := tr.position(group, "t", 0)
		require.EqualValues(t, -1, offset)
	})
}

// A topic that another broker has just made, and this one has not heard of, is not
// gone: a marker for it is tried again, not taken for done (F38).
func TestATopicThatIsNewsIsNotGone_F38(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTrio(t, Config{})
		for i, name := range []string{"a", "b"} {
			n := tr.nodes[int32(i+2)]
			require.Zero(t, tr.create(tr.nodes[1], name, 1))
			require.Nil(t, n.topics.get(name), "no time has passed")
			if i == 0 {
				require.False(t, n.topics.Deleted(name, 0))
			} else {
				_, standing := n.topics.Leader(txnstate.Partition(name, 0))
				require.NotEqual(t, markers.Gone, standing)
			}
			require.True(t, n.topics.Deleted(name, 1), "it never had one")
		}
	})
}

// A repeat of batches is answered with the offsets of the first time, each partition
// with its own, however many are in the request.
func TestARepeatHasTheOffsetsOfTheFirstTime(t *testing.T) {
	b := start(t, Config{Topics: map[string]int32{"t": 3}})
	p := txnstate.Producer{ID: 9}
	send := func(batches ...[]byte) (bases []int64) {
		r := kmsg.NewPtrProduceRequest()
		r.Acks = -1
		rt := kmsg.NewProduceRequestTopic()
		rt.Topic = "t"
		for n, batch := range batches {
			if batch != nil {
				rt.Partitions = append(rt.Partitions, kmsg.ProduceRequestTopicPartition{Partition: int32(n), Records: batch})
			}
		}
		r.Topics = append(r.Topics, rt)
		for _, x := range ask[*kmsg.ProduceResponse](t, b, r, 9).Topics[0].Partitions {
			refused(t, nil, x.ErrorCode)
			bases = append(bases, x.BaseOffset)
		}
		return bases
	}
	send(plain(5, 1), plain(3, 1), plain(7, 1))
	batch := recordBatch(p, 0, 2, 1, false)
	require.Equal(t, []int64{5, 3, 7}, send(batch, batch, batch))
	require.Equal(t, []int64{5, 3, 7}, send(batch, batch, batch))
	require.Equal(t, []int64{3}, send(nil, batch))
}
