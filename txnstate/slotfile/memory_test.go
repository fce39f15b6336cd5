package slotfile_test

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/txnstate/slotfile"
)

// I13: memory is bounded by the number of ids, at a known price.
func TestAnIdleIDCostsAFewHundredBytes(t *testing.T) {
	const ids = 50_000
	dir := t.TempDir()
	s, err := slotfile.Open(slotfile.Config{Dir: dir})
	require.NoError(t, err)
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	for i := range ids {
		r := record("payments-transfer-"+itoa(i), 1782675758339)
		r.TimeoutMs, r.StartMs, r.ClientVersion, r.TxnSeq = 60000, 1782675758000, txnstate.TV2, 77
		_, err := s.Swap(t.Context(), r, txnstate.Later)
		require.NoError(t, err)
	}
	require.NoError(t, s.Flush(t.Context()))
	each := (heap() - before) / ids
	t.Logf("%d bytes for each idle id", each)
	require.Less(t, each, uint64(600))
	require.NoError(t, s.Close())

	// And for a process that took them over.
	s, err = slotfile.Open(slotfile.Config{Dir: dir})
	require.NoError(t, err)
	before = heap()
	n := 0
	for slot := range txnstate.Slots {
		for _, err := range s.Slot(t.Context(), slot) {
			require.NoError(t, err)
			n++
		}
	}
	require.Equal(t, ids, n)
	each = (heap() - before) / ids
	t.Logf("%d bytes for each idle id taken over", each)
	require.Less(t, each, uint64(600))
	require.NoError(t, s.Close())
}
