package onesync

import (
	"testing"

	"go.uber.org/goleak"
)

// Nothing outlives what started it (I13).
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
