package fsx_test

import (
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
)

// Of each write the owner hears when it is durable and not before, and of one that
// failed that it did: nothing is written after it, whatever the owner asks for.
func TestWriteSyncTellsWhenItIsDurable_I1(t *testing.T) {
	injected := errors.New("injected")
	for _, tc := range []struct {
		name string
		fail fsx.Op // of the second write
		want []string
	}{
		{"all is well", "", []string{"write", "sync", "done", "write", "sync", "done", "write", "sync", "done"}},
		{"a write fails", fsx.OpWriteAt, []string{"write", "sync", "done", "write", "failed"}},
		{"a sync fails", fsx.OpSync, []string{"write", "sync", "done", "write", "sync", "failed"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got []string
			taken := 0
			disk := fsx.Hook(fsx.Mem(), func(op fsx.Op, _ string) error {
				switch op {
				case fsx.OpWriteAt:
					got = append(got, "write")
				case fsx.OpSync:
					got = append(got, "sync")
				}
				if taken == 2 && op == tc.fail {
					return injected
				}
				return nil
			})
			f, err := disk.OpenFile("f", os.O_RDWR|os.O_CREATE, 0o644)
			require.NoError(t, err)
			told := 0
			fsx.WriteSync(f, func() ([]byte, int64) {
				taken++
				return []byte{byte(taken)}, int64(taken - 1)
			}, func(err error) bool {
				told++
				if err != nil {
					require.ErrorIs(t, err, injected)
					got = append(got, "failed")
					return true // it is not listened to
				}
				got = append(got, "done")
				return told < 3
			})
			require.Equal(t, tc.want, got)
			require.Equal(t, taken, told)
			require.NoError(t, f.Close())
		})
	}
}
