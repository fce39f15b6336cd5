//go:build !race

package explore_test

const slow = false
