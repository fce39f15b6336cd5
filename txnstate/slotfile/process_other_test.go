//go:build !unix

package slotfile_test

func childMain() bool { return false }
