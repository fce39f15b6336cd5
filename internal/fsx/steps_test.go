package fsx_test

import (
	"io/fs"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
)

func TestAFileThatIsThereIsNotMadeAnew(t *testing.T) {
	fsys := fsx.Mem()
	require.NoError(t, fsx.CreateSynced(fsys, "a", []byte("first"), 0o644))
	require.ErrorIs(t, fsx.CreateSynced(fsys, "a", []byte("second"), 0o644), fs.ErrExist)
	b, err := fsys.ReadFile("a")
	require.NoError(t, err)
	require.Equal(t, "first", string(b))
}
