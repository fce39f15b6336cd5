// Command broker runs a small Kafka-compatible broker with complete transactions:
// package minibroker as a process.
//
//	go run ./examples/broker -listen 127.0.0.1:9092
//
// Several brokers are a cluster when they share a directory and are told of one
// another; each takes over what another that dies has led:
//
//	go run ./examples/broker -node 1 -listen 127.0.0.1:9092 -cluster 1=127.0.0.1:9092,2=127.0.0.1:9093,3=127.0.0.1:9094 -data DIR
//
// Without -data everything is in memory. With it, what was acknowledged survives
// kill -9 at any moment. It prints "listening on HOST:PORT" when it accepts
// connections, and stops cleanly on SIGINT and SIGTERM.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/kafkatxn/kafkatxn/examples/minibroker"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

func main() {
	if os.Getenv("GOGC") == "" {
		// Little of what a request takes lives on, so the heap is small and would be
		// collected all the time.
		debug.SetGCPercent(400)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "broker:", err)
		os.Exit(1)
	}
}

// run is the program, until ctx is done.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("broker", flag.ContinueOnError)
	flags.SetOutput(stderr)
	var cfg minibroker.Config
	flags.StringVar(&cfg.Listen, "listen", "127.0.0.1:9092", "`address` to accept connections at; port 0 takes a free one")
	flags.StringVar(&cfg.Advertise, "advertise", "", "`address` that clients are told to connect to (default: that of -listen)")
	flags.StringVar(&cfg.Dir, "data", "", "`directory` to keep everything in (default: memory)")
	flags.Func("node", "node `id` (default 0)", func(s string) error {
		_, err := fmt.Sscan(s, &cfg.NodeID)
		return err
	})
	flags.Func("cluster", "all brokers of a cluster that shares the directory of -data, as `id=address,...` (default: this broker alone)", func(s string) (err error) {
		cfg.Cluster, err = parseCluster(s)
		return err
	})
	flags.StringVar((*string)(&cfg.Markers), "markers", string(minibroker.MarkersRPC), "how a cluster's brokers deliver markers to one another: rpc, or queue, by files in the directory")
	flags.DurationVar(&cfg.Lease, "lease", 3*time.Second, "after how long without a sign of life the others of a cluster take a broker's work over")
	flags.StringVar((*string)(&cfg.Store), "store", "", "where transactional ids are kept: memory, slotfile or journal (default: journal with -data, slotfile with -cluster)")
	flags.StringVar((*string)(&cfg.Fsync), "fsync", string(minibroker.Always), "when the files of -data are synced: always, or never, which survives kill -9 and not a loss of power")
	flags.DurationVar(&cfg.AbortInterval, "abort-interval", 10*time.Second, "how often to look for transactions that have outlived their timeout")
	flags.DurationVar(&cfg.ExpireAfter, "expire-after", 7*24*time.Hour, "how long a transactional id without an open transaction is kept unused")
	version := flags.Int("transaction-version", 2, "finalised transaction.version: 0, 1 or 2")
	flags.BoolVar(&cfg.TwoPhaseCommit, "two-phase-commit", false, "serve InitProducerId v6 and allow two-phase commit (KIP-939)")
	asKafka := flags.Bool("as-kafka", true, "answer as Kafka also where that is worse: a fenced producer may go on until its marker comes, a transaction overtaken by a marker of somebody else's is never completed, and who repeats an EndTxn of protocol 2 after somebody has taken over is given that one's identity; -as-kafka=false does better")
	autoCreate := flags.Int("auto-create", 0, "`partitions` of a topic that a client asks for and that is not there; 0 makes none")
	level := flags.String("log", "info", "log `level`: debug, info, warn or error")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unknown argument %q", flags.Arg(0))
	}
	cfg.KafkaFencing, cfg.StopOnFencedEpoch, cfg.RetriesAsKafka = *asKafka, *asKafka, *asKafka
	cfg.AutoCreatePartitions = int32(min(max(*autoCreate, -1), 1<<20))
	cfg.TransactionVersion = txnstate.TransactionVersion(min(max(*version, -2), 3))
	switch *version {
	case 0:
		cfg.TransactionVersion = txnstate.ServerTV0
	case int(txnstate.ServerTV0):
		return fmt.Errorf("-transaction-version %d, and 0 to 2 are known", *version)
	}
	var l slog.Level
	if err := l.UnmarshalText([]byte(*level)); err != nil {
		return fmt.Errorf("-log: %w", err)
	}
	cfg.Logger = slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: l}))
	b, err := minibroker.New(cfg)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	select {
	case <-b.Ready():
		fmt.Fprintln(stdout, "listening on", b.Addr())
		return <-done
	case err := <-done:
		return err
	}
}

// parseCluster reads id=address,id=address.
func parseCluster(s string) (map[int32]string, error) {
	brokers := map[int32]string{}
	for _, part := range strings.Split(s, ",") {
		id, addr, ok := strings.Cut(part, "=")
		n, err := strconv.ParseInt(id, 10, 32)
		if !ok || err != nil {
			return nil, fmt.Errorf("%q is no id=address", part)
		}
		if _, twice := brokers[int32(n)]; twice {
			return nil, fmt.Errorf("broker %d is there twice", n)
		}
		brokers[int32(n)] = addr
	}
	return brokers, nil
}
