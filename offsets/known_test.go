package offsets

import (
	"context"
	"testing"
)

// A group exists for its host by what was committed or staged in it, and not by a
// commit that may yet be refused.
func TestAnAnnouncedCommitMakesNoGroup(t *testing.T) {
	m, err := New(Config{Log: NewMemLog()})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	if m.HasOffsets("g") {
		t.Error("a group of a partition that is not loaded")
	}
	if err := m.Load(ctx); err != nil {
		t.Fatal(err)
	}
	os := []Offset{{Topic: "t", Offset: 5}}
	end := m.Announce("g", os)
	if m.HasOffsets("g") || !m.HasPending("g") {
		t.Error("announced")
	}
	if _, err := m.Commit(ctx, "g", os); err != nil {
		t.Fatal(err)
	}
	end()
	if !m.HasOffsets("g") || m.HasOffsets("h") {
		t.Error("committed")
	}
	if err := m.Close(ctx); err != nil {
		t.Fatal(err)
	}
}
