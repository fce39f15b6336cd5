package minibroker

import (
	"context"
	"math"
	"slices"

	"github.com/kafkatxn/kafkatxn/wire"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// metadata names the brokers and describes topics.
func (b *Broker) metadata(ctx context.Context, who wire.Principal, r *kmsg.MetadataRequest) (kmsg.Response, error) {
	resp := r.ResponseKind().(*kmsg.MetadataResponse)
	for _, id := range b.brokers() {
		x := kmsg.NewMetadataResponseBroker()
		x.NodeID = id
		x.Host, x.Port = b.address(id)
		resp.Brokers = append(resp.Brokers, x)
	}
	resp.ClusterID, resp.ControllerID = kmsg.StringPtr(b.cfg.ClusterID), resp.Brokers[0].NodeID
	resp.AuthorizedOperations = math.MinInt32
	if r.Topics == nil || r.Version == 0 && len(r.Topics) == 0 {
		for _, t := range b.topics.all() {
			if b.may(ctx, who, wire.OpDescribe, wire.TopicResource, t.name) {
				resp.Topics = append(resp.Topics, b.describeTopic(t))
			}
		}
		return resp, nil
	}
	for _, q := range r.Topics {
		resp.Topics = append(resp.Topics, b.topicMetadata(ctx, who, r, q))
	}
	return resp, nil
}

func (b *Broker) topicMetadata(ctx context.Context, who wire.Principal, r *kmsg.MetadataRequest, q kmsg.MetadataRequestTopic) kmsg.MetadataResponseTopic {
	refuse := func(name *string, e *kerr.Error) kmsg.MetadataResponseTopic {
		x := kmsg.NewMetadataResponseTopic()
		x.Topic, x.TopicID, x.ErrorCode = name, q.TopicID, e.Code
		return x
	}
	if q.Topic == nil {
		t := b.topics.getByID(q.TopicID)
		if t == nil || !b.may(ctx, who, wire.OpDescribe, wire.TopicResource, t.name) {
			return refuse(nil, kerr.UnknownTopicID)
		}
		return b.describeTopic(t)
	}
	name := *q.Topic
	if !b.may(ctx, who, wire.OpDescribe, wire.TopicResource, name) {
		return refuse(q.Topic, kerr.TopicAuthorizationFailed)
	}
	if t := b.topics.get(name); t != nil {
		return b.describeTopic(t)
	}
	if validTopicName(name) != nil {
		return refuse(q.Topic, kerr.InvalidTopicException)
	}
	create := r.Version < 4 || r.AllowAutoTopicCreation
	if b.cfg.AutoCreatePartitions > 0 && create && b.mayCreate(ctx, who, name) {
		if t, err := b.topics.create(name, b.cfg.AutoCreatePartitions, false); err == nil {
			return b.describeTopic(t)
		} else if t := b.topics.get(name); t != nil {
			return b.describeTopic(t) // another request was faster
		}
	}
	return refuse(q.Topic, kerr.UnknownTopicOrPartition)
}

func (b *Broker) describeTopic(t *topic) kmsg.MetadataResponseTopic {
	x := kmsg.NewMetadataResponseTopic()
	x.Topic, x.TopicID, x.IsInternal = kmsg.StringPtr(t.name), t.id, internalTopic(t.name)
	for p := range t.partitions() {
		y := kmsg.NewMetadataResponseTopicPartition()
		y.Partition = p
		if y.Leader, y.LeaderEpoch = b.topics.leader(t, p); y.Leader < 0 {
			y.ErrorCode = kerr.LeaderNotAvailable.Code
		} else {
			y.Replicas, y.ISR = []int32{y.Leader}, []int32{y.Leader}
		}
		x.Partitions = append(x.Partitions, y)
	}
	return x
}

func (b *Broker) mayCreate(ctx context.Context, who wire.Principal, name string) bool {
	return b.may(ctx, who, wire.OpCreate, wire.ClusterResource, wire.ClusterName) || b.may(ctx, who, wire.OpCreate, wire.TopicResource, name)
}

// createTopics makes topics. Their configuration is not looked at: nothing here
// depends on it.
func (b *Broker) createTopics(ctx context.Context, who wire.Principal, r *kmsg.CreateTopicsRequest) (kmsg.Response, error) {
	resp := r.ResponseKind().(*kmsg.CreateTopicsResponse)
	named := map[string]int{}
	for _, q := range r.Topics {
		named[q.Topic]++
	}
	done := map[string]bool{}
	for _, q := range r.Topics {
		if done[q.Topic] {
			continue
		}
		done[q.Topic] = true
		x := kmsg.NewCreateTopicsResponseTopic()
		x.Topic, x.NumPartitions, x.ReplicationFactor = q.Topic, -1, -1
		var t *topic
		var err error
		switch {
		case !b.mayCreate(ctx, who, q.Topic):
			err = kafkaErrorf(kerr.TopicAuthorizationFailed, "%s may not create topics", who)
		case named[q.Topic] > 1:
			err = kafkaErrorf(kerr.InvalidRequest, "the topic is named %d times", named[q.Topic])
		default:
			t, err = b.createTopic(q, r.ValidateOnly)
		}
		x.ErrorCode, x.ErrorMessage = codeOf(err), message(err)
		if err == nil {
			x.NumPartitions, x.ReplicationFactor = t.partitions(), 1
			if !r.ValidateOnly {
				x.TopicID = t.id
			}
		}
		resp.Topics = append(resp.Topics, x)
	}
	return resp, nil
}

func (b *Broker) createTopic(q kmsg.CreateTopicsRequestTopic, dryRun bool) (*topic, error) {
	partitions, assigned := q.NumPartitions, int32(len(q.ReplicaAssignment))
	switch {
	case assigned > 0 && (partitions != -1 || q.ReplicationFactor != -1):
		return nil, kafkaErrorf(kerr.InvalidRequest, "both an assignment and numbers of partitions or replicas")
	case assigned > 0:
		seen := map[int32]bool{}
		for _, a := range q.ReplicaAssignment {
			if a.Partition < 0 || a.Partition >= assigned || seen[a.Partition] || len(a.Replicas) != 1 || !slices.Contains(b.brokers(), a.Replicas[0]) {
				return nil, kafkaErrorf(kerr.InvalidReplicaAssignment, "partition %d on %v, and brokers %v are there", a.Partition, a.Replicas, b.brokers())
			}
			seen[a.Partition] = true
		}
		partitions = assigned
	case q.ReplicationFactor != -1 && q.ReplicationFactor != 1:
		return nil, kafkaErrorf(kerr.InvalidReplicationFactor, "%d replicas, and there is one of everything", q.ReplicationFactor)
	case partitions == -1:
		partitions = max(b.cfg.AutoCreatePartitions, 1) // num.partitions
	}
	return b.topics.create(q.Topic, partitions, dryRun)
}

func (b *Broker) deleteTopics(ctx context.Context, who wire.Principal, r *kmsg.DeleteTopicsRequest) (kmsg.Response, error) {
	resp := r.ResponseKind().(*kmsg.DeleteTopicsResponse)
	asked := r.Topics
	for _, name := range r.TopicNames {
		asked = append(asked, kmsg.DeleteTopicsRequestTopic{Topic: kmsg.StringPtr(name)})
	}
	for _, q := range asked {
		x := kmsg.NewDeleteTopicsResponseTopic()
		x.Topic, x.TopicID = q.Topic, q.TopicID
		err := b.deleteTopic(ctx, who, q, &x)
		x.ErrorCode, x.ErrorMessage = codeOf(err), message(err)
		resp.Topics = append(resp.Topics, x)
	}
	return resp, nil
}

func (b *Broker) deleteTopic(ctx context.Context, who wire.Principal, q kmsg.DeleteTopicsRequestTopic, x *kmsg.DeleteTopicsResponseTopic) error {
	var t *topic
	if q.Topic != nil {
		t = b.topics.get(*q.Topic)
	} else if t = b.topics.getByID(q.TopicID); t == nil {
		return kafkaErrorf(kerr.UnknownTopicID, "no topic has that id")
	}
	name := ""
	switch {
	case t != nil:
		name = t.name
	case q.Topic != nil:
		name = *q.Topic
	}
	switch described := b.may(ctx, who, wire.OpDescribe, wire.TopicResource, name); {
	case q.Topic == nil && !described:
		return kafkaErrorf(kerr.UnknownTopicID, "no topic has that id") // its name is not revealed
	case !b.may(ctx, who, wire.OpDelete, wire.TopicResource, name):
		return kafkaErrorf(kerr.TopicAuthorizationFailed, "%s has no DELETE on topic %q", who, name)
	}
	t, err := b.topics.delete(name)
	if err != nil {
		return err
	}
	x.Topic, x.TopicID = kmsg.StringPtr(name), t.id
	if b.cluster != nil {
		return nil // what follows has been done with the change, by each broker
	}
	// A topic that is made again with the name starts without committed offsets.
	return b.offsets.DeleteTopic(ctx, name)
}
