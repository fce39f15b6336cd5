package wire

import (
	"context"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// describeProducers is DescribeProducers (KIP-664): the producer state of
// partitions.
func (h *Handler) describeProducers(ctx context.Context, who Principal, req *kmsg.DescribeProducersRequest) kmsg.Response {
	c := h.caller(ctx, who)
	resp := req.ResponseKind().(*kmsg.DescribeProducersResponse)
	for _, t := range req.Topics {
		rt := kmsg.NewDescribeProducersResponseTopic()
		rt.Topic = t.Topic
		var topicErr error
		switch {
		case !validTopicName(t.Topic):
			topicErr = txnstate.CodeInvalidTopic.Errorf("", "%q is no topic's name", brief(t.Topic))
		case !c.may(OpRead, TopicResource, t.Topic):
			topicErr = txnstate.CodeTopicAuthorization.Errorf("", "%s has no READ on topic %q", who, brief(t.Topic))
		}
		for _, p := range t.Partitions {
			rp := kmsg.NewDescribeProducersResponseTopicPartition()
			rp.Partition = p
			err := topicErr
			var states []fence.ProducerState
			if err == nil {
				states, err = h.producers(t.Topic, p)
			}
			if err != nil {
				rp.ErrorCode, rp.ErrorMessage = h.code(err, keyDescribeProducers, req.Version), message(err)
			}
			for _, st := range states {
				rp.ActiveProducers = append(rp.ActiveProducers, activeProducer(st))
			}
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp
}

func (h *Handler) producers(topic string, partition int32) ([]fence.ProducerState, error) {
	if !h.exists(topic, partition) {
		return nil, notKnown(topic, partition)
	}
	if topic == txnstate.OffsetsTopic {
		if h.cfg.Offsets == nil {
			return nil, txnstate.CodeNotLeaderOrFollower.Errorf("", "groups are coordinated elsewhere")
		}
		return h.cfg.Offsets.Producers(partition)
	}
	log, err := h.cfg.Leader.Log(topic, partition)
	if err != nil {
		return nil, err
	}
	var states []fence.ProducerState
	log.With(func(p *fence.Partition) { states = p.Producers() })
	if err := still(log); err != nil {
		return nil, err
	}
	return states, nil
}

func activeProducer(st fence.ProducerState) kmsg.DescribeProducersResponseTopicPartitionActiveProducer {
	ap := kmsg.NewDescribeProducersResponseTopicPartitionActiveProducer()
	ap.ProducerID, ap.ProducerEpoch = st.Producer.ID, int32(st.Producer.Epoch)
	ap.LastSequence, ap.LastTimestamp = st.LastSequence, st.LastTimestampMs
	ap.CoordinatorEpoch = st.CoordinatorEpoch
	ap.CurrentTxnStartOffset = -1
	if st.Open {
		ap.CurrentTxnStartOffset = st.OpenSince
	}
	return ap
}

// validTopicName is Kafka's Topic.validate.
func validTopicName(s string) bool {
	if s == "" || s == "." || s == ".." || len(s) > 249 {
		return false
	}
	for i := range len(s) {
		switch b := s[i]; {
		case 'a' <= b && b <= 'z', 'A' <= b && b <= 'Z', '0' <= b && b <= '9', b == '.', b == '_', b == '-':
		default:
			return false
		}
	}
	return true
}
