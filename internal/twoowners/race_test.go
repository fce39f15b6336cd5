//go:build race

package twoowners

func init() { slow = true }
