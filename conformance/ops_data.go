package conformance

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

const (
	attrTransactional = 0x10
	attrControl       = 0x20
	batchOverhead     = 12 // base offset and length, which the length does not count
	batchHeader       = 61
)

// batch encodes a record batch of magic 2, uncompressed.
func (p *player) batch(s *Step, now time.Time) []byte {
	var recs []byte
	for i := range s.Records {
		rec := kmsg.Record{OffsetDelta: i, Value: fmt.Appendf(nil, "%s-%d-%d", s.Producer, s.Epoch, s.Sequence+i)}
		rec.Length = int32(len(rec.AppendTo(nil)) - 1) // Length 0 takes one byte
		recs = rec.AppendTo(recs)
	}
	ms := now.UnixMilli()
	b := kmsg.RecordBatch{
		PartitionLeaderEpoch: -1, Magic: 2, LastOffsetDelta: s.Records - 1, FirstTimestamp: ms, MaxTimestamp: ms,
		ProducerID: p.pid(s.Producer), ProducerEpoch: s.Epoch, FirstSequence: s.Sequence, NumRecords: s.Records, Records: recs,
	}
	if s.Transactional {
		b.Attributes |= attrTransactional
	}
	if s.Control {
		b.Attributes |= attrControl
	}
	enc := b.AppendTo(nil)
	binary.BigEndian.PutUint32(enc[8:], uint32(len(enc)-batchOverhead))
	binary.BigEndian.PutUint32(enc[17:], crc32.Checksum(enc[21:], castagnoli))
	return enc
}

func (p *player) produce(ctx context.Context, s *Step) (Answer, error) {
	tp := s.Parts[0]
	req := kmsg.NewPtrProduceRequest()
	req.Version = s.Version
	req.Acks = -1
	req.TimeoutMillis = 10000
	if s.EmptyID || s.Transactional && s.TxnID != "" {
		req.TransactionID = ptr(p.txnID(s))
	}
	t := kmsg.NewProduceRequestTopic()
	t.Topic = p.topic(tp.Topic)
	rp := kmsg.NewProduceRequestTopicPartition()
	rp.Partition, rp.Records = tp.Partition, p.batch(s, p.e.o.Now())
	t.Partitions = append(t.Partitions, rp)
	req.Topics = append(req.Topics, t)
	x, err := do[*kmsg.ProduceResponse](ctx, p.c, req)
	if err != nil {
		return Answer{}, err
	}
	if len(x.Topics) != 1 || len(x.Topics[0].Partitions) != 1 {
		return Answer{}, short("not one partition")
	}
	y := x.Topics[0].Partitions[0]
	a := Answer{Err: errName(y.ErrorCode)}
	if a.Err == "" {
		a.BaseOffset = ptr(y.BaseOffset)
	}
	return a, nil
}

func (p *player) fetch(ctx context.Context, s *Step) (Answer, error) {
	fp, code, err := p.fetchFrom(ctx, s.Parts[0], s.Isolation, s.MaxBytes)
	if err != nil || code != 0 {
		return Answer{Err: errName(code)}, err
	}
	a := Answer{Err: errName(fp.ErrorCode), HighWatermark: ptr(fp.HighWatermark), LastStable: ptr(fp.LastStableOffset)}
	for _, ab := range fp.AbortedTransactions {
		a.Aborted = append(a.Aborted, fmt.Sprintf("%s@%d", p.sym(ab.ProducerID), ab.FirstOffset))
	}
	bs, err := batches(fp.RecordBatches)
	if err != nil {
		return Answer{}, err
	}
	for i := range bs {
		a.Batches = append(a.Batches, p.line(&bs[i]))
	}
	return a, nil
}

func (p *player) fetchFrom(ctx context.Context, tp TP, isolation int8, maxBytes int32) (kmsg.FetchResponseTopicPartition, int16, error) {
	var none kmsg.FetchResponseTopicPartition
	req := kmsg.NewPtrFetchRequest()
	req.Version = 11 // the last before topics are named by id only (13) and sessions of replicas change the request
	req.MaxWaitMillis, req.MinBytes, req.MaxBytes = 50, 1, 1<<20
	req.ReplicaID = -1
	req.IsolationLevel = isolation
	req.SessionEpoch = -1 // no session
	t := kmsg.NewFetchRequestTopic()
	t.Topic = p.topic(tp.Topic)
	rp := kmsg.NewFetchRequestTopicPartition()
	rp.Partition, rp.FetchOffset, rp.PartitionMaxBytes, rp.CurrentLeaderEpoch, rp.LogStartOffset = tp.Partition, tp.Offset, cmp.Or(maxBytes, 1<<20), -1, -1
	t.Partitions = append(t.Partitions, rp)
	req.Topics = append(req.Topics, t)
	x, err := do[*kmsg.FetchResponse](ctx, p.c, req)
	if err != nil || x.ErrorCode != 0 {
		code := int16(0)
		if err == nil {
			code = x.ErrorCode
		}
		return none, code, err
	}
	if len(x.Topics) != 1 || len(x.Topics[0].Partitions) != 1 {
		return none, 0, short("not one partition")
	}
	return x.Topics[0].Partitions[0], 0, nil
}

// produceMany sends several batches in one request, or one where topics are named
// by id.
func (p *player) produceMany(ctx context.Context, s *Step) (Answer, error) {
	req := kmsg.NewPtrProduceRequest()
	req.Version = s.Version
	req.Acks = -1
	req.TimeoutMillis = 10000
	if s.EmptyID || s.TxnID != "" {
		req.TransactionID = ptr(p.txnID(s))
	}
	at := map[string]int{}
	for _, b := range s.each() {
		tp := b.Parts[0]
		i, ok := at[tp.Topic]
		if !ok {
			t := kmsg.NewProduceRequestTopic()
			var err error
			if t.Topic, t.TopicID, err = p.named(ctx, tp.Topic, s.Version >= 13); err != nil {
				return Answer{}, err
			}
			i = len(req.Topics)
			at[tp.Topic] = i
			req.Topics = append(req.Topics, t)
		}
		rp := kmsg.NewProduceRequestTopicPartition()
		rp.Partition, rp.Records = tp.Partition, p.batch(b, p.e.o.Now())
		req.Topics[i].Partitions = append(req.Topics[i].Partitions, rp)
	}
	x, err := do[*kmsg.ProduceResponse](ctx, p.c, req)
	if err != nil {
		return Answer{}, err
	}
	errs, offsets := map[string]string{}, map[string]int64{}
	for _, t := range x.Topics {
		for _, y := range t.Partitions {
			k := tpKey(p.nameOf(t.Topic, t.TopicID), y.Partition)
			errs[k] = errName(y.ErrorCode)
			if y.ErrorCode == 0 {
				offsets[k] = y.BaseOffset
			}
		}
	}
	a := fold(errs)
	if len(offsets) > 0 {
		a.Offsets = offsets
	}
	var asked []TP
	for _, b := range s.each() {
		asked = append(asked, b.Parts[0])
	}
	return a, covers(asked, errs)
}

func (p *player) listOffsets(ctx context.Context, s *Step) (Answer, error) {
	x, err := p.offsetAt(ctx, s.Parts[0], s.Time, s.Isolation)
	if err != nil {
		return Answer{}, err
	}
	return Answer{Err: errName(x.ErrorCode), BaseOffset: ptr(x.Offset)}, nil
}

func (p *player) offsetAt(ctx context.Context, tp TP, time int64, isolation int8) (kmsg.ListOffsetsResponseTopicPartition, error) {
	req := kmsg.NewPtrListOffsetsRequest()
	req.Version = p.e.apis.best(req.Key(), 5)
	req.ReplicaID = -1
	req.IsolationLevel = isolation
	t := kmsg.NewListOffsetsRequestTopic()
	t.Topic = p.topic(tp.Topic)
	rp := kmsg.NewListOffsetsRequestTopicPartition()
	rp.Partition, rp.Timestamp = tp.Partition, time
	t.Partitions = append(t.Partitions, rp)
	req.Topics = append(req.Topics, t)
	x, err := do[*kmsg.ListOffsetsResponse](ctx, p.c, req)
	if err != nil {
		return kmsg.ListOffsetsResponseTopicPartition{}, err
	}
	if len(x.Topics) != 1 || len(x.Topics[0].Partitions) != 1 {
		return kmsg.ListOffsetsResponseTopicPartition{}, short("not one partition")
	}
	return x.Topics[0].Partitions[0], nil
}

// batches decodes what a fetch returned. Only the end may be cut short.
func batches(raw []byte) ([]kmsg.RecordBatch, error) {
	var out []kmsg.RecordBatch
	for at := 0; len(raw) >= batchHeader; {
		size := int64(int32(binary.BigEndian.Uint32(raw[8:]))) + batchOverhead
		if size < batchHeader {
			return nil, Unreadable(fmt.Errorf("record batch at byte %d: length %d", at, size-batchOverhead))
		}
		if size > int64(len(raw)) {
			break
		}
		var b kmsg.RecordBatch
		if err := b.ReadFrom(raw[:size]); err != nil {
			return nil, Unreadable(fmt.Errorf("record batch at byte %d: %w", at, err))
		}
		if b.Magic != 2 {
			return nil, Unreadable(fmt.Errorf("record batch at byte %d: magic %d", at, b.Magic))
		}
		out = append(out, b)
		raw = raw[size:]
		at += int(size)
	}
	return out, nil
}

// line is a batch as an Answer shows it.
func (p *player) line(b *kmsg.RecordBatch) string {
	kind, txn := "data", ""
	if b.Attributes&attrControl != 0 {
		kind = "control"
		if c, ok := controlOf(b); ok {
			kind = c.String()
		}
	}
	if b.Attributes&attrTransactional != 0 {
		txn = " txn"
	}
	return fmt.Sprintf("%d+%d %s %s e%d s%d%s", b.FirstOffset, b.NumRecords, kind, p.sym(b.ProducerID), b.ProducerEpoch, b.FirstSequence, txn)
}

// control is the record of a marker's batch.
type control struct {
	keyVersion, typ uint16
	valueVersion    int // -1 for none
	valueLen        int
	coordinator     int32 // the coordinator's epoch, -1 for none
}

func controlOf(b *kmsg.RecordBatch) (control, bool) {
	var rec kmsg.Record
	if err := rec.ReadFrom(b.Records); err != nil || len(rec.Key) < 4 {
		return control{}, false
	}
	c := control{keyVersion: binary.BigEndian.Uint16(rec.Key), typ: binary.BigEndian.Uint16(rec.Key[2:]), valueVersion: -1, valueLen: len(rec.Value), coordinator: -1}
	if len(rec.Value) >= 2 {
		c.valueVersion = int(binary.BigEndian.Uint16(rec.Value))
	}
	if len(rec.Value) >= 6 {
		c.coordinator = int32(binary.BigEndian.Uint32(rec.Value[2:]))
	}
	return c, true
}

func (c control) String() string {
	name := ""
	switch c.typ {
	case 0:
		name = "ABORT"
	case 1:
		name = "COMMIT"
	}
	return fmt.Sprintf("%s(keyv%d,valv%d,len%d)", name, c.keyVersion, c.valueVersion, c.valueLen)
}
