package txnstate

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"unicode/utf16"

	"pgregory.net/rapid"
)

// Stored state lies in files named after the slot: the function can never change.
func TestSlotsAreWhereStoredStateLies(t *testing.T) {
	for id, want := range map[string]int{"tx-commit": 9, "tx-ongoing": 25, "tx-bare": 40, "tx-abort": 48, "": 2166136261 % 50} {
		if got := Slot(id); got != want {
			t.Errorf("Slot(%q) is %d, want %d", id, got, want)
		}
	}
	if got := hash32("foobar"); got != 0xbf9cf968 { // from the FNV authors' vectors
		t.Errorf("FNV-1a of foobar is %#x", got)
	}
	if got := hash32("\xff\x00"); got != 0x6e1e20ca {
		t.Errorf("the hash is not over bytes: %#x", got)
	}
}

// F35: one rule for groups, with abs of the smallest int32 being 0 and the hash
// over UTF-16 units. The numbers are those of java.lang.String.hashCode.
func TestF35_GroupsLieInThePartitionThatClientsExpect(t *testing.T) {
	for s, want := range map[string]int32{
		"": 0, "a": 97, "Aa": 2112, "BB": 2112, "hello": 99162322,
		"polygenelubricants": math.MinInt32, "GydZG_": math.MinInt32, "DESIGNING WORKHOUSES": math.MinInt32,
		"𝄞": 0xd834*31 + 0xdd1e, "é": 0xe9,
	} {
		if got := javaHash(s); got != want {
			t.Errorf("hash of %q is %d, want %d", s, got, want)
		}
	}
	for s, want := range map[string]int32{"txn-1": 10, "my-transactional-id": 46, "aaa": 21, "polygenelubricants": 0, "ünïcode-𝄞": 25} {
		if got := OffsetsPartition(s); got != want {
			t.Errorf("partition of %q is %d, want %d", s, got, want)
		}
		if p, ok := Group(s).Offsets(); !ok || p != want {
			t.Errorf("the participant of group %q is in partition %d, want %d", s, p, want)
		}
	}
	for h, want := range map[int32]int32{0: 0, 5: 5, -5: 5, math.MaxInt32: math.MaxInt32, math.MinInt32: 0, math.MinInt32 + 1: math.MaxInt32} {
		if got := javaAbs(h); got != want {
			t.Errorf("abs(%d) is %d, want %d", h, got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.String().Draw(t, "s")
		var want int32
		for _, u := range utf16.Encode([]rune(s)) {
			want = want*31 + int32(u)
		}
		if got := javaHash(s); got != want {
			t.Errorf("hash of %q is %d, want %d", s, got, want)
		}
		if p := OffsetsPartition(s); p < 0 || p >= OffsetsPartitions {
			t.Errorf("partition of %q is %d", s, p)
		}
	})
}

// F35: storage, ownership and routing go by the slot alone, so that a client is
// sent to the broker that has the state.
func TestF35_W1_AllIDsOfASlotHaveOneCoordinator(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all, alive := clusterOf(t)
		id := rapid.String().Draw(t, "id")
		s := Slot(id)
		if s < 0 || s >= Slots {
			t.Fatalf("slot %d", s)
		}
		a, okA := PickCoordinator(id, all, alive)
		b, okB := PickSlotOwner(s, all, alive)
		if a != b || okA != okB {
			t.Fatalf("%q goes to %d (%v), its slot %d is at %d (%v)", id, a, okA, s, b, okB)
		}
	})
}

func clusterOf(t *rapid.T) (all, alive []int32) {
	all = rapid.SliceOfNDistinct(rapid.Int32Range(0, 20), 1, 7, rapid.ID[int32]).Draw(t, "all")
	for _, b := range all {
		if rapid.IntRange(0, 3).Draw(t, "alive") > 0 {
			alive = append(alive, b)
		}
	}
	return all, alive
}

// Every broker works out the owner by itself, from lists that it got in any order.
func TestTheChoiceDoesNotDependOnOrderOrRepetition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all, alive := clusterOf(t)
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		mixed := func(s []int32) []int32 {
			s = slices.Concat(s, s[:len(s)/2])
			r.Shuffle(len(s), func(i, j int) { s[i], s[j] = s[j], s[i] })
			return s
		}
		all2, alive2 := mixed(all), mixed(alive)
		wasAll, wasAlive := slices.Clone(all2), slices.Clone(alive2)
		for slot := range Slots {
			a, okA := PickSlotOwner(slot, all, alive)
			b, okB := PickSlotOwner(slot, all2, alive2)
			if a != b || okA != okB {
				t.Fatalf("slot %d: %d (%v), and %d (%v) with the lists in another order", slot, a, okA, b, okB)
			}
			if okA != (len(alive) > 0) || okA && !slices.Contains(alive, a) {
				t.Fatalf("slot %d goes to %d (%v), alive are %v", slot, a, okA, alive)
			}
		}
		if !slices.Equal(all2, wasAll) || !slices.Equal(alive2, wasAlive) {
			t.Fatal("the caller's lists were changed")
		}
	})
}

// A takeover is work and a moment of refusals: it happens to the slots of the
// broker that failed and to no others.
func TestOnlyTheSlotsOfAFailedBrokerMove(t *testing.T) {
	for n := 2; n <= 9; n++ {
		var all []int32
		for b := range n {
			all = append(all, int32(10*b))
		}
		for _, failed := range all {
			alive := slices.DeleteFunc(slices.Clone(all), func(b int32) bool { return b == failed })
			took := map[int32]int{}
			for slot := range Slots {
				before, _ := PickSlotOwner(slot, all, all)
				after, ok := PickSlotOwner(slot, all, alive)
				switch {
				case !ok || after == failed:
					t.Fatalf("slot %d of %d brokers without %d: %d, %v", slot, n, failed, after, ok)
				case before != failed && after != before:
					t.Errorf("slot %d moved from %d to %d when %d failed", slot, before, after, failed)
				case before == failed:
					took[after]++
				}
			}
			if n > 2 && len(took) < 2 {
				t.Errorf("%d brokers: all slots of %d went to one: %v", n, failed, took)
			}
		}
	}
	// However many have failed: a broker that is alive has its own slots.
	rapid.Check(t, func(t *rapid.T) {
		all, alive := clusterOf(t)
		for slot := range Slots {
			home, _ := PickSlotOwner(slot, all, all)
			if got, _ := PickSlotOwner(slot, all, alive); slices.Contains(alive, home) && got != home {
				t.Fatalf("slot %d of %d, which is alive, is at %d", slot, home, got)
			}
		}
	})
}

// Ids that differ in their last letter are not kept apart by how they hash.
func TestIDsThatAreAlikeMeetAtOneBroker(t *testing.T) {
	for n := int32(2); n <= 9; n++ {
		var all []int32
		for b := range n {
			all = append(all, b)
		}
		const ids = 1000
		met := 0
		for i := range ids {
			a, _ := PickCoordinator(fmt.Sprint("pay", i, ".1"), all, all)
			b, _ := PickCoordinator(fmt.Sprint("pay", i, ".2"), all, all)
			if a == b {
				met++
			}
		}
		if met < ids/int(n)/3 {
			t.Errorf("%d brokers: %d pairs of %d have one coordinator", n, met, ids)
		}
	}
	seen := map[int]bool{}
	for slot := range Slots {
		seen[SlotOrder(slot)] = true
	}
	if len(seen) != Slots || !seen[0] || !seen[Slots-1] {
		t.Errorf("the places are %v", seen)
	}
	if SlotOrder(-1) != -1 || SlotOrder(Slots) != Slots {
		t.Error("a number that is no slot's has another place")
	}
}

func TestSlotsAreSharedOutEvenly(t *testing.T) {
	all := []int32{3, 1, 2}
	n := map[int32]int{}
	for slot := range Slots {
		b, _ := PickSlotOwner(slot, all, all)
		n[b]++
	}
	for b, k := range n {
		if k < Slots/3 || k > Slots/3+1 {
			t.Errorf("broker %d has %d of %d slots", b, k, Slots)
		}
	}
	ids := make([]int, Slots)
	for i := range 100 * Slots {
		ids[Slot(fmt.Sprintf("txn-%d", i))]++
	}
	if lo, hi := slices.Min(ids), slices.Max(ids); lo < 50 || hi > 200 {
		t.Errorf("of ids that count up a slot has between %d and %d, 100 on average", lo, hi)
	}
}

func TestNobodyIsChosenWhereNobodyIs(t *testing.T) {
	for _, c := range []struct {
		slot       int
		all, alive []int32
	}{{3, nil, nil}, {3, nil, []int32{1}}, {3, []int32{1}, nil}, {3, []int32{1}, []int32{2}}, {-1, []int32{1}, []int32{1}}} {
		if b, ok := PickSlotOwner(c.slot, c.all, c.alive); ok {
			t.Errorf("slot %d of %v with %v alive is at %d", c.slot, c.all, c.alive, b)
		}
	}
}
