// Command kafkatxn-conformance shows how far the transactions of a
// Kafka-compatible broker agree with Apache Kafka's.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/kafkatxn/kafkatxn/conformance"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:9092", "the broker, HOST:PORT")
	suites := flag.String("suite", "", "suites to replay, separated by commas; patterns are possible")
	n := flag.Int("n", 0, "at most this many scenarios of each suite; 0 is all")
	show := flag.Int("show", 5, "differences of each suite to tell in full")
	asJSON := flag.Bool("json", false, "write the report as JSON")
	follow := flag.Bool("follow", false, "send each request to its coordinator or leader (several brokers)")
	limit := flag.Duration("limit", 2*time.Hour, "give up after this time")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, *limit)
	defer cancel()
	o := conformance.Options{Scenarios: *n, Follow: *follow, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	if *suites != "" {
		o.Suites = strings.Split(*suites, ",")
	}
	r, err := conformance.Check(ctx, *addr, o)
	if *asJSON {
		r.WriteJSON(os.Stdout)
	} else {
		r.WriteText(os.Stdout, *show)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	if !r.OK() {
		os.Exit(1)
	}
}
