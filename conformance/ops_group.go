package conformance

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"
)

func (p *player) txnOffsetCommit(ctx context.Context, s *Step) (Answer, error) {
	req := kmsg.NewPtrTxnOffsetCommitRequest()
	req.Version = s.Version
	req.TransactionalID, req.Group, req.ProducerID, req.ProducerEpoch = p.txnID(s), p.group(s.Group), p.pid(s.Producer), s.Epoch
	req.Generation, req.MemberID = p.generation(s), p.member(s.Member)
	if s.Instance != "" {
		req.InstanceID = ptr(s.Instance)
	}
	names, by := byTopic(s.Parts)
	for _, n := range names {
		t := kmsg.NewTxnOffsetCommitRequestTopic()
		var err error
		if t.Topic, t.TopicID, err = p.named(ctx, n, s.Version >= 6); err != nil {
			return Answer{}, err
		}
		for _, tp := range by[n] {
			rp := kmsg.NewTxnOffsetCommitRequestTopicPartition()
			rp.Partition, rp.Offset, rp.LeaderEpoch = tp.Partition, tp.Offset, -1
			if s.Metadata > 0 && tp.Partition == 0 {
				rp.Metadata = ptr(strings.Repeat("m", s.Metadata))
			}
			t.Partitions = append(t.Partitions, rp)
		}
		req.Topics = append(req.Topics, t)
	}
	x, err := do[*kmsg.TxnOffsetCommitResponse](ctx, p.c, req)
	if err != nil {
		return Answer{}, err
	}
	m := map[string]string{}
	for _, t := range x.Topics {
		for _, tp := range t.Partitions {
			m[tpKey(p.nameOf(t.Topic, t.TopicID), tp.Partition)] = errName(tp.ErrorCode)
		}
	}
	return fold(m), covers(s.Parts, m)
}

func (p *player) offsetCommit(ctx context.Context, s *Step) (Answer, error) {
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Version = s.Version
	req.Group, req.Generation, req.MemberID = p.group(s.Group), p.generation(s), p.member(s.Member)
	names, by := byTopic(s.Parts)
	for _, n := range names {
		t := kmsg.NewOffsetCommitRequestTopic()
		var err error
		if t.Topic, t.TopicID, err = p.named(ctx, n, s.Version >= 10); err != nil {
			return Answer{}, err
		}
		for _, tp := range by[n] {
			rp := kmsg.NewOffsetCommitRequestTopicPartition()
			rp.Partition, rp.Offset, rp.LeaderEpoch = tp.Partition, tp.Offset, -1
			if s.Metadata > 0 && tp.Partition == 0 {
				rp.Metadata = ptr(strings.Repeat("m", s.Metadata))
			}
			t.Partitions = append(t.Partitions, rp)
		}
		req.Topics = append(req.Topics, t)
	}
	x, err := do[*kmsg.OffsetCommitResponse](ctx, p.c, req)
	if err != nil {
		return Answer{}, err
	}
	m := map[string]string{}
	for _, t := range x.Topics {
		for _, tp := range t.Partitions {
			m[tpKey(p.nameOf(t.Topic, t.TopicID), tp.Partition)] = errName(tp.ErrorCode)
		}
	}
	return fold(m), covers(s.Parts, m)
}

// offsetFetch asks about one group; up to version 7 that is all a request can do.
func (p *player) offsetFetch(ctx context.Context, s *Step) (Answer, error) {
	req := kmsg.NewPtrOffsetFetchRequest()
	req.Version = cmp.Or(s.Version, 7) // the first with RequireStable
	req.RequireStable = s.RequireStable
	byID := req.Version >= 10
	g := kmsg.NewOffsetFetchRequestGroup()
	g.Group = p.group(s.Group)
	if !s.AllTopics { // which is what no list at all asks for
		req.Topics, g.Topics = []kmsg.OffsetFetchRequestTopic{}, []kmsg.OffsetFetchRequestGroupTopic{}
	}
	names, by := byTopic(s.Parts)
	for _, n := range names {
		t, gt := kmsg.NewOffsetFetchRequestTopic(), kmsg.NewOffsetFetchRequestGroupTopic()
		var err error
		if gt.Topic, gt.TopicID, err = p.named(ctx, n, byID); err != nil {
			return Answer{}, err
		}
		t.Topic = gt.Topic
		for _, tp := range by[n] {
			t.Partitions = append(t.Partitions, tp.Partition)
		}
		gt.Partitions = t.Partitions
		req.Topics, g.Topics = append(req.Topics, t), append(g.Topics, gt)
	}
	if req.Version < 8 {
		req.Group = g.Group
	} else {
		req.Groups = append(req.Groups, g)
	}
	x, err := do[*kmsg.OffsetFetchResponse](ctx, p.c, req)
	if err != nil {
		return Answer{}, err
	}
	a := Answer{Err: errName(x.ErrorCode), Offsets: map[string]int64{}}
	put := func(topic string, partition int32, offset int64, code int16) {
		k := tpKey(topic, partition)
		a.Offsets[k] = offset
		if code != 0 {
			if a.Parts == nil {
				a.Parts = map[string]string{}
			}
			a.Parts[k] = errName(code)
		}
	}
	for _, t := range x.Topics {
		for _, tp := range t.Partitions {
			put(p.ltopic(t.Topic), tp.Partition, tp.Offset, tp.ErrorCode)
		}
	}
	for _, g := range x.Groups {
		if g.ErrorCode != 0 {
			a.Err = errName(g.ErrorCode)
		}
		for _, t := range g.Topics {
			name, err := p.found(ctx, t.Topic, t.TopicID)
			if err != nil {
				return Answer{}, err
			}
			for _, tp := range t.Partitions {
				put(name, tp.Partition, tp.Offset, tp.ErrorCode)
			}
		}
	}
	return a, nil
}

// join makes the caller the group's only classic member.
func (p *player) join(ctx context.Context, s *Step) (Answer, error) {
	id, gen, code, err := p.joinGroup(ctx, s.Group, p.member(s.Member))
	if err != nil || code != 0 {
		return Answer{Err: errName(code)}, err
	}
	sym := ""
	for k, v := range p.members {
		if v == id {
			sym = k
		}
	}
	if sym == "" {
		sym = fmt.Sprintf("M%d", len(p.members)+1)
		p.members[sym] = id
	}
	gen -= p.genBy[s.Group]
	p.joined[s.Group] = membership{sym, gen}
	return Answer{Member: sym, Generation: gen}, nil
}

// joinGroup goes through the rounds of JoinGroup and one of SyncGroup. A member
// id is what the broker gives or, where it differs, asked for.
func (p *player) joinGroup(ctx context.Context, group, member string) (id string, gen int32, code int16, err error) {
	const memberIDRequired = 79 // KIP-394: join again with the id that the answer carries
	req := kmsg.NewPtrJoinGroupRequest()
	req.Version = 5
	req.Group, req.ProtocolType, req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = p.group(group), "consumer", 30000, 30000
	pr := kmsg.NewJoinGroupRequestProtocol()
	// a subscription, and below an assignment, of version 0 with nothing in it
	pr.Name, pr.Metadata = "range", make([]byte, 10)
	req.Protocols = append(req.Protocols, pr)
	req.MemberID = member
	var x *kmsg.JoinGroupResponse
	for range 3 {
		if x, err = do[*kmsg.JoinGroupResponse](ctx, p.c, req); err != nil {
			return "", 0, 0, err
		}
		if x.ErrorCode != memberIDRequired {
			break
		}
		req.MemberID = x.MemberID
	}
	if x.ErrorCode != 0 {
		return "", 0, x.ErrorCode, nil
	}
	sy := kmsg.NewPtrSyncGroupRequest()
	sy.Version = 3
	sy.Group, sy.Generation, sy.MemberID = req.Group, x.Generation, x.MemberID
	as := kmsg.NewSyncGroupRequestGroupAssignment()
	as.MemberID, as.MemberAssignment = x.MemberID, make([]byte, 10)
	sy.GroupAssignment = append(sy.GroupAssignment, as)
	y, err := do[*kmsg.SyncGroupResponse](ctx, p.c, sy)
	if err != nil {
		return "", 0, 0, err
	}
	return x.MemberID, x.Generation, y.ErrorCode, nil
}

func (p *player) leave(ctx context.Context, s *Step) (Answer, error) {
	req := kmsg.NewPtrLeaveGroupRequest()
	req.Version = s.Version
	req.Group, req.MemberID = p.group(s.Group), p.member(s.Member)
	x, err := do[*kmsg.LeaveGroupResponse](ctx, p.c, req)
	if err != nil {
		return Answer{}, err
	}
	if x.ErrorCode == 0 {
		delete(p.joined, s.Group)
	}
	return Answer{Err: errName(x.ErrorCode)}, nil
}

// deleteGroup is answered when the group is gone.
func (p *player) deleteGroup(ctx context.Context, s *Step) (Answer, error) {
	req := kmsg.NewPtrDeleteGroupsRequest()
	req.Version = p.e.apis.best(req.Key(), 2)
	req.Groups = []string{p.group(s.Group)}
	x, err := do[*kmsg.DeleteGroupsResponse](ctx, p.c, req)
	if err != nil {
		return Answer{}, err
	}
	if len(x.Groups) != 1 {
		return Answer{}, short("not one group")
	}
	return Answer{Err: errName(x.Groups[0].ErrorCode)}, nil
}
