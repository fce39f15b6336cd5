package minibroker

import (
	"context"
	"time"

	kxoffsets "github.com/kafkatxn/kafkatxn/offsets"
	"github.com/kafkatxn/kafkatxn/wire"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Kafka's bounds of a member's session (group.min.session.timeout.ms,
// group.max.session.timeout.ms).
const (
	minSession = 6 * time.Second
	maxSession = 30 * time.Minute
)

// maxProtocols bounds what the choice of a protocol costs.
const maxProtocols = 100

func millis(ms int32) time.Duration { return time.Duration(ms) * time.Millisecond }

// joinGroup waits until the round ends that the member joins.
func (b *Broker) joinGroup(ctx context.Context, who wire.Principal, r *kmsg.JoinGroupRequest) (kmsg.Response, error) {
	resp := r.ResponseKind().(*kmsg.JoinGroupResponse)
	fill := func(from *kmsg.JoinGroupResponse) (kmsg.Response, error) {
		version := resp.Version
		*resp = *from
		resp.Version = version
		if resp.Protocol == nil && version < 7 {
			none := ""
			resp.Protocol = &none // not nullable before v7
		}
		return resp, nil
	}
	refuse := func(e *kerr.Error) (kmsg.Response, error) {
		x := kmsg.NewPtrJoinGroupResponse()
		x.ErrorCode, x.Generation, x.MemberID = e.Code, -1, r.MemberID
		return fill(x)
	}
	session := millis(r.SessionTimeoutMillis)
	switch {
	case !b.may(ctx, who, wire.OpRead, wire.GroupResource, r.Group):
		return refuse(kerr.GroupAuthorizationFailed)
	case r.Group == "":
		return refuse(kerr.InvalidGroupID)
	case session < minSession || session > maxSession:
		return refuse(kerr.InvalidSessionTimeout)
	}
	g, err := b.groups.forJoin(r.Group, r.MemberID == "")
	if err != nil {
		return refuse(err)
	}
	answer, wait := g.join(r, clientOf(ctx), b.groups.maxMembers, b.now())
	g.mu.Unlock()
	if answer != nil {
		return fill(answer)
	}
	select {
	case answer = <-wait:
		return fill(answer)
	case <-ctx.Done():
		return refuse(kerr.RebalanceInProgress) // the member stays: its client may come again
	}
}

// join is the answer to a JoinGroup, or what it will come from.
func (g *group) join(r *kmsg.JoinGroupRequest, c client, maxMembers int, now time.Time) (*kmsg.JoinGroupResponse, <-chan *kmsg.JoinGroupResponse) {
	refuse := func(e *kerr.Error) (*kmsg.JoinGroupResponse, <-chan *kmsg.JoinGroupResponse) {
		x := kmsg.NewPtrJoinGroupResponse()
		x.ErrorCode, x.Generation, x.MemberID = e.Code, -1, r.MemberID
		return x, nil
	}
	switch {
	case len(r.Protocols) > maxProtocols:
		return refuse(kerr.InvalidRequest)
	case !g.supports(r.ProtocolType, r.Protocols):
		return refuse(kerr.InconsistentGroupProtocol)
	}
	_, waiting := g.pending[r.MemberID]
	m := g.members[r.MemberID]
	if r.MemberID == "" || waiting && r.InstanceID == nil {
		replaced := ""
		if r.MemberID == "" && r.InstanceID != nil {
			replaced = g.instances[*r.InstanceID]
		}
		if replaced == "" && len(g.members)+len(g.pending) >= maxMembers && !waiting {
			return refuse(kerr.GroupMaxSizeReached)
		}
		id := r.MemberID
		if id == "" {
			id = newMemberID(c.id, r.InstanceID)
			if r.Version >= 4 && r.InstanceID == nil {
				// KIP-394: a client that can't be told its id would leave a member
				// behind with every attempt.
				g.pending[id] = now.Add(millis(r.SessionTimeoutMillis))
				x := kmsg.NewPtrJoinGroupResponse()
				x.ErrorCode, x.Generation, x.MemberID = kerr.MemberIDRequired.Code, -1, id
				return x, nil
			}
		}
		m = &member{id: id, clientID: c.id, host: c.host, instance: r.InstanceID}
		if replaced != "" {
			return g.replaceStatic(g.members[replaced], m, r, now)
		}
		wait := m.wait(r, now)
		g.add(m, r.ProtocolType, now)
		g.prepare(now)
		return nil, wait
	}
	if e := g.check(r.MemberID, r.InstanceID); e != nil {
		return refuse(e)
	}
	switch g.state {
	case kxoffsets.GroupPreparing:
	case kxoffsets.GroupCompleting:
		if m.same(r.Protocols) {
			m.touch(now)
			return g.joined(m), nil // its answer was lost
		}
	case kxoffsets.GroupStable:
		if m.id != g.leader && m.same(r.Protocols) {
			m.touch(now)
			return g.joined(m), nil
		}
	default:
		return refuse(kerr.UnknownMemberID)
	}
	wait := m.wait(r, now)
	g.prepare(now)
	return nil, wait
}

// wait takes over what a member says of itself, and lets it wait for the round.
func (m *member) wait(r *kmsg.JoinGroupRequest, now time.Time) <-chan *kmsg.JoinGroupResponse {
	m.update(r)
	m.touch(now)
	// An earlier request of the member, perhaps on a lost connection.
	m.answerJoin(&kmsg.JoinGroupResponse{ErrorCode: kerr.RebalanceInProgress.Code, Generation: -1, MemberID: m.id})
	m.joining = make(chan *kmsg.JoinGroupResponse, 1)
	return m.joining
}

func (m *member) update(r *kmsg.JoinGroupRequest) {
	m.protocols, m.session, m.rebalance = r.Protocols, millis(r.SessionTimeoutMillis), millis(max(0, r.RebalanceTimeoutMillis))
}

// replaceStatic puts a static member that starts again in the place of its
// former self, which is fenced (KIP-345). In a stable group nothing else changes
// where the protocol stays.
func (g *group) replaceStatic(old, m *member, r *kmsg.JoinGroupRequest, now time.Time) (*kmsg.JoinGroupResponse, <-chan *kmsg.JoinGroupResponse) {
	leader := g.leader
	old.answerJoin(&kmsg.JoinGroupResponse{ErrorCode: kerr.FencedInstanceID.Code, Generation: -1, MemberID: old.id})
	old.answerSync(&kmsg.SyncGroupResponse{ErrorCode: kerr.FencedInstanceID.Code})
	m.assignment, m.synced = old.assignment, old.synced
	m.update(r)
	m.touch(now)
	delete(g.members, old.id)
	g.members[m.id], g.instances[*m.instance] = m, m.id
	if leader == old.id {
		g.leader = m.id
	}
	if g.state == kxoffsets.GroupStable && g.vote() == g.protocol {
		x := g.joined(m)
		if r.Version >= 9 {
			x.SkipAssignment = m.id == g.leader // KIP-814
		} else {
			x.LeaderID, x.Members = leader, nil // or it would assign again
		}
		return x, nil
	}
	wait := m.wait(r, now)
	g.prepare(now)
	return nil, wait
}

// syncGroup waits for the leader's assignment.
func (b *Broker) syncGroup(ctx context.Context, who wire.Principal, r *kmsg.SyncGroupRequest) (kmsg.Response, error) {
	resp := r.ResponseKind().(*kmsg.SyncGroupResponse)
	fill := func(from *kmsg.SyncGroupResponse) (kmsg.Response, error) {
		version := resp.Version
		*resp = *from
		resp.Version = version
		return resp, nil
	}
	refuse := func(e *kerr.Error) (kmsg.Response, error) { return fill(&kmsg.SyncGroupResponse{ErrorCode: e.Code}) }
	switch {
	case !b.may(ctx, who, wire.OpRead, wire.GroupResource, r.Group):
		return refuse(kerr.GroupAuthorizationFailed)
	case r.Group == "":
		return refuse(kerr.InvalidGroupID)
	case r.Version >= 5 && (r.ProtocolType == nil || r.Protocol == nil):
		return refuse(kerr.InconsistentGroupProtocol)
	}
	g, e := b.groups.forJoin(r.Group, false)
	if e != nil {
		return refuse(e)
	}
	answer, wait := g.sync(r, b.now())
	g.mu.Unlock()
	if answer != nil {
		return fill(answer)
	}
	select {
	case answer = <-wait:
		return fill(answer)
	case <-ctx.Done():
		return refuse(kerr.RebalanceInProgress)
	}
}

// sync is the answer to a SyncGroup, or what it will come from.
func (g *group) sync(r *kmsg.SyncGroupRequest, now time.Time) (*kmsg.SyncGroupResponse, <-chan *kmsg.SyncGroupResponse) {
	refuse := func(e *kerr.Error) (*kmsg.SyncGroupResponse, <-chan *kmsg.SyncGroupResponse) {
		return &kmsg.SyncGroupResponse{ErrorCode: e.Code}, nil
	}
	if e := g.checkGeneration(r.MemberID, r.InstanceID, r.Generation); e != nil {
		return refuse(e)
	}
	if r.ProtocolType != nil && *r.ProtocolType != g.protoType || r.Protocol != nil && *r.Protocol != g.protocol {
		return refuse(kerr.InconsistentGroupProtocol)
	}
	m := g.members[r.MemberID]
	switch g.state {
	case kxoffsets.GroupPreparing:
		return refuse(kerr.RebalanceInProgress)
	case kxoffsets.GroupStable:
		m.synced = true
		m.touch(now)
		return g.assigned(m), nil
	case kxoffsets.GroupCompleting:
	default:
		return refuse(kerr.UnknownMemberID)
	}
	m.synced = true
	if m.id == g.leader {
		g.assign(r.GroupAssignment, now)
		m.touch(now)
		return g.assigned(m), nil
	}
	m.answerSync(&kmsg.SyncGroupResponse{ErrorCode: kerr.RebalanceInProgress.Code}) // an earlier request of the member
	m.syncing = make(chan *kmsg.SyncGroupResponse, 1)
	return nil, m.syncing
}

func (g *group) checkGeneration(memberID string, instance *string, generation int32) *kerr.Error {
	if e := g.check(memberID, instance); e != nil {
		return e
	}
	if generation != g.generation {
		return kerr.IllegalGeneration
	}
	return nil
}

func (b *Broker) heartbeat(ctx context.Context, who wire.Principal, r *kmsg.HeartbeatRequest) (kmsg.Response, error) {
	resp := r.ResponseKind().(*kmsg.HeartbeatResponse)
	refuse := func(e *kerr.Error) (kmsg.Response, error) { resp.ErrorCode = e.Code; return resp, nil }
	switch {
	case !b.may(ctx, who, wire.OpRead, wire.GroupResource, r.Group):
		return refuse(kerr.GroupAuthorizationFailed)
	case r.Group == "":
		return refuse(kerr.InvalidGroupID)
	}
	g, e := b.groups.forJoin(r.Group, false)
	if e != nil {
		return refuse(e)
	}
	defer g.mu.Unlock()
	if e := g.checkGeneration(r.MemberID, r.InstanceID, r.Generation); e != nil {
		return refuse(e)
	}
	switch g.state {
	case kxoffsets.GroupPreparing:
		g.members[r.MemberID].touch(b.now())
		return refuse(kerr.RebalanceInProgress)
	case kxoffsets.GroupCompleting, kxoffsets.GroupStable:
		g.members[r.MemberID].touch(b.now())
		return resp, nil
	}
	return refuse(kerr.UnknownMemberID)
}

func (b *Broker) leaveGroup(ctx context.Context, who wire.Principal, r *kmsg.LeaveGroupRequest) (kmsg.Response, error) {
	resp := r.ResponseKind().(*kmsg.LeaveGroupResponse)
	refuse := func(e *kerr.Error) (kmsg.Response, error) { resp.ErrorCode = e.Code; return resp, nil }
	switch {
	case !b.may(ctx, who, wire.OpRead, wire.GroupResource, r.Group):
		return refuse(kerr.GroupAuthorizationFailed)
	case r.Group == "":
		return refuse(kerr.InvalidGroupID)
	}
	leaving := r.Members
	if r.Version < 3 {
		leaving = []kmsg.LeaveGroupRequestMember{{MemberID: r.MemberID}}
	}
	if e := b.groups.here(r.Group); e != nil {
		return refuse(e)
	}
	g := b.groups.find(r.Group)
	if g != nil {
		defer g.mu.Unlock()
	}
	for _, l := range leaving {
		e := kerr.UnknownMemberID
		if g != nil {
			e = g.leave(l.MemberID, l.InstanceID, b.now())
		}
		if r.Version < 3 {
			if e != nil {
				resp.ErrorCode = e.Code
			}
			continue
		}
		x := kmsg.NewLeaveGroupResponseMember()
		x.MemberID, x.InstanceID = l.MemberID, l.InstanceID
		if e != nil {
			x.ErrorCode = e.Code
		}
		resp.Members = append(resp.Members, x)
	}
	return resp, nil
}

// leave takes out a member that says so itself, or an administrator for a static
// one, who need not know the member id.
func (g *group) leave(memberID string, instance *string, now time.Time) *kerr.Error {
	if instance != nil && memberID == "" {
		memberID = g.instances[*instance]
	}
	if _, ok := g.pending[memberID]; ok && instance == nil {
		delete(g.pending, memberID)
		g.maybeComplete(now)
		return nil
	}
	if e := g.check(memberID, instance); e != nil {
		return e
	}
	g.drop(g.members[memberID], now)
	return nil
}
