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
// of a slot get the same broker: the slots are dealt out, in the order of SlotOrder,
// to the sorted list of all brokers or, where that one is not alive, of those that
// are. A broker that is alive keeps its own slots whatever becomes of the others,
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
	i := SlotOrder(slot)
	if b := all[i%len(all)]; slices.Contains(alive, b) {
		return b, true
	}
	up := slices.DeleteFunc(all, func(b int32) bool { return !slices.Contains(alive, b) })
	if len(up) == 0 {
		return 0, false
	}
	return up[i%len(up)], true
}

// SlotOrder is the place of a slot in the order in which slots are dealt out to
// brokers. That is not the order of their numbers: the slots of ids that differ in
// the last letter alone lie 7, 19, 31 or 43 apart, so that two or three brokers
// dealt out in turn would never have "pay1" and "pay2" both, and nobody could name
// them in one request. A number that is no slot's is its own place.
func SlotOrder(slot int) int {
	if slot < 0 || slot >= Slots {
		return slot
	}
	return int(slotOrder[slot])
}

// slotOrder is a shuffle without pattern; it never changes while brokers of
// different versions share a cluster.
var slotOrder = [Slots]uint8{
	1, 40, 22, 30, 35, 6, 0, 25, 34, 8,
	43, 7, 23, 15, 41, 4, 12, 20, 9, 31,
	17, 39, 14, 49, 36, 2, 13, 3, 21, 38,
	32, 24, 33, 48, 47, 27, 11, 5, 10, 46,
	26, 19, 45, 28, 37, 44, 42, 16, 18, 29,
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
