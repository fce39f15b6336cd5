package txnstate

import (
	"slices"
	"unicode/utf16"
)

// Slots is how many slots the transactional ids are spread over. It never
// changes: stored state depends on it.
const Slots = 50

// Slot is the slot of a transactional id: FNV-1a (32 bits) of its bytes modulo
// Slots. Storage, ownership and routing all use this one function, so that the
// broker that clients are sent to is the broker that owns the stored state.
func Slot(txnID string) int { return int(hash32(txnID) % Slots) }

// hash32 is 32-bit FNV-1a.
func hash32(s string) uint32 {
	h := uint32(2166136261)
	for i := range len(s) {
		h ^= uint32(s[i])
		h *= 16777619
	}
	return h
}

// PickCoordinator chooses the broker that coordinates a transactional id, from
// the ids of all brokers of the cluster and of those alive at present. All ids
// of a slot get the same broker. It is the slot's place in the sorted list of
// all brokers or, where that one is not alive, in the sorted list of those that
// are: a broker that is alive keeps its own slots whatever becomes of the others,
// the slots of one that fails are spread over the rest, and it gets them back when
// it returns. (Slots of one failed broker may move again when the next one fails.)
// Both lists may come in any order and with repetitions. ok is false where no
// broker of the cluster is alive.
func PickCoordinator(txnID string, all, alive []int32) (broker int32, ok bool) {
	return PickSlotOwner(Slot(txnID), all, alive)
}

// PickSlotOwner is PickCoordinator for a slot, a number from 0 to Slots-1; ok is
// false for a negative one.
func PickSlotOwner(slot int, all, alive []int32) (broker int32, ok bool) {
	all = slices.Compact(slices.Sorted(slices.Values(all)))
	if len(all) == 0 || slot < 0 {
		return 0, false
	}
	if b := all[slot%len(all)]; slices.Contains(alive, b) {
		return b, true
	}
	up := slices.DeleteFunc(all, func(b int32) bool { return !slices.Contains(alive, b) })
	if len(up) == 0 {
		return 0, false
	}
	return up[slot%len(up)], true
}

// javaHash is java.lang.String.hashCode: over UTF-16 code units, with 32-bit
// overflow.
func javaHash(s string) int32 {
	var h int32
	for _, r := range s {
		if r < 0x10000 {
			h = 31*h + int32(r)
			continue
		}
		a, b := utf16.EncodeRune(r)
		h = 31*(31*h+a) + b
	}
	return h
}

// javaAbs is Kafka's Utils.abs: the most negative number becomes 0.
func javaAbs(h int32) int32 {
	switch {
	case h == -h && h != 0:
		return 0
	case h < 0:
		return -h
	}
	return h
}
