package queue_test

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/markers/markerstest"
	"github.com/kafkatxn/kafkatxn/markers/queue"
)

// put makes a file in the inbox of broker 1.
func (b *bench) put(name string, data []byte) {
	b.t.Helper()
	require.NoError(b.t, b.disk.MkdirAll("shared/marker_queue/to-1", 0o755))
	require.NoError(b.t, b.disk.Replace("shared/marker_queue/to-1/"+name, data, 0o644))
}

// W22: loudly, and the sender need not wait for its time to run out.
func TestADamagedEntryIsSetAsideAndItsSenderTold(t *testing.T) {
	in(t, func(t *testing.T) {
		mem := fsx.Mem()
		var damage atomic.Bool
		disk := fsx.HookAfter(mem, func(op fsx.Op, name string, err error) error {
			if op == fsx.OpRename && strings.HasSuffix(name, ".entry") && damage.Load() {
				data, _ := mem.ReadFile(name)
				data[len(data)/2] ^= 1
				_ = mem.Replace(name, data, 0o644)
			}
			return err
		})
		b := newBench(t, disk, nil)
		damage.Store(true)
		begun := time.Now()
		for range 3 {
			require.Equal(t, []markers.Result{markers.Retry}, b.send(mark(7, 1, true, part(0))))
		}
		require.Less(t, time.Since(begun), 2*time.Second)
		require.Len(t, b.files(".damaged"), 3)
		require.Contains(t, b.log.String(), "level=ERROR msg=\"a damaged entry was set aside")
		require.Contains(t, b.log.String(), "refused an entry")
		damage.Store(false)
		require.Equal(t, applied(1), b.send(mark(7, 1, true, part(0))))

		// Some are kept for somebody to look at, and not all for ever.
		for i := range 150 {
			b.put(fmt.Sprintf("9-QJ5R6TLZ3N4XKXGSEV5ZQDDJ7B-%020d.entry", i), []byte("nonsense"))
		}
		time.Sleep(time.Minute)
		require.Len(t, b.files(".damaged"), 100)
		require.Len(t, b.files(""), 100)
	})
}

func TestWhatIsNotAnEntryIsLeftAlone(t *testing.T) {
	in(t, func(t *testing.T) {
		b := newBench(t, fsx.Mem(), nil)
		for _, name := range []string{"README", "lost+found", "9-short-1.entry", "x.ack", ".nfs0001"} {
			b.put(name, []byte("x"))
		}
		require.Equal(t, applied(1), b.send(mark(7, 1, true, part(0))))
		time.Sleep(time.Hour)
		require.Len(t, b.files(""), 5)
	})
}

// An entry that somebody copied from another inbox, or renamed, has an answer that
// nobody waits for, and may be old.
func TestAnEntryUnderAnotherNameIsNotApplied(t *testing.T) {
	in(t, func(t *testing.T) {
		seen := &recorder{entries: map[string][]byte{}}
		b := newBench(t, seen.watch(fsx.Mem()), nil)
		require.Equal(t, applied(1), b.send(mark(7, 1, true, part(0))))
		require.Len(t, seen.entries, 1)
		for _, data := range seen.entries {
			b.put("9-AAAAAAAAAAAAAAAAAAAAAAAAAA-00000000000000000001.entry", data)
		}
		time.Sleep(time.Second)
		require.Len(t, b.files(".damaged"), 1)
		require.Len(t, b.c.Log(part(0)), 1)
	})
}

func TestAnEntryOfANewerVersionIsRefused(t *testing.T) {
	in(t, func(t *testing.T) {
		mem := fsx.Mem()
		var newer atomic.Bool
		disk := fsx.HookAfter(mem, func(op fsx.Op, name string, err error) error {
			if op == fsx.OpRename && strings.HasSuffix(name, ".entry") && newer.Load() {
				data, _ := mem.ReadFile(name)
				_ = mem.Replace(name, bytes.Replace(data, []byte("entry 1 "), []byte("entry 2 "), 1), 0o644)
			}
			return err
		})
		b := newBench(t, disk, nil)
		newer.Store(true)
		require.Equal(t, []markers.Result{markers.Retry}, b.send(mark(7, 1, true, part(0))))
		require.Contains(t, b.log.String(), "unknown version")
		require.Empty(t, b.files(".damaged"), "there is nothing wrong with it")
		time.Sleep(time.Second)
		require.Empty(t, b.files(""))
	})
}

// W3: an acknowledgement is known by what it acknowledges, not by its name.
func TestAnAcknowledgementOfOtherContentsCountsForNothing(t *testing.T) {
	in(t, func(t *testing.T) {
		b := newBench(t, fsx.Mem(), nil)
		h := markerstest.NewHang()
		b.c.Script(part(0), h.Before())
		done := make(chan []markers.Result, 1)
		go func() { done <- b.within(5*time.Second, mark(7, 1, true, part(0))) }()
		<-h.Reached
		name := strings.TrimSuffix(b.files(".entry")[0], ".entry")
		body := "{\"entry\":\"00000001\",\"results\":[\"applied\"]}\n"
		sealed := fmt.Sprintf("kafkatxn marker ack 1 %08x\n%s", crc32.Checksum([]byte(body), crc32.MakeTable(crc32.Castagnoli)), body)
		for _, ack := range []string{sealed, "nonsense", ""} {
			b.put(name+".ack", []byte(ack))
			time.Sleep(time.Second)
		}
		require.Equal(t, []markers.Result{markers.Retry}, <-done)
		require.Contains(t, b.log.String(), "acknowledgement not read")
		require.Contains(t, b.log.String(), "is of other contents")
		h.Release()
	})
}

// W3: nor does one that an earlier process of the receiver has left: the entry is
// applied.
func TestAnOldAcknowledgementOfOtherContentsIsNotBelieved_W3(t *testing.T) {
	in(t, func(t *testing.T) {
		b := newBench(t, fsx.Mem(), nil)
		b.receiver.kill()
		done := make(chan []markers.Result, 1)
		go func() { done <- b.within(10*time.Second, mark(7, 1, true, part(0))) }()
		time.Sleep(time.Second)
		name := strings.TrimSuffix(b.files(".entry")[0], ".entry")
		body := "{\"entry\":\"00000001\",\"results\":[\"applied\"]}\n"
		b.put(name+".ack", fmt.Appendf(nil, "kafkatxn marker ack 1 %08x\n%s", crc32.Checksum([]byte(body), crc32.MakeTable(crc32.Castagnoli)), body))
		newProcess(t, b.disk).receiver(t, queue.ReceiverConfig{Dir: "shared", Self: 1, Apply: b.c.Broker(1)})
		require.Equal(t, applied(1), <-done)
		require.Len(t, b.c.Log(part(0)), 1)
	})
}

// An entry that somebody copied to another broker's inbox, name and all, is not for
// that one.
func TestAnEntryForAnotherBrokerIsNotApplied(t *testing.T) {
	in(t, func(t *testing.T) {
		b := newBench(t, fsx.Mem(), nil)
		b.receiver.kill()
		go b.within(10*time.Second, mark(7, 1, true, part(0)))
		time.Sleep(time.Second)
		name := b.files(".entry")[0]
		data, err := b.disk.ReadFile("shared/marker_queue/to-1/" + name)
		require.NoError(t, err)
		require.NoError(t, b.disk.MkdirAll("shared/marker_queue/to-2", 0o755))
		require.NoError(t, b.disk.Replace("shared/marker_queue/to-2/"+name, data, 0o644))
		newProcess(t, b.disk).receiver(t, queue.ReceiverConfig{Dir: "shared", Self: 2, Apply: b.c.Broker(1)})
		time.Sleep(time.Second)
		require.Empty(t, b.c.Log(part(0)))
		_, err = b.disk.ReadFile("shared/marker_queue/to-2/" + strings.TrimSuffix(name, ".entry") + ".damaged")
		require.NoError(t, err, "it is there for somebody to look at")
	})
}

// The answer to an entry that was set aside stays until its sender looks, which may
// be after the receiver's next scan.
func TestARefusalWaitsForItsSender_W22(t *testing.T) {
	in(t, func(t *testing.T) {
		mem := fsx.Mem()
		disk := fsx.HookAfter(mem, func(op fsx.Op, name string, err error) error {
			if op == fsx.OpRename && strings.HasSuffix(name, ".entry") {
				data, _ := mem.ReadFile(name)
				data[len(data)/2] ^= 1
				_ = mem.Replace(name, data, 0o644)
			}
			return err
		})
		b := newBench(t, disk, func(sc *queue.SinkConfig, _ *queue.ReceiverConfig) { sc.Poll = 5 * time.Second })
		begun := time.Now()
		require.Equal(t, []markers.Result{markers.Retry}, b.within(time.Minute, mark(7, 1, true, part(0))))
		require.Less(t, time.Since(begun), 20*time.Second)
		require.Contains(t, b.log.String(), "refused an entry")
	})
}
