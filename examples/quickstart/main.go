// Command quickstart shows transactions to a newcomer. It starts a broker made of
// the library in this process, lets an ordinary client (franz-go) consume,
// transform and produce in transactions, commits some and aborts others, and
// prints the coordinator's record along the way and what consumers see at the
// end.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkatxn/kafkatxn/examples/minibroker"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := run(ctx, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
}

// printer writes whole lines from several goroutines.
type printer struct {
	mu  sync.Mutex
	out io.Writer
}

func (p *printer) line(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.out, format+"\n", args...)
}

func run(ctx context.Context, out io.Writer) (err error) {
	p := &printer{out: out}
	b, stop, err := minibroker.Start(ctx, minibroker.Config{
		Listen: "127.0.0.1:0",
		Topics: map[string]int32{"orders": 1, "invoices": 2},
		// Answer EndTxn when everybody has the outcome, so that the story below is in order.
		EndWait: txnstate.AnswerWhenApplied,
		Observer: txnstate.Observer{Transition: func(from txnstate.State, r txnstate.Record) {
			p.line("      record: %-14s -> %-14s producer %-3s %s", from, r.State, r.Producer, names(r.Participants))
		}},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	broker := kgo.SeedBrokers(b.Addr().String())
	p.line("A broker made of kafkatxn listens on %s.\n", b.Addr())

	orders := []string{"apples", "pears", "poison", "plums", "cherries", "arsenic"}
	if err := produce(ctx, broker, orders); err != nil {
		return err
	}
	p.line("Six orders are in topic orders: %s.\n", strings.Join(orders, ", "))
	p.line("A consumer in group billing reads them two at a time and writes an invoice for each, in")
	p.line("transactions: invoices and the group's position are committed together, or not at all.")

	if err := bill(ctx, p, broker); err != nil {
		return err
	}

	committed, err := read(ctx, broker, kgo.ReadCommitted())
	if err != nil {
		return err
	}
	all, err := read(ctx, broker, kgo.ReadUncommitted())
	if err != nil {
		return err
	}
	p.line("\nTopic invoices, as consumers see it:")
	p.line("  read_committed    %s", strings.Join(committed, ", "))
	p.line("  read_uncommitted  %s", strings.Join(all, ", "))
	p.line("The second one sees the invoices of aborted transactions too. Between the records the log")
	p.line("holds a commit or abort marker for each transaction; no consumer is shown those.")

	admin, err := kgo.NewClient(broker)
	if err != nil {
		return err
	}
	defer admin.Close()
	offsets, err := kadm.NewClient(admin).FetchOffsets(ctx, "billing")
	if err != nil {
		return err
	}
	at, _ := offsets.Lookup("orders", 0)
	p.line("\nGroup billing has committed position %d of %d in orders: the aborted transactions did not move it,", at.At, len(orders))
	p.line("so each of their orders was read again.")
	if want := []string{"invoice:apples", "invoice:cherries", "invoice:pears", "invoice:plums", "refused:arsenic", "refused:poison"}; !slices.Equal(committed, want) {
		return fmt.Errorf("read_committed shows %v, and exactly once would be %v", committed, want)
	}
	return nil
}

// bill consumes orders and produces invoices. A batch with a bad order in it is
// aborted the first time: the application notices only when half of it is
// written.
func bill(ctx context.Context, p *printer, broker kgo.Opt) error {
	s, err := kgo.NewGroupTransactSession(broker,
		kgo.TransactionalID("billing-1"),
		kgo.ConsumerGroup("billing"), kgo.ConsumeTopics("orders"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	)
	if err != nil {
		return err
	}
	defer s.Close()
	bad := map[string]bool{"poison": true, "arsenic": true}
	warned := map[string]bool{}
	for done := 0; done < 6; {
		fetches := s.PollRecords(ctx, 2)
		if err := fetches.Err0(); err != nil {
			return err
		}
		records := fetches.Records()
		if len(records) == 0 {
			continue
		}
		if err := s.Begin(); err != nil {
			return err
		}
		end := kgo.TryCommit
		var wrote []string
		for i, r := range records {
			order := string(r.Value)
			invoice := "invoice:" + order
			if bad[order] && warned[order] {
				invoice = "refused:" + order
			} else if bad[order] {
				warned[order], end = true, kgo.TryAbort
			}
			wrote = append(wrote, invoice)
			if err := s.ProduceSync(ctx, &kgo.Record{Topic: "invoices", Partition: int32(i % 2), Value: []byte(invoice)}).FirstErr(); err != nil {
				return err
			}
		}
		verb := "committing"
		if end == kgo.TryAbort {
			verb = "aborting"
		}
		p.line("\n   %s: wrote %s; %s", records[0].Topic, strings.Join(wrote, ", "), verb)
		committed, err := s.End(ctx, end)
		if err != nil {
			return err
		}
		if committed {
			done += len(records)
		}
	}
	return nil
}

func produce(ctx context.Context, broker kgo.Opt, values []string) error {
	c, err := kgo.NewClient(broker, kgo.DefaultProduceTopic("orders"))
	if err != nil {
		return err
	}
	defer c.Close()
	for _, v := range values {
		if err := c.ProduceSync(ctx, kgo.StringRecord(v)).FirstErr(); err != nil {
			return err
		}
	}
	return nil
}

// read is what a consumer finds in topic invoices up to its present end, sorted.
func read(ctx context.Context, broker kgo.Opt, level kgo.IsolationLevel) ([]string, error) {
	c, err := kgo.NewClient(broker, kgo.ConsumeTopics("invoices"), kgo.FetchIsolationLevel(level),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.KeepControlRecords())
	if err != nil {
		return nil, err
	}
	defer c.Close()
	ends, err := kadm.NewClient(c).ListEndOffsets(ctx, "invoices")
	if err != nil {
		return nil, err
	}
	left := map[int32]int64{}
	ends.Each(func(o kadm.ListedOffset) {
		if o.Offset > 0 {
			left[o.Partition] = o.Offset
		}
	})
	var values []string
	for len(left) > 0 {
		fetches := c.PollFetches(ctx)
		if err := fetches.Err0(); err != nil {
			return nil, err
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if r.Offset+1 >= left[r.Partition] {
				delete(left, r.Partition)
			}
			if !r.Attrs.IsControl() {
				values = append(values, string(r.Value))
			}
		})
	}
	slices.Sort(values)
	return values, nil
}

func names(ps []txnstate.Participant) string {
	var s []string
	for _, p := range ps {
		s = append(s, p.String())
	}
	return strings.Join(s, " ")
}
