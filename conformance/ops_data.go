package conformance

import (
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
	if s.Transactional && s.TxnID != "" {
		req.TransactionID = ptr(p.name(s.TxnID))
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
	fp, code, err := p.fetchFrom(ctx, s.Parts[0], s.Isolation)
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

func (p *player) fetchFrom(ctx context.Context, tp TP, isolation int8) (kmsg.FetchResponseTopicPartition, int16, error) {
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
	rp.Partition, rp.FetchOffset, rp.PartitionMaxBytes, rp.CurrentLeaderEpoch, rp.LogStartOffset = tp.Partition, tp.Offset, 1<<20, -1, -1
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
