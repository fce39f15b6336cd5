package conformance

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"
)

func (p *player) txnOffsetCommit(ctx context.Context, s *Step) (Answer, error) {
	req := kmsg.NewPtrTxnOffsetCommitRequest()
	req.Version = s.Version
	req.TransactionalID, req.Group, req.ProducerID, req.ProducerEpoch = p.txnID(s), p.group(s.Group), p.pid(s.Producer), s.Epoch
	req.Generation, req.MemberID = p.generation(s), p.member(s.Member)
	names, by := byTopic(s.Parts)
	for _, n := range names {
		t := kmsg.NewTxnOffsetCommitRequestTopic()
		t.Topic = p.topic(n)
		for _, tp := range by[n] {
			rp := kmsg.NewTxnOffsetCommitRequestTopicPartition()
			rp.Partition, rp.Offset, rp.LeaderEpoch = tp.Partition, tp.Offset, -1
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
			m[tpKey(p.ltopic(t.Topic), tp.Partition)] = errName(tp.ErrorCode)
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
		t.Topic = p.topic(n)
		for _, tp := range by[n] {
			rp := kmsg.NewOffsetCommitRequestTopicPartition()
			rp.Partition, rp.Offset, rp.LeaderEpoch = tp.Partition, tp.Offset, -1
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
			m[tpKey(p.ltopic(t.Topic), tp.Partition)] = errName(tp.ErrorCode)
		}
	}
	return fold(m), covers(s.Parts, m)
}

func (p *player) offsetFetch(ctx context.Context, s *Step) (Answer, error) {
	req := kmsg.NewPtrOffsetFetchRequest()
	req.Version = 7 // the first with RequireStable
	req.Group = p.group(s.Group)
	req.RequireStable = s.RequireStable
	names, by := byTopic(s.Parts)
	for _, n := range names {
		t := kmsg.NewOffsetFetchRequestTopic()
		t.Topic = p.topic(n)
		for _, tp := range by[n] {
			t.Partitions = append(t.Partitions, tp.Partition)
		}
		req.Topics = append(req.Topics, t)
	}
	x, err := do[*kmsg.OffsetFetchResponse](ctx, p.c, req)
	if err != nil {
		return Answer{}, err
	}
	a := Answer{Err: errName(x.ErrorCode), Offsets: map[string]int64{}}
	for _, t := range x.Topics {
		for _, tp := range t.Partitions {
			k := tpKey(p.ltopic(t.Topic), tp.Partition)
			a.Offsets[k] = tp.Offset
			if tp.ErrorCode != 0 {
				if a.Parts == nil {
					a.Parts = map[string]string{}
				}
				a.Parts[k] = errName(tp.ErrorCode)
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
