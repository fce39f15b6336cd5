package minibroker

import (
	"crypto/rand"
	"encoding/hex"
	"slices"
	"sync"
	"time"

	kxoffsets "github.com/kafkatxn/kafkatxn/offsets"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// group is one consumer group of the classic protocol. Its members live in
// memory: after a restart they are told that they are unknown, and join again.
// The rules are those of Kafka's GroupMetadataManager and ClassicGroup.
type group struct {
	id    string
	delay time.Duration // before the first round of an empty group ends

	mu         sync.Mutex
	state      kxoffsets.GroupState
	generation int32
	protoType  string
	protocol   string
	leader     string
	members    map[string]*member
	instances  map[string]string    // static members: instance id -> member id
	pending    map[string]time.Time // member ids given and not used yet, with their deadline
	joinEnds   time.Time            // in Preparing: when the round ends at the latest
	joinBegan  time.Time
	first      bool      // in Preparing: the round ends at joinEnds and no earlier
	syncEnds   time.Time // in Completing, Stable: when members that have not synced are dropped
	emptySince time.Time
}

type member struct {
	id, clientID, host string
	instance           *string
	protocols          []kmsg.JoinGroupRequestProtocol // in the order of preference
	session, rebalance time.Duration
	expires            time.Time // unless it waits for an answer

	joining    chan *kmsg.JoinGroupResponse // not nil: it waits for the round to end
	syncing    chan *kmsg.SyncGroupResponse // not nil: it waits for its assignment
	synced     bool
	assignment []byte
}

func newGroup(id string, delay time.Duration, now time.Time) *group {
	return &group{
		id: id, delay: delay, state: kxoffsets.GroupEmpty, emptySince: now,
		members: map[string]*member{}, instances: map[string]string{}, pending: map[string]time.Time{},
	}
}

// maxIDPrefix bounds what of a client's name goes into a member id, so that the
// id fits everywhere.
const maxIDPrefix = 255

func newMemberID(clientID string, instance *string) string {
	prefix := clientID
	if instance != nil {
		prefix = *instance
	}
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return prefix[:min(len(prefix), maxIDPrefix)] + "-" + hex.EncodeToString(b[:])
}

// check compares a caller with the members (ClassicGroup.validateMember).
func (g *group) check(memberID string, instance *string) *kerr.Error {
	if instance != nil {
		owner, ok := g.instances[*instance]
		switch {
		case !ok:
			return kerr.UnknownMemberID
		case owner != memberID:
			return kerr.FencedInstanceID
		}
	}
	if g.members[memberID] == nil {
		return kerr.UnknownMemberID
	}
	return nil
}

// supports reports whether a member with these protocols can be in the group.
func (g *group) supports(protoType string, ps []kmsg.JoinGroupRequestProtocol) bool {
	if len(g.members) == 0 {
		return protoType != "" && len(ps) > 0
	}
	return protoType == g.protoType && slices.ContainsFunc(ps, func(p kmsg.JoinGroupRequestProtocol) bool { return g.all(p.Name) })
}

// all reports whether every member supports a protocol.
func (g *group) all(protocol string) bool {
	for _, m := range g.members {
		if m.metadata(protocol) == nil {
			return false
		}
	}
	return true
}

// metadata is what a member says for a protocol, nil if it does not support it.
func (m *member) metadata(protocol string) []byte {
	for _, p := range m.protocols {
		if p.Name == protocol {
			if p.Metadata == nil {
				return []byte{}
			}
			return p.Metadata
		}
	}
	return nil
}

// same reports whether a member would join with what it has said already.
func (m *member) same(ps []kmsg.JoinGroupRequestProtocol) bool {
	return slices.EqualFunc(m.protocols, ps, func(a, b kmsg.JoinGroupRequestProtocol) bool {
		return a.Name == b.Name && string(a.Metadata) == string(b.Metadata)
	})
}

// vote chooses the protocol: each member votes for the first of its own that all
// support.
func (g *group) vote() string {
	votes := map[string]int{}
	for _, m := range g.members {
		for _, p := range m.protocols {
			if g.all(p.Name) {
				votes[p.Name]++
				break
			}
		}
	}
	best := ""
	for p, n := range votes {
		if b := votes[best]; n > b || n == b && p < best {
			best = p
		}
	}
	return best
}

// touch restarts a member's session.
func (m *member) touch(now time.Time) { m.expires = now.Add(m.session) }

// add takes a member in, waiting for the round that follows.
func (g *group) add(m *member, protoType string, now time.Time) {
	if len(g.members) == 0 {
		g.protoType = protoType
	}
	if g.leader == "" {
		g.leader = m.id
	}
	g.members[m.id] = m
	delete(g.pending, m.id)
	if m.instance != nil {
		g.instances[*m.instance] = m.id
	}
	if g.state == kxoffsets.GroupPreparing && g.first {
		// Give the others of a group that is starting the same time again.
		g.joinEnds = now.Add(g.delay)
		if limit := g.joinBegan.Add(g.rebalanceTimeout()); g.joinEnds.After(limit) {
			g.joinEnds = limit
		}
	}
}

// remove takes a member out. A new round is the caller's to start.
func (g *group) remove(m *member) {
	m.answerJoin(&kmsg.JoinGroupResponse{ErrorCode: kerr.UnknownMemberID.Code})
	m.answerSync(&kmsg.SyncGroupResponse{ErrorCode: kerr.UnknownMemberID.Code})
	delete(g.members, m.id)
	if m.instance != nil && g.instances[*m.instance] == m.id {
		delete(g.instances, *m.instance)
	}
	if g.leader == m.id {
		g.leader = ""
		for id := range g.members {
			g.leader = id
			break
		}
	}
}

func (m *member) answerJoin(r *kmsg.JoinGroupResponse) {
	if m.joining != nil {
		m.joining <- r // has room for one, and nobody else sends
		m.joining = nil
	}
}

func (m *member) answerSync(r *kmsg.SyncGroupResponse) {
	if m.syncing != nil {
		m.syncing <- r
		m.syncing = nil
	}
}

func (g *group) rebalanceTimeout() time.Duration {
	var d time.Duration
	for _, m := range g.members {
		d = max(d, m.rebalance)
	}
	return d
}

// prepare starts a round, or goes on with the one under way, and ends it at once
// where everybody is there.
func (g *group) prepare(now time.Time) {
	if g.state != kxoffsets.GroupPreparing {
		for _, m := range g.members {
			// Those who waited for the assignment of the round before.
			m.answerSync(&kmsg.SyncGroupResponse{ErrorCode: kerr.RebalanceInProgress.Code})
			m.assignment, m.synced = nil, false
		}
		g.first = g.state == kxoffsets.GroupEmpty && g.delay > 0
		g.state = kxoffsets.GroupPreparing
		g.joinBegan, g.joinEnds = now, now.Add(g.rebalanceTimeout())
		if g.first {
			g.joinEnds = now.Add(g.delay)
		}
	}
	if !g.first {
		g.maybeComplete(now)
	}
}

// maybeComplete ends the round if nobody is missing.
func (g *group) maybeComplete(now time.Time) {
	if g.state != kxoffsets.GroupPreparing || g.first || len(g.pending) > 0 {
		return
	}
	for _, m := range g.members {
		if m.joining == nil {
			return
		}
	}
	g.complete(now)
}

// complete ends the round: who has not come is out, unless it is static.
func (g *group) complete(now time.Time) {
	joined := ""
	for _, m := range g.members {
		switch {
		case m.joining != nil:
			if joined == "" || m.id < joined {
				joined = m.id
			}
		case m.instance == nil:
			g.remove(m)
		}
	}
	if joined == "" && len(g.members) > 0 {
		// Only static members, and none is back: wait for another round's time.
		g.joinEnds = now.Add(g.rebalanceTimeout())
		return
	}
	g.generation++
	g.first = false
	if len(g.members) == 0 {
		g.state, g.protocol, g.leader, g.emptySince = kxoffsets.GroupEmpty, "", "", now
		return
	}
	if l := g.members[g.leader]; l == nil || l.joining == nil {
		g.leader = joined
	}
	g.protocol = g.vote()
	g.state = kxoffsets.GroupCompleting
	g.syncEnds = now.Add(g.rebalanceTimeout())
	for _, m := range g.members {
		m.synced, m.assignment = false, nil
		m.answerJoin(g.joined(m))
		m.touch(now)
	}
}

// joined is the answer to a member that is in the present generation.
func (g *group) joined(m *member) *kmsg.JoinGroupResponse {
	r := kmsg.NewPtrJoinGroupResponse()
	r.Generation, r.LeaderID, r.MemberID = g.generation, g.leader, m.id
	protoType, protocol := g.protoType, g.protocol
	r.ProtocolType, r.Protocol = &protoType, &protocol
	if m.id == g.leader {
		r.Members = g.list()
	}
	return r
}

func (g *group) list() []kmsg.JoinGroupResponseMember {
	var out []kmsg.JoinGroupResponseMember
	for _, id := range g.memberIDs() {
		x := kmsg.NewJoinGroupResponseMember()
		x.MemberID, x.InstanceID, x.ProtocolMetadata = id, g.members[id].instance, g.members[id].metadata(g.protocol)
		out = append(out, x)
	}
	return out
}

func (g *group) memberIDs() []string {
	ids := make([]string, 0, len(g.members))
	for id := range g.members {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// assign takes the leader's assignment, and ends the waiting for it.
func (g *group) assign(as []kmsg.SyncGroupRequestGroupAssignment, now time.Time) {
	for _, m := range g.members {
		m.assignment = nil
	}
	for _, a := range as {
		if m := g.members[a.MemberID]; m != nil {
			m.assignment = a.MemberAssignment
		}
	}
	g.state = kxoffsets.GroupStable
	for _, m := range g.members {
		if m.syncing != nil {
			m.answerSync(g.assigned(m))
			m.touch(now)
		}
	}
}

func (g *group) assigned(m *member) *kmsg.SyncGroupResponse {
	r := kmsg.NewPtrSyncGroupResponse()
	protoType, protocol := g.protoType, g.protocol
	r.ProtocolType, r.Protocol, r.MemberAssignment = &protoType, &protocol, m.assignment
	return r
}

// drop takes a member out and lets the others find a new assignment.
func (g *group) drop(m *member, now time.Time) {
	g.remove(m)
	switch g.state {
	case kxoffsets.GroupStable, kxoffsets.GroupCompleting:
		g.prepare(now)
	case kxoffsets.GroupPreparing:
		g.maybeComplete(now)
	}
}

// tick does what time has made due.
func (g *group) tick(now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for id, ends := range g.pending {
		if !ends.After(now) {
			delete(g.pending, id)
			g.maybeComplete(now)
		}
	}
	for _, id := range g.memberIDs() {
		m := g.members[id]
		if m == nil || m.joining != nil || m.syncing != nil || m.expires.After(now) {
			continue // a waiting member has its connection, not its heartbeats
		}
		g.drop(m, now)
	}
	if g.state == kxoffsets.GroupPreparing && !g.joinEnds.After(now) {
		g.complete(now)
	}
	if (g.state == kxoffsets.GroupCompleting || g.state == kxoffsets.GroupStable) && !g.syncEnds.After(now) {
		late := false
		for _, id := range g.memberIDs() {
			if m := g.members[id]; m != nil && !m.synced {
				g.remove(m)
				late = true
			}
		}
		if late {
			g.prepare(now)
		}
	}
}
