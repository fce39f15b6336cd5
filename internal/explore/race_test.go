//go:build race

package explore_test

// The race detector makes the walk ten times slower and has nothing to see in it.
const slow = true
