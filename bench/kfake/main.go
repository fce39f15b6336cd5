// Command kfake is franz-go's broker in memory as a process, to measure against.
// It never syncs. It prints "listening on HOST:PORT" when it serves.
package main

import (
	"fmt"
	"os"

	"github.com/twmb/franz-go/pkg/kfake"
)

func main() {
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.AllowAutoTopicCreation())
	if err != nil {
		fmt.Fprintln(os.Stderr, "kfake:", err)
		os.Exit(1)
	}
	fmt.Println("listening on", c.ListenAddrs()[0])
	select {}
}
