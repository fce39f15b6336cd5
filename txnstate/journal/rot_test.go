package journal_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/txnstate"
)

// A repair goes by what was synced. Where that has changed on the disk meanwhile, there
// is nothing to go by: nothing is replaced, and nothing is answered.
func TestARepairDoesNotBuildOnDamage(t *testing.T) {
	for what, harm := range map[string]func(b []byte) []byte{
		"rot":   func(b []byte) []byte { b[80] ^= 1; return b },
		"short": func(b []byte) []byte { return b[:70] },
	} {
		fsys := freshDisk(t)
		s, err := open(fsys)
		require.NoError(t, err)
		v, err := s.Swap(t.Context(), idle("a"), txnstate.Durable)
		require.NoError(t, err)
		fsys.FailSync(0)
		next := idle("a")
		next.Version = v
		_, err = s.Swap(t.Context(), next, txnstate.Durable)
		require.ErrorIs(t, err, txnstate.ErrUncertain)
		entries, err := fsys.ReadDir(dir)
		require.NoError(t, err)
		name := ""
		for _, e := range entries {
			if strings.HasSuffix(e.Name(), ".log") {
				name = dir + "/" + e.Name()
			}
		}
		b, err := fsys.ReadFile(name)
		require.NoError(t, err)
		b = harm(b)
		f, err := fsys.OpenFile(name, os.O_WRONLY|os.O_TRUNC, 0)
		require.NoError(t, err)
		_, err = f.Write(b)
		require.NoError(t, err)
		require.NoError(t, f.Close())
		_, err = s.Load(t.Context(), "a")
		require.ErrorIs(t, err, txnstate.ErrUncertain, what)
		after, err := fsys.ReadFile(name)
		require.NoError(t, err)
		require.Equal(t, b, after, what)
		require.Error(t, s.Close())
	}
}
