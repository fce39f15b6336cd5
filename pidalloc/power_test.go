package pidalloc

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/internal/crashfs"
)

// life draws ids until the power fails, or there are enough.
func life(fsys *crashfs.FS, l *ledger, t *testing.T, who string, n int) {
	a := allocator(t, fsys, testBlock)
	for range n {
		id, err := a.Next(context.Background())
		if err != nil {
			if _, crashed := fsys.Crashed(); !crashed {
				require.NoError(t, err, who)
			}
			return
		}
		l.add(t, who, id)
	}
}

// The power fails before any operation, of the first start and of the one after it,
// and what was not synced is there or not: no id is given twice, and the allocator
// goes on.
func TestI6_ALossOfPowerAtAnyOperationRepeatsNothing(t *testing.T) {
	t.Parallel()
	const most = 1 << 20
	ended := false
	for k := 0; !ended; k++ {
		for image := range uint64(5) {
			l := &ledger{}
			fsys := crashfs.New(uint64(k))
			fsys.CrashAt(k)
			life(fsys, l, t, fmt.Sprintf("the first, with a crash at %d", k), 2*testBlock+1)
			_, crashed := fsys.Crashed()
			ended = !crashed
			next := fsys.Image(image)
			next.CrashAt(next.Ops() + (k*5+int(image))%40)
			life(next, l, t, fmt.Sprintf("the second, image %d of a crash at %d", image, k), testBlock+1)
			again := next.Image((image + uint64(k)) % 4)
			again.CrashAt(again.Ops() + most)
			life(again, l, t, fmt.Sprintf("the third, image %d of a crash at %d", image, k), testBlock+1)
			require.False(t, t.Failed())
		}
	}
}
