package minibroker

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kafkatxn/kafkatxn/wire"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// groupHost is a broker whose groups a test drives by requests and a clock.
type groupHost struct {
	t testing.TB
	b *Broker
}

func newGroupHost(t testing.TB, cfg Config) *groupHost {
	cfg.Now = newClock().Now
	return &groupHost{t, start(t, cfg)}
}

func protocols(names ...string) (ps []kmsg.JoinGroupRequestProtocol) {
	for _, n := range names {
		p := kmsg.NewJoinGroupRequestProtocol()
		p.Name, p.Metadata = n, []byte("metadata of "+n)
		ps = append(ps, p)
	}
	return ps
}

func (h *groupHost) request(group, member string, protos ...string) *kmsg.JoinGroupRequest {
	r := kmsg.NewPtrJoinGroupRequest()
	r.Version, r.Group, r.MemberID, r.ProtocolType = 9, group, member, "consumer"
	r.SessionTimeoutMillis, r.RebalanceTimeoutMillis = 10_000, 60_000
	if len(protos) == 0 {
		protos = []string{"range"}
	}
	r.Protocols = protocols(protos...)
	return r
}

// later is an answer that is waited for by a goroutine of its own.
type later[R any] <-chan R

func (l later[R]) get(t testing.TB) R {
	t.Helper()
	select {
	case r := <-l:
		return r
	case <-time.After(limit):
		t.Fatal("no answer")
		panic("unreachable")
	}
}

func (h *groupHost) join(r *kmsg.JoinGroupRequest) later[*kmsg.JoinGroupResponse] {
	c := make(chan *kmsg.JoinGroupResponse, 1)
	ctx := ctxFor(h.t)
	go func() {
		resp, err := h.b.Handle(context.WithValue(ctx, clientKey{}, client{id: "client", host: "host"}), r, anonymous)
		if err != nil {
			h.t.Error(err)
			resp = kmsg.NewPtrJoinGroupResponse()
		}
		c <- resp.(*kmsg.JoinGroupResponse)
	}()
	return c
}

// joined goes through both rounds of JoinGroup.
func (h *groupHost) joined(group string, protos ...string) later[*kmsg.JoinGroupResponse] {
	h.t.Helper()
	first := h.join(h.request(group, "", protos...)).get(h.t)
	refused(h.t, kerr.MemberIDRequired, first.ErrorCode)
	require.True(h.t, strings.HasPrefix(first.MemberID, "client-"), first.MemberID)
	return h.join(h.request(group, first.MemberID, protos...))
}

func (h *groupHost) sync(group, member string, generation int32, assign ...string) later[*kmsg.SyncGroupResponse] {
	r := kmsg.NewPtrSyncGroupRequest()
	r.Version, r.Group, r.MemberID, r.Generation = 5, group, member, generation
	r.ProtocolType, r.Protocol = kmsg.StringPtr("consumer"), kmsg.StringPtr("range")
	for _, m := range assign {
		a := kmsg.NewSyncGroupRequestGroupAssignment()
		a.MemberID, a.MemberAssignment = m, []byte("for "+m)
		r.GroupAssignment = append(r.GroupAssignment, a)
	}
	c := make(chan *kmsg.SyncGroupResponse, 1)
	ctx := ctxFor(h.t)
	go func() {
		resp, err := h.b.Handle(ctx, r, anonymous)
		if err != nil {
			h.t.Error(err)
			resp = kmsg.NewPtrSyncGroupResponse()
		}
		c <- resp.(*kmsg.SyncGroupResponse)
	}()
	return c
}

func (h *groupHost) heartbeat(group, member string, generation int32) int16 {
	r := kmsg.NewPtrHeartbeatRequest()
	r.Group, r.MemberID, r.Generation = group, member, generation
	return ask[*kmsg.HeartbeatResponse](h.t, h.b, r, 4).ErrorCode
}

func (h *groupHost) leave(group, member string) int16 {
	r := kmsg.NewPtrLeaveGroupRequest()
	r.Group, r.MemberID = group, member
	return ask[*kmsg.LeaveGroupResponse](h.t, h.b, r, 2).ErrorCode
}

// waiting returns when n members of a group wait for the round to end.
func (h *groupHost) waiting(group string, n int) {
	require.Eventually(h.t, func() bool {
		g := h.b.groups.find(group)
		if g == nil {
			return false
		}
		defer g.mu.Unlock()
		k := 0
		for _, m := range g.members {
			if m.joining != nil || m.syncing != nil {
				k++
			}
		}
		return k == n
	}, limit, time.Millisecond)
}

func (h *groupHost) describe(group string, version int16) kmsg.DescribeGroupsResponseGroup {
	r := kmsg.NewPtrDescribeGroupsRequest()
	r.Groups = []string{group}
	return ask[*kmsg.DescribeGroupsResponse](h.t, h.b, r, version).Groups[0]
}

// pair is a stable group of two in generation 2: the leader and another.
func (h *groupHost) pair(group string) (leader, other string) {
	h.t.Helper()
	a := h.joined(group).get(h.t)
	refused(h.t, nil, a.ErrorCode)
	require.EqualValues(h.t, 1, a.Generation)
	second := h.joined(group)
	h.waiting(group, 1)
	refused(h.t, kerr.RebalanceInProgress, h.heartbeat(group, a.MemberID, 1))
	again := h.join(h.request(group, a.MemberID)).get(h.t)
	b := second.get(h.t)
	require.EqualValues(h.t, 2, again.Generation)
	require.EqualValues(h.t, 2, b.Generation)
	require.Equal(h.t, a.MemberID, b.LeaderID)
	require.Len(h.t, again.Members, 2)
	require.Empty(h.t, b.Members)
	waits := h.sync(group, b.MemberID, 2)
	h.waiting(group, 1)
	refused(h.t, nil, h.sync(group, a.MemberID, 2, a.MemberID, b.MemberID).get(h.t).ErrorCode)
	got := waits.get(h.t)
	refused(h.t, nil, got.ErrorCode)
	require.Equal(h.t, "for "+b.MemberID, string(got.MemberAssignment))
	return a.MemberID, b.MemberID
}

// Every completed round is a generation, and the last member's leaving is one too,
// so that the next to join is two ahead.
func TestGenerationsOfAGroup(t *testing.T) {
	h := newGroupHost(t, Config{})
	leader, other := h.pair("g")
	refused(t, nil, h.leave("g", other))
	refused(t, kerr.RebalanceInProgress, h.heartbeat("g", leader, 2))
	require.EqualValues(t, 3, h.join(h.request("g", leader)).get(t).Generation)
	refused(t, nil, h.leave("g", leader))
	require.Equal(t, "Empty", h.describe("g", 5).State)
	refused(t, kerr.UnknownMemberID, h.leave("g", leader))
	require.EqualValues(t, 5, h.joined("g").get(t).Generation)
}

func TestWhoIsNotAMemberIsRefused(t *testing.T) {
	h := newGroupHost(t, Config{})
	refused(t, kerr.UnknownMemberID, h.leave("none", "ghost"))
	refused(t, kerr.UnknownMemberID, h.heartbeat("none", "ghost", 1))
	refused(t, kerr.UnknownMemberID, h.sync("none", "ghost", 1).get(t).ErrorCode)
	refused(t, kerr.UnknownMemberID, h.join(h.request("none", "ghost")).get(t).ErrorCode)
	refused(t, kerr.InvalidGroupID, h.join(h.request("", "")).get(t).ErrorCode)
	refused(t, kerr.InvalidGroupID, h.heartbeat("", "x", 1))
	refused(t, kerr.InvalidGroupID, h.leave("", "x"))
	refused(t, kerr.InvalidGroupID, h.sync("", "x", 1).get(t).ErrorCode)
	short := h.request("g", "")
	short.SessionTimeoutMillis = 10
	refused(t, kerr.InvalidSessionTimeout, h.join(short).get(t).ErrorCode)
	refused(t, kerr.InconsistentGroupProtocol, h.join(&kmsg.JoinGroupRequest{Version: 5, Group: "g", SessionTimeoutMillis: 10000}).get(t).ErrorCode)
	refused(t, kerr.InvalidRequest, h.join(h.request("g", "", strings.Split(strings.Repeat("x,", 200), ",")...)).get(t).ErrorCode)

	leader, _ := h.pair("g")
	refused(t, kerr.UnknownMemberID, h.heartbeat("g", "ghost", 2))
	refused(t, kerr.IllegalGeneration, h.heartbeat("g", leader, 1))
	refused(t, kerr.IllegalGeneration, h.sync("g", leader, 3).get(t).ErrorCode)
	refused(t, kerr.UnknownMemberID, h.sync("g", "ghost", 2).get(t).ErrorCode)
	refused(t, kerr.InconsistentGroupProtocol, h.join(h.request("g", "", "other")).get(t).ErrorCode)
	odd := h.request("g", "")
	odd.ProtocolType = "connect"
	refused(t, kerr.InconsistentGroupProtocol, h.join(odd).get(t).ErrorCode)
}

// An answer that was lost is given again without a new round (but the leader's
// return means that it wants one).
func TestAMemberThatJoinsAgain(t *testing.T) {
	h := newGroupHost(t, Config{})
	leader, other := h.pair("g")
	again := h.join(h.request("g", other)).get(t)
	require.EqualValues(t, 2, again.Generation)
	changed := h.join(h.request("g", other, "range", "sticky"))
	h.waiting("g", 1)
	require.EqualValues(t, 3, h.join(h.request("g", leader)).get(t).Generation)
	require.EqualValues(t, 3, changed.get(t).Generation)

	// Between the round and the assignment the leader may ask again too.
	x := h.join(h.request("g", leader)).get(t)
	require.EqualValues(t, 3, x.Generation)
	require.Len(t, x.Members, 2)
	require.Equal(t, "CompletingRebalance", h.describe("g", 5).State)
	require.Empty(t, h.describe("g", 5).Protocol)

	// A member that asks twice while it waits: the first request is over.
	h2 := newGroupHost(t, Config{})
	a, b := h2.pair("g")
	_ = a
	first := h2.join(h2.request("g", b, "range", "x"))
	h2.waiting("g", 1)
	second := h2.join(h2.request("g", b, "range", "x"))
	refused(t, kerr.RebalanceInProgress, first.get(t).ErrorCode)
	refused(t, nil, h2.leave("g", a))
	require.EqualValues(t, 3, second.get(t).Generation)
}

// Before v4 of JoinGroup a member is taken in at once.
func TestAnOldClientNeedsNoMemberID(t *testing.T) {
	h := newGroupHost(t, Config{})
	r := h.request("g", "")
	r.Version = 3
	x := h.join(r).get(t)
	refused(t, nil, x.ErrorCode)
	require.EqualValues(t, 1, x.Generation)
	require.Equal(t, x.MemberID, x.LeaderID)
	r = h.request("g0", "")
	r.Version = 2
	r.SessionTimeoutMillis = 1
	x = h.join(r).get(t)
	refused(t, kerr.InvalidSessionTimeout, x.ErrorCode)
	require.NotNil(t, x.Protocol, "not nullable before v7")
}

// Sessions are measured by the broker's clock. A member that waits for an answer
// is not gone.
func TestMembersThatAreSilentAreDropped(t *testing.T) {
	h := newGroupHost(t, Config{})
	ctx := ctxFor(t)
	leader, other := h.pair("g")
	require.NoError(t, h.b.Advance(ctx, 9*time.Second))
	refused(t, nil, h.heartbeat("g", leader, 2))
	require.NoError(t, h.b.Advance(ctx, 2*time.Second))
	refused(t, kerr.RebalanceInProgress, h.heartbeat("g", leader, 2))
	refused(t, kerr.UnknownMemberID, h.heartbeat("g", other, 2))
	require.EqualValues(t, 3, h.join(h.request("g", leader)).get(t).Generation)

	// The round ends without those that do not come.
	newcomer := h.joined("g")
	h.waiting("g", 1)
	require.NoError(t, h.b.Advance(ctx, 5*time.Second))
	refused(t, kerr.RebalanceInProgress, h.heartbeat("g", leader, 3))
	for range 11 {
		require.NoError(t, h.b.Advance(ctx, 5*time.Second))
		_ = h.heartbeat("g", leader, 3)
	}
	x := newcomer.get(t)
	require.EqualValues(t, 4, x.Generation)
	require.Equal(t, x.MemberID, x.LeaderID)
	refused(t, kerr.UnknownMemberID, h.heartbeat("g", leader, 4))

	// A member that never fetches its assignment is dropped after the same time.
	for range 12 {
		refused(t, nil, h.heartbeat("g", x.MemberID, 4))
		require.NoError(t, h.b.Advance(ctx, 5*time.Second))
	}
	refused(t, kerr.UnknownMemberID, h.heartbeat("g", x.MemberID, 4))

	// A member id that is not used is forgotten, and holds up nobody after that.
	refused(t, kerr.MemberIDRequired, h.join(h.request("p", "")).get(t).ErrorCode)
	one := h.joined("p")
	h.waiting("p", 1)
	require.NoError(t, h.b.Advance(ctx, 11*time.Second))
	require.EqualValues(t, 1, one.get(t).Generation)
}

// A group whose coordinator waits for more members gives all of them the same
// generation.
func TestTheFirstRoundCanWait(t *testing.T) {
	h := newGroupHost(t, Config{RebalanceDelay: 3 * time.Second})
	a := h.joined("g")
	h.waiting("g", 1)
	b := h.joined("g")
	h.waiting("g", 2)
	require.NoError(t, h.b.Advance(ctxFor(t), 3*time.Second))
	require.EqualValues(t, 1, a.get(t).Generation)
	require.EqualValues(t, 1, b.get(t).Generation)
}

// A static member that starts again takes its former place without a round, and
// its former self is fenced (KIP-345).
func TestAStaticMemberComesBack(t *testing.T) {
	for _, version := range []int16{8, 9} {
		t.Run(fmt.Sprint("v", version), func(t *testing.T) {
			h := newGroupHost(t, Config{})
			static := func(member string) *kmsg.JoinGroupRequest {
				r := h.request("g", member)
				r.Version, r.InstanceID = version, kmsg.StringPtr("static")
				return r
			}
			old := h.join(static("")).get(t)
			refused(t, nil, old.ErrorCode)
			require.True(t, strings.HasPrefix(old.MemberID, "static-"))
			refused(t, nil, h.sync("g", old.MemberID, 1, old.MemberID).get(t).ErrorCode)

			now := h.join(static("")).get(t)
			refused(t, nil, now.ErrorCode)
			require.EqualValues(t, 1, now.Generation)
			require.NotEqual(t, old.MemberID, now.MemberID)
			if version >= 9 {
				require.True(t, now.SkipAssignment)
				require.Equal(t, now.MemberID, now.LeaderID)
				require.Len(t, now.Members, 1)
			} else {
				require.Equal(t, old.MemberID, now.LeaderID)
			}
			refused(t, kerr.UnknownMemberID, h.heartbeat("g", old.MemberID, 1))
			refused(t, kerr.FencedInstanceID, h.join(static(old.MemberID)).get(t).ErrorCode)
			require.Equal(t, "for "+old.MemberID, string(h.sync("g", now.MemberID, 1).get(t).MemberAssignment))

			// An administrator removes it by its instance id.
			r := kmsg.NewPtrLeaveGroupRequest()
			r.Group = "g"
			for _, id := range []string{"static", "other"} {
				m := kmsg.NewLeaveGroupRequestMember()
				m.InstanceID = kmsg.StringPtr(id)
				r.Members = append(r.Members, m)
			}
			left := ask[*kmsg.LeaveGroupResponse](t, h.b, r, 5)
			refused(t, nil, left.ErrorCode)
			refused(t, nil, left.Members[0].ErrorCode)
			refused(t, kerr.UnknownMemberID, left.Members[1].ErrorCode)
			require.Equal(t, "Empty", h.describe("g", 5).State)
		})
	}
}

// A commit of an old generation is refused, and one within a transaction too: the
// library asks the broker's groups (§7.2).
func TestCommitsAreOfTheGeneration(t *testing.T) {
	h := newGroupHost(t, Config{Topics: map[string]int32{"t": 1}})
	leader, _ := h.pair("g")
	commit := func(group, member string, generation int32) int16 {
		r := kmsg.NewPtrOffsetCommitRequest()
		r.Group, r.MemberID, r.Generation = group, member, generation
		x := kmsg.NewOffsetCommitRequestTopic()
		x.Topic = "t"
		x.Partitions = append(x.Partitions, kmsg.NewOffsetCommitRequestTopicPartition())
		r.Topics = append(r.Topics, x)
		return ask[*kmsg.OffsetCommitResponse](t, h.b, r, 8).Topics[0].Partitions[0].ErrorCode
	}
	refused(t, nil, commit("g", leader, 2))
	refused(t, kerr.IllegalGeneration, commit("g", leader, 1))
	refused(t, kerr.UnknownMemberID, commit("g", "ghost", 2))
	refused(t, kerr.UnknownMemberID, commit("g", "", -1))
	refused(t, nil, commit("simple", "", -1))
	require.Equal(t, "Empty", h.describe("simple", 5).State)
	refused(t, kerr.IllegalGeneration, commit("missing", "m", 1))
}

func TestDescribeListAndDeleteGroups(t *testing.T) {
	h := newGroupHost(t, Config{})
	leader, _ := h.pair("g")
	x := h.describe("g", 5)
	require.Equal(t, "Stable", x.State)
	require.Equal(t, "consumer", x.ProtocolType)
	require.Equal(t, "range", x.Protocol)
	require.Len(t, x.Members, 2)
	require.Equal(t, "client", x.Members[0].ClientID)
	require.Equal(t, "host", x.Members[0].ClientHost)
	require.Equal(t, "metadata of range", string(x.Members[0].ProtocolMetadata))
	require.Equal(t, "for "+x.Members[0].MemberID, string(x.Members[0].MemberAssignment))
	require.Equal(t, "Dead", h.describe("none", 5).State)
	refused(t, kerr.GroupIDNotFound, h.describe("none", 6).ErrorCode)

	h.b.groups.Ensure("simple")
	list := func(states, types []string) (ids []string) {
		r := kmsg.NewPtrListGroupsRequest()
		r.StatesFilter, r.TypesFilter = states, types
		for _, g := range ask[*kmsg.ListGroupsResponse](t, h.b, r, 5).Groups {
			ids = append(ids, g.Group+" "+g.GroupState+" "+g.GroupType)
		}
		return ids
	}
	require.Equal(t, []string{"g Stable classic", "simple Empty classic"}, list(nil, nil))
	require.Equal(t, []string{"simple Empty classic"}, list([]string{"empty"}, []string{"Classic"}))
	require.Empty(t, list(nil, []string{"share"}))

	remove := func(group string) int16 {
		r := kmsg.NewPtrDeleteGroupsRequest()
		r.Groups = []string{group}
		return ask[*kmsg.DeleteGroupsResponse](t, h.b, r, 2).Groups[0].ErrorCode
	}
	refused(t, kerr.NonEmptyGroup, remove("g"))
	refused(t, kerr.GroupIDNotFound, remove("none"))
	refused(t, kerr.InvalidGroupID, remove(""))
	refused(t, nil, remove("simple"))
	refused(t, kerr.GroupIDNotFound, remove("simple"))
	refused(t, nil, h.leave("g", leader))
}

// There is a bound on what clients can make the broker keep (I13); groups without
// members make room.
func TestGroupsAreBounded(t *testing.T) {
	h := newGroupHost(t, Config{Limits: Limits{Groups: 2, GroupMembers: 2}})
	h.pair("a")
	refused(t, kerr.GroupMaxSizeReached, h.join(h.request("a", "")).get(t).ErrorCode)
	h.b.groups.Ensure("b")
	for i := range 10 {
		h.b.groups.Ensure(fmt.Sprint("c", i))
	}
	require.Len(t, h.b.groups.byID, 2)
	h.pair("d")
	refused(t, kerr.PolicyViolation, h.join(h.request("e", "")).get(t).ErrorCode)
}

// Of access rules groups know READ, DESCRIBE and DELETE.
func TestGroupsAreAuthorised(t *testing.T) {
	h := newGroupHost(t, Config{Authorizer: wire.AuthorizerFunc(func(_ context.Context, _ wire.Principal, _ wire.Operation, r wire.Resource) bool {
		return r.Type != wire.GroupResource
	})})
	refused(t, kerr.GroupAuthorizationFailed, h.join(h.request("g", "")).get(t).ErrorCode)
	refused(t, kerr.GroupAuthorizationFailed, h.sync("g", "m", 1).get(t).ErrorCode)
	refused(t, kerr.GroupAuthorizationFailed, h.heartbeat("g", "m", 1))
	refused(t, kerr.GroupAuthorizationFailed, h.leave("g", "m"))
	refused(t, kerr.GroupAuthorizationFailed, h.describe("g", 5).ErrorCode)
	r := kmsg.NewPtrDeleteGroupsRequest()
	r.Groups = []string{"g"}
	refused(t, kerr.GroupAuthorizationFailed, ask[*kmsg.DeleteGroupsResponse](t, h.b, r, 2).Groups[0].ErrorCode)
}

// A request that waits ends with its client, and the member stays.
func TestAWaitingMemberWhoseClientLeaves(t *testing.T) {
	h := newGroupHost(t, Config{})
	leader, other := h.pair("g")
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, err := h.b.Handle(ctx, h.request("g", other, "range", "x"), anonymous)
		require.NoError(t, err)
	}()
	h.waiting("g", 1)
	cancel()
	<-done
	require.EqualValues(t, 3, h.join(h.request("g", leader)).get(t).Generation)
	refused(t, nil, h.heartbeat("g", other, 3))
}

// Offsets are kept for as long as their group has members, and a week longer, however
// long ago they were committed (KIP-211).
func TestOffsetsOutliveTheirGroupForAWeek(t *testing.T) {
	h := newGroupHost(t, Config{Topics: map[string]int32{"t": 1}})
	commit := kmsg.NewPtrOffsetCommitRequest()
	commit.Group, commit.Generation = "g", -1
	commit.Topics = []kmsg.OffsetCommitRequestTopic{{Topic: "t", Partitions: []kmsg.OffsetCommitRequestTopicPartition{{Offset: 7, LeaderEpoch: -1}}}}
	refused(t, nil, ask[*kmsg.OffsetCommitResponse](t, h.b, commit, 8).Topics[0].Partitions[0].ErrorCode)
	position := func() int64 {
		r := kmsg.NewPtrOffsetFetchRequest()
		r.Group, r.Topics = "g", []kmsg.OffsetFetchRequestTopic{{Topic: "t", Partitions: []int32{0}}}
		return ask[*kmsg.OffsetFetchResponse](t, h.b, r, 5).Topics[0].Partitions[0].Offset
	}
	h.joined("g").get(t)
	for _, day := range []struct {
		after time.Duration
		want  int64
	}{{8, 7}, {6, 7}, {2, -1}} {
		require.NoError(t, h.b.Advance(ctxFor(t), day.after*24*time.Hour))
		require.Equal(t, day.want, position(), "%d days later", day.after)
	}
}
