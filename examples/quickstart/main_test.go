package main

import (
	"bytes"
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheStoryEndsWellAndShowsTheRecord(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, run(context.Background(), &out))
	for _, want := range []string{"PrepareCommit  -> CompleteCommit", "PrepareAbort   -> CompleteAbort", "read_committed", "position 6 of 6"} {
		require.Contains(t, out.String(), want)
	}
}
