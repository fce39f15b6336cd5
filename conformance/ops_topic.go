package conformance

import (
	"context"
	"crypto/md5"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// noTopic is the id that stands for a topic that does not exist.
func noTopic(local string) [16]byte { return md5.Sum([]byte("no topic " + local)) }

// named is how a request names a topic: by name, or by id.
func (p *player) named(ctx context.Context, local string, byID bool) (string, [16]byte, error) {
	if !byID {
		return p.topic(local), [16]byte{}, nil
	}
	id, err := p.topicID(ctx, local)
	return "", id, err
}

// nameOf is the local name of a topic in an answer.
func (p *player) nameOf(topic string, id [16]byte) string {
	if topic != "" {
		return p.ltopic(topic)
	}
	for n, x := range p.ids {
		if x == id {
			return n
		}
	}
	return "?"
}

// found is nameOf for a topic that was not asked about, so that its id may be new.
func (p *player) found(ctx context.Context, topic string, id [16]byte) (string, error) {
	if n := p.nameOf(topic, id); n != "?" {
		return n, nil
	}
	m, err := p.describeTopic(ctx, nil, id)
	if err != nil || m.Topic == nil {
		return "?", err
	}
	return p.ltopic(*m.Topic), nil
}

// topicID asks for the id of a topic, the first time.
func (p *player) topicID(ctx context.Context, local string) ([16]byte, error) {
	if id, ok := p.ids[local]; ok {
		return id, nil
	}
	m, err := p.describeTopic(ctx, ptr(p.topic(local)), [16]byte{})
	if err != nil {
		return [16]byte{}, err
	}
	if m.ErrorCode != 0 {
		m.TopicID = noTopic(local)
	}
	p.ids[local] = m.TopicID
	return m.TopicID, nil
}

// describeTopic is Metadata of one topic, by name or by id.
func (p *player) describeTopic(ctx context.Context, name *string, id [16]byte) (kmsg.MetadataResponseTopic, error) {
	req := kmsg.NewPtrMetadataRequest()
	req.Version = p.e.apis.best(req.Key(), 12)
	t := kmsg.NewMetadataRequestTopic()
	t.Topic, t.TopicID = name, id
	req.Topics = append(req.Topics, t)
	x, err := do[*kmsg.MetadataResponse](ctx, p.c, req)
	if err != nil {
		return kmsg.MetadataResponseTopic{}, err
	}
	if len(x.Topics) != 1 {
		return kmsg.MetadataResponseTopic{}, short("not one topic")
	}
	return x.Topics[0], nil
}

// newTopic makes a topic, also one that is there already.
func (p *player) newTopic(ctx context.Context, s *Step) (Answer, error) {
	delete(p.ids, s.ResourceName)
	return Answer{}, p.createTopics(ctx, map[string]int{s.ResourceName: s.Partitions})
}

// deleteTopic deletes a topic and waits until the broker answers for none of it.
func (p *player) deleteTopic(ctx context.Context, s *Step) (Answer, error) {
	req := kmsg.NewPtrDeleteTopicsRequest()
	req.Version = p.e.apis.best(req.Key(), 5) // later ones name topics otherwise
	req.TimeoutMillis = 10000
	req.TopicNames = []string{p.topic(s.ResourceName)}
	x, err := do[*kmsg.DeleteTopicsResponse](ctx, p.c, req)
	if err != nil {
		return Answer{}, err
	}
	if len(x.Topics) != 1 {
		return Answer{}, short("not one topic")
	}
	if x.Topics[0].ErrorCode != 0 {
		return Answer{Err: errName(x.Topics[0].ErrorCode)}, nil
	}
	for begin := time.Now(); time.Since(begin) < p.e.o.Patience; {
		m, err := p.describeTopic(ctx, ptr(p.topic(s.ResourceName)), [16]byte{})
		if err != nil {
			return Answer{}, err
		}
		d, err := p.describeProducers(ctx, &Step{Op: OpDescribeProducers, Parts: []TP{{Topic: s.ResourceName}}})
		if err != nil {
			return Answer{}, err
		}
		if m.ErrorCode == kerr.UnknownTopicOrPartition.Code && len(d.Parts) > 0 {
			break
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return Answer{}, err
		}
	}
	return Answer{}, nil
}
