package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A defect that was planted by an overlay of the go command is in the worlds too.
func TestTheOverlayOfTheGoCommandIsFound(t *testing.T) {
	for want, args := range map[string][]string{
		"":  {"-race", "./internal/sim/cmd/sim"},
		"a": {"-overlay", "a", "./internal/sim/cmd/sim"},
		"b": {"-race", "--overlay=b"},
		"c": {"-overlay=x", "-overlay=c", "-v"},
	} {
		require.Equal(t, want, overlayIn(args), "%v", args)
	}

	dir := t.TempDir()
	file := filepath.Join(dir, "o.json")
	require.NoError(t, os.WriteFile(file, []byte(`{"Replace": {"a.go": "b.go", "gone.go": ""}}`), 0o600))
	t.Setenv("GOFLAGS", "-overlay="+file)
	got, err := given()
	require.NoError(t, err)
	here, err := os.Getwd()
	require.NoError(t, err)
	require.Equal(t, map[string]string{
		filepath.Join(here, "a.go"): filepath.Join(here, "b.go"), filepath.Join(here, "gone.go"): "",
	}, got)
}
