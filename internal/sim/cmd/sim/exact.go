package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// exactRuntime is Go's runtime with a chance that begins anew with each bubble:
// which of several ready cases a select takes, in which order a map is visited and
// timers of one instant fire, what math/rand draws. It changes nothing else. An
// empty result: this version of Go has other files, and seeds may differ from one
// run to the next.
func exactRuntime() (map[string]string, error) {
	// Always the same place, so that the go command builds it once.
	dir := filepath.Join(os.TempDir(), "kafkatxn-sim-"+runtime.Version())
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return nil, err
	}
	src := filepath.Join(strings.TrimSpace(string(out)), "src")
	more := map[string]string{}
	for name, edits := range exactEdits {
		b, err := os.ReadFile(filepath.Join(src, filepath.FromSlash(name)))
		if err != nil {
			return nil, err
		}
		s := string(b)
		for _, e := range edits {
			if strings.Count(s, e[0]) != 1 {
				fmt.Fprintf(os.Stderr, "sim: this Go's %s is another: seeds may differ from one run to the next\n", name)
				return map[string]string{}, nil
			}
			s = strings.Replace(s, e[0], e[1], 1)
		}
		to := filepath.Join(dir, strings.ReplaceAll(name, "/", "_"))
		if err := os.WriteFile(to, []byte(s), 0o600); err != nil {
			return nil, err
		}
		more[filepath.Join(src, filepath.FromSlash(name))] = to
	}
	return more, nil
}

var exactEdits = map[string][][2]string{
	"runtime/rand.go": {
		// The keys of hashes, drawn at the start.
		{"\tif len(startupRand) >= 16 &&", "\tseed[0] = 1\n\tif true {\n\t} else if len(startupRand) >= 16 &&"},
		{"func rand() uint64 {\n", "func rand() uint64 {\n\tif getg().bubble != nil {\n\t\treturn bubbleRand()\n\t}\n"},
		{"func cheaprand() uint32 {\n", "func cheaprand() uint32 {\n\tif getg().bubble != nil {\n\t\treturn uint32(bubbleRand() >> 32)\n\t}\n"},
		{"var readRandomFailed bool", `var readRandomFailed bool

var bubbleRandState uint64

//go:nosplit
func bubbleRand() uint64 {
	bubbleRandState += 0x9e3779b97f4a7c15
	z := bubbleRandState
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb
	return z ^ (z >> 31)
}`},
	},
	"runtime/proc.go": {
		// The clock on the wall interrupts nobody.
		{"const forcePreemptNS = 10 * 1000 * 1000 // 10ms", "const forcePreemptNS = 1 << 60"},
	},
	"crypto/internal/sysrand/rand.go": {
		// Random names of files.
		{"func Read(b []byte) {\n", `var drawn uint64

func Read(b []byte) {
	for i := range b {
		drawn = drawn*6364136223846793005 + 1442695040888963407
		b[i] = byte(drawn >> 56)
	}
}

func readOS(b []byte) {
`},
	},
	"os/exec.go": {
		// It is part of the names of some files.
		{"return syscall.Getpid()", "return 1"},
	},
	"internal/sync/mutex.go": {
		{"starvationThresholdNs = 1e6", "starvationThresholdNs = 1 << 60"},
	},
	"runtime/runtime2.go": {
		// Time goes on while a goroutine waits for a mutex: hosts hold some during I/O.
		{"\twaitReasonSleep:                 true,\n", "\twaitReasonSleep:                 true,\n\twaitReasonSyncMutexLock: true,\n\twaitReasonSyncRWMutexLock: true,\n\twaitReasonSyncRWMutexRLock: true,\n"},
	},
	"runtime/synctest.go": {
		{"\tbubble.now = synctestBaseTime\n", "\tbubble.now = synctestBaseTime\n\tbubbleRandState = 1\n\tgp.m.p.ptr().schedtick = 0\n"},
	},
}
