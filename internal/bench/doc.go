// Package bench measures what transactions cost: in process, with each of the
// stores, beside a log that does nothing but sync. It has benchmarks only; module
// bench at the top of the repository measures brokers over the network.
//
//	go test -run '^$' -bench . ./internal/bench
//
// Disks and neighbours have moods, so every figure that is compared with another
// is taken in turns with it, in one run.
package bench
