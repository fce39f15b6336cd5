package minibroker

import (
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kafkatxn/kafkatxn/fence"
	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
)

// The first record of a topic makes its file. One that was on its way when the
// topic was deleted made it in a directory that was just cleaned, without the name
// that says so, and no broker started there any more.
func TestADeletedTopicLeavesNothingOfWhatWasOnItsWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := fsx.Mem()
		slow := fsx.Hook(mem, func(op fsx.Op, name string) error {
			switch {
			case op == fsx.OpOpenFile && filepath.Base(name) == recordsFile:
				time.Sleep(time.Second)
			case op == fsx.OpRemove && filepath.Base(name) == deletedFile:
				time.Sleep(2 * time.Second)
			}
			return nil
		})
		cfg := Config{Topics: map[string]int32{}}.withDefaults()
		ts, err := openTopics(slow, "topics", cfg)
		require.NoError(t, err)
		tmp, err := ts.create("tmp", 1, false)
		require.NoError(t, err)
		b := plain(1, 10)
		h, _, _, err := fence.ParseHeader(b)
		require.NoError(t, err)
		done := make(chan error)
		go func() { done <- tmp.logs[0].Append(t.Context(), b, admitAll(h)) }()
		synctest.Wait()
		_, err = ts.delete("tmp")
		require.NoError(t, err)
		if err := <-done; err != nil {
			require.Equal(t, kerr.UnknownTopicOrPartition.Code, codeOf(err), "%v", err)
		}
		ts.close()

		left, err := mem.ReadDir("topics")
		require.NoError(t, err)
		require.Empty(t, left)
		ts, err = openTopics(mem, "topics", cfg)
		require.NoError(t, err)
		ts.close()
	})
}
