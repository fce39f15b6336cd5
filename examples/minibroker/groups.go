package minibroker

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	kxoffsets "github.com/kafkatxn/kafkatxn/offsets"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/wire"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// groups are the consumer groups that have, or had, members. A group with nothing
// but offsets is known to the offsets manager alone; both together are the
// groups there are. It is the library's offsets.Groups.
type groups struct {
	now        func() time.Time
	delay      time.Duration
	limit      int // groups
	maxMembers int // of a group
	offsets    *kxoffsets.Manager
	// elsewhere is why a group is not served here; nil: all groups are.
	elsewhere func(id string) error

	mu   sync.Mutex
	byID map[string]*group
}

var _ kxoffsets.Groups = (*groups)(nil)

// here is nil where a group is served by this broker.
func (gs *groups) here(id string) *kerr.Error {
	if gs.elsewhere == nil {
		return nil
	}
	if err := gs.elsewhere(id); err != nil {
		return kerr.TypedErrorForCode(codeOf(err))
	}
	return nil
}

// forget drops the groups of a partition: another broker coordinates them, and
// their members join again there.
func (gs *groups) forget(partition int32) {
	gs.mu.Lock()
	var gone []*group
	for id, g := range gs.byID {
		if txnstate.OffsetsPartition(id) == partition {
			delete(gs.byID, id)
			gone = append(gone, g)
		}
	}
	gs.mu.Unlock()
	for _, g := range gone {
		g.mu.Lock()
		for _, m := range g.members {
			m.answerJoin(&kmsg.JoinGroupResponse{ErrorCode: kerr.NotCoordinator.Code, Generation: -1, MemberID: m.id})
			m.answerSync(&kmsg.SyncGroupResponse{ErrorCode: kerr.NotCoordinator.Code})
		}
		g.state, g.members, g.instances, g.pending = kxoffsets.GroupDead, map[string]*member{}, map[string]string{}, map[string]time.Time{}
		g.mu.Unlock()
	}
}

// forJoin is the group to join, locked, and made where create is set.
func (gs *groups) forJoin(id string, create bool) (*group, *kerr.Error) {
	if e := gs.here(id); e != nil {
		return nil, e
	}
	gs.mu.Lock()
	g := gs.byID[id]
	switch {
	case g == nil && !create:
		gs.mu.Unlock()
		return nil, kerr.UnknownMemberID
	case g == nil:
		if len(gs.byID) >= gs.limit && gs.sweep(gs.now(), true) == 0 {
			gs.mu.Unlock()
			return nil, kerr.PolicyViolation
		}
		g = newGroup(id, gs.delay, gs.now())
		gs.byID[id] = g
	}
	// The table's lock is taken first everywhere, and held until the group's is,
	// so that no one else removes the group in between.
	g.mu.Lock()
	gs.mu.Unlock()
	return g, nil
}

// find is the group, locked, or nil.
func (gs *groups) find(id string) *group {
	g, err := gs.forJoin(id, false)
	if err != nil {
		return nil
	}
	return g
}

// View is the library's view of a group.
func (gs *groups) View(id string) kxoffsets.GroupView {
	g := gs.find(id)
	if g == nil {
		if gs.offsets.HasOffsets(id) {
			return kxoffsets.GroupView{State: kxoffsets.GroupEmpty}
		}
		return kxoffsets.GroupView{State: kxoffsets.GroupMissing}
	}
	defer g.mu.Unlock()
	v := kxoffsets.GroupView{State: g.state, Generation: g.generation}
	if len(g.members) > 0 {
		members := make(map[string]string, len(g.members)) // id -> instance
		for id, m := range g.members {
			members[id] = ""
			if m.instance != nil {
				members[id] = *m.instance
			}
		}
		v.Member = func(id string) bool { _, ok := members[id]; return ok }
		v.Instance = func(instance string) (string, bool) {
			for id, i := range members {
				if i == instance && instance != "" {
					return id, true
				}
			}
			return "", false
		}
	}
	return v
}

// Ensure makes a group without members exist.
func (gs *groups) Ensure(id string) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	if gs.byID[id] == nil && (len(gs.byID) < gs.limit || gs.sweep(gs.now(), true) > 0) {
		gs.byID[id] = newGroup(id, gs.delay, gs.now())
	}
}

// sweep removes groups that have been without members since a time, with stored
// also those that have offsets: these stay where they are, and the group with
// them, in generation 0. mu is held.
func (gs *groups) sweep(since time.Time, stored bool) (n int) {
	for id, g := range gs.byID {
		g.mu.Lock()
		if g.idle(since) && (stored || !gs.offsets.HasOffsets(id)) {
			delete(gs.byID, id)
			n++
		}
		g.mu.Unlock()
	}
	return n
}

// idle reports whether a group has had no members since a time. mu is held.
func (g *group) idle(since time.Time) bool {
	return g.state == kxoffsets.GroupEmpty && len(g.pending) == 0 && !g.emptySince.After(since)
}

// expire removes the offsets of groups that have had no members for keepOffsets,
// and then such groups without offsets.
func (gs *groups) expire(ctx context.Context, now time.Time) error {
	_, err := gs.offsets.Expire(ctx, now.Add(-keepOffsets), func(id string) bool {
		g := gs.find(id)
		if g == nil {
			return true
		}
		defer g.mu.Unlock()
		return g.idle(now.Add(-keepOffsets))
	})
	gs.mu.Lock()
	defer gs.mu.Unlock()
	gs.sweep(now.Add(-keepIdleGroup), false)
	return err
}

// tick does what time has made due in every group.
func (gs *groups) tick(now time.Time) {
	gs.mu.Lock()
	all := make([]*group, 0, len(gs.byID))
	for _, g := range gs.byID {
		all = append(all, g)
	}
	gs.mu.Unlock()
	for _, g := range all {
		g.tick(now)
	}
}

// ids are all groups, with members or with offsets.
func (gs *groups) ids() []string {
	ids := gs.offsets.Groups()
	gs.mu.Lock()
	for id := range gs.byID {
		ids = append(ids, id)
	}
	gs.mu.Unlock()
	slices.Sort(ids)
	return slices.Compact(ids)
}

func (b *Broker) describeGroups(ctx context.Context, who wire.Principal, r *kmsg.DescribeGroupsRequest) (kmsg.Response, error) {
	resp := r.ResponseKind().(*kmsg.DescribeGroupsResponse)
	for _, id := range r.Groups {
		x := kmsg.NewDescribeGroupsResponseGroup()
		x.Group = id
		if !b.may(ctx, who, wire.OpDescribe, wire.GroupResource, id) {
			x.ErrorCode = kerr.GroupAuthorizationFailed.Code
		} else if e := b.groups.here(id); e != nil {
			x.ErrorCode = e.Code
		} else if g := b.groups.find(id); g != nil {
			g.describe(&x)
			g.mu.Unlock()
		} else if b.offsets.HasOffsets(id) {
			x.State = kxoffsets.GroupEmpty.String()
		} else {
			x.State = kxoffsets.GroupDead.String()
			if r.Version >= 6 {
				x.ErrorCode = kerr.GroupIDNotFound.Code
				x.ErrorMessage = kmsg.StringPtr("there is no such group")
			}
		}
		resp.Groups = append(resp.Groups, x)
	}
	return resp, nil
}

func (g *group) describe(x *kmsg.DescribeGroupsResponseGroup) {
	x.State, x.ProtocolType = g.state.String(), g.protoType
	if g.state == kxoffsets.GroupStable {
		x.Protocol = g.protocol
	}
	for _, id := range g.memberIDs() {
		m := g.members[id]
		y := kmsg.NewDescribeGroupsResponseGroupMember()
		y.MemberID, y.InstanceID, y.ClientID, y.ClientHost = m.id, m.instance, m.clientID, m.host
		if g.state == kxoffsets.GroupStable {
			y.ProtocolMetadata, y.MemberAssignment = m.metadata(g.protocol), m.assignment
		}
		x.Members = append(x.Members, y)
	}
}

func (b *Broker) listGroups(ctx context.Context, who wire.Principal, r *kmsg.ListGroupsRequest) (kmsg.Response, error) {
	resp := r.ResponseKind().(*kmsg.ListGroupsResponse)
	all := b.may(ctx, who, wire.OpDescribe, wire.ClusterResource, wire.ClusterName)
	wanted := func(filter []string, name string) bool {
		return len(filter) == 0 || slices.ContainsFunc(filter, func(f string) bool { return strings.EqualFold(f, name) })
	}
	const kind = "classic"
	for _, id := range b.groups.ids() {
		if b.groups.here(id) != nil {
			continue
		}
		x := kmsg.NewListGroupsResponseGroup()
		x.Group, x.GroupType, x.GroupState = id, kind, kxoffsets.GroupEmpty.String()
		if g := b.groups.find(id); g != nil {
			x.ProtocolType, x.GroupState = g.protoType, g.state.String()
			g.mu.Unlock()
		}
		if wanted(r.StatesFilter, x.GroupState) && wanted(r.TypesFilter, kind) && (all || b.may(ctx, who, wire.OpDescribe, wire.GroupResource, id)) {
			resp.Groups = append(resp.Groups, x)
		}
	}
	return resp, nil
}

func (b *Broker) deleteGroups(ctx context.Context, who wire.Principal, r *kmsg.DeleteGroupsRequest) (kmsg.Response, error) {
	resp := r.ResponseKind().(*kmsg.DeleteGroupsResponse)
	for _, id := range r.Groups {
		x := kmsg.NewDeleteGroupsResponseGroup()
		x.Group = id
		if !b.may(ctx, who, wire.OpDelete, wire.GroupResource, id) {
			x.ErrorCode = kerr.GroupAuthorizationFailed.Code
		} else if e := b.groups.here(id); e != nil {
			x.ErrorCode = e.Code
		} else {
			x.ErrorCode = b.groups.delete(ctx, id)
		}
		resp.Groups = append(resp.Groups, x)
	}
	return resp, nil
}

// delete removes a group without members, and its offsets.
func (gs *groups) delete(ctx context.Context, id string) int16 {
	if id == "" {
		return kerr.InvalidGroupID.Code
	}
	gs.mu.Lock()
	g := gs.byID[id]
	if g != nil {
		g.mu.Lock()
		busy := len(g.members) > 0
		if !busy {
			delete(gs.byID, id)
		}
		g.mu.Unlock()
		if busy {
			gs.mu.Unlock()
			return kerr.NonEmptyGroup.Code
		}
	}
	gs.mu.Unlock()
	if g == nil && !gs.offsets.HasOffsets(id) {
		return kerr.GroupIDNotFound.Code
	}
	return codeOf(gs.offsets.DeleteGroup(ctx, id))
}
