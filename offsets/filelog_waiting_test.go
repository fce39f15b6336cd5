package offsets

import (
	"context"
	"fmt"
	"io/fs"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/stretchr/testify/require"
)

// held is a log each sync of which waits for a value of goOn.
func held(t *testing.T) (l *FileLog, entered, goOn chan struct{}) {
	entered, goOn = make(chan struct{}, 100), make(chan struct{})
	var on atomic.Bool
	l = openLog(t, fsx.Hook(fsx.Mem(), func(op fsx.Op, _ string) error {
		if op == fsx.OpSync && on.Load() {
			entered <- struct{}{}
			<-goOn
		}
		return nil
	}))
	on.Store(true)
	return l, entered, goOn
}

// What does not fit into a block any more waits for the next: until that is begun
// its caller can still take it back.
func TestWhatWaitsForTheNextBlockCanBeTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, entered, goOn := held(t)
		answers := make([]chan error, 4)
		short, cancel := context.WithCancel(ctx)
		defer cancel()
		for i := range answers {
			answers[i] = make(chan error, 1)
			callers, size := ctx, 3<<20
			if i == 0 {
				size = 10 // in the first block, alone
			} else if i == 2 {
				callers = short
			}
			go func() {
				answers[i] <- l.Append(callers, int32(i), raw(strings.Repeat("x", size)))
			}()
			synctest.Wait()
		}
		<-entered
		goOn <- struct{}{}
		<-entered // the second has a block
		cancel()
		require.ErrorIs(t, <-answers[2], context.Canceled)
		goOn <- struct{}{}
		<-entered
		goOn <- struct{}{}
		for _, i := range []int{0, 1, 3} {
			require.NoError(t, <-answers[i])
		}
		for i := range answers {
			require.Equal(t, i != 2, replayed(t, l, int32(i)) != "", "partition %d", i)
		}
	})
}

// F15: who comes while Close waits for a write is answered.
func TestF15_AnAppendBehindCloseIsAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, entered, goOn := held(t)
		first, second, closed := make(chan error, 1), make(chan error, 1), make(chan error, 1)
		go func() { first <- l.Append(ctx, 0, raw("a")) }()
		<-entered
		go func() { closed <- l.Close() }()
		synctest.Wait()
		short, cancel := context.WithCancel(ctx)
		go func() { second <- l.Append(short, 0, raw("b")) }()
		synctest.Wait()
		goOn <- struct{}{}
		require.NoError(t, <-first)
		require.NoError(t, <-closed)
		cancel() // for a caller who would wait for ever
		require.ErrorIs(t, <-second, fs.ErrClosed)
	})
}

// A disk that takes no copy of the file does not cost one for each rewrite.
func TestAFailingCopyIsNotTriedWithEveryRewrite(t *testing.T) {
	copies := 0
	l := openLog(t, fsx.Hook(fsx.Mem(), func(op fsx.Op, name string) error {
		if op == fsx.OpOpenFile && strings.Contains(name, "."+logName+".") {
			if copies++; copies > 1 { // the first makes the file
				return errDisk
			}
		}
		return nil
	}))
	l.copyFrom = 1000
	for i := range 500 {
		require.NoError(t, l.Rewrite(ctx, 0, raw(fmt.Sprint(i, strings.Repeat("x", 100)))))
	}
	require.Greater(t, copies, 2)
	require.Less(t, copies, 15)
}

// The file stays within what is live in it, however often it was copied.
func TestTheFileStaysBoundedHoweverOftenItIsCopied(t *testing.T) {
	l := openLog(t, fsx.Mem())
	l.copyFrom = 1000
	appendTo(t, l, 1, strings.Repeat("k", 1000))
	for range 500 {
		require.NoError(t, l.Rewrite(ctx, 0, raw(strings.Repeat("x", 100))))
		require.Less(t, l.end, int64(3500))
	}
}
