// Command kafkatxn-conformance shows how far the transactions of a
// Kafka-compatible broker agree with Apache Kafka's: it replays recorded
// conversations with Kafka and tells where the answers differ, and why.
//
//	kafkatxn-conformance -addr localhost:9092
//
// It leaves topics, transactional ids, groups and access rules behind, all under
// one prefix: use a broker that is not needed for anything else.
//
// The exit status is 0 when all answers agree, 1 when some differ, 2 when the
// replay could not be made or did not get to its end.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/kafkatxn/kafkatxn/conformance"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet("kafkatxn-conformance", flag.ContinueOnError)
	fs.SetOutput(stderr)
	var (
		addr    = fs.String("addr", "127.0.0.1:9092", "the `HOST:PORT` of the broker")
		suites  = fs.String("suite", "", "replay only these `SUITES`, separated by commas; patterns like data* are possible")
		list    = fs.Bool("list", false, "list the suites and do nothing else")
		n       = fs.Int("n", 0, "replay at most this many scenarios of each suite; 0 is all")
		exclude = fs.String("exclude", "", "leave out these suites and scenarios: `PATTERNS`, separated by commas")
		extra   = fs.String("extra", "", "replay the recordings (*.jsonl, *.jsonl.gz) of this `DIRECTORY` too")
		par     = fs.Int("parallel", 0, "scenarios replayed at a time, 0 is 4; some suites always go one by one")
		show    = fs.Int("show", 5, "tell this many differences of each suite in full")
		asJSON  = fs.Bool("json", false, "write the report as JSON")
		follow  = fs.Bool("follow", false, "send each request to its coordinator or leader, for several brokers")
		resend  = fs.Bool("resend", false, "send a request again that gets no answer; what differs after that is not counted")
		prefix  = fs.String("prefix", "", "start the names of topics, groups and transactional ids with this, instead of something new")
		patient = fs.Duration("patience", 0, "how long an answer like CONCURRENT_TRANSACTIONS, or the Prepare state of a transaction, may last before it counts; 0 is 8s")
		limit   = fs.Duration("limit", 2*time.Hour, "give up after this time")
		between = fs.String("between", "", "run this `COMMAND` with sh in the middle of the scenarios, to restart the broker")
		forget  = fs.String("may-forget", "", "what the broker need not remember over -between: `FACTS` of "+facts()+", separated by commas")
		verbose = fs.Bool("v", false, "say on standard error when a suite is done")
	)
	fs.Usage = func() {
		fmt.Fprint(stderr, "Replays recorded conversations with Apache Kafka against a broker and tells where its answers differ.\n\n")
		fs.PrintDefaults()
	}
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	if fs.NArg() > 0 {
		fmt.Fprintf(stderr, "kafkatxn-conformance: unexpected argument %q\n", fs.Arg(0))
		return 2
	}
	if *list {
		return printSuites(stdout)
	}
	o := conformance.Options{
		Suites: split(*suites), Exclude: split(*exclude), Scenarios: *n, Parallel: *par, Prefix: *prefix, Follow: *follow, Resend: *resend, Patience: *patient,
	}
	for _, f := range split(*forget) {
		o.MayForget = append(o.MayForget, conformance.Fact(f))
	}
	if *extra != "" {
		o.Extra = os.DirFS(*extra)
	}
	if *verbose {
		o.Logger = slog.New(slog.NewTextHandler(stderr, nil))
	}
	if *between != "" {
		o.Between = func(ctx context.Context) error {
			cmd := exec.CommandContext(ctx, "sh", "-c", *between)
			cmd.Stdout, cmd.Stderr = stderr, stderr
			return cmd.Run()
		}
	}
	ctx, cancel := context.WithTimeout(ctx, *limit)
	defer cancel()
	r, err := conformance.Check(ctx, *addr, o)
	if len(r.Suites) > 0 || err == nil {
		werr := error(nil)
		if *asJSON {
			werr = r.WriteJSON(stdout)
		} else {
			werr = r.WriteText(stdout, *show)
		}
		err = errors.Join(err, werr)
	}
	switch {
	case err != nil:
		fmt.Fprintf(stderr, "kafkatxn-conformance: %v\n", err)
		return 2
	case !r.OK():
		return 1
	}
	return 0
}

func split(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ",")
}

func facts() string {
	var out []string
	for _, f := range conformance.Facts() {
		out = append(out, string(f))
	}
	return strings.Join(out, ", ")
}

func printSuites(w io.Writer) int {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, s := range conformance.Suites() {
		fmt.Fprintf(tw, "%s\t%d scenarios\t%d answers\t%s\n", s.Name, s.Scenarios, s.Answers, s.About)
		fmt.Fprintf(tw, "\t\t\trecorded from %s\n", s.Source)
		if s.Needs != "" {
			fmt.Fprintf(tw, "\t\t\tneeds %s\n", s.Needs)
		}
	}
	if err := tw.Flush(); err != nil {
		return 2
	}
	return 0
}
