package queue

import (
	"crypto/rand"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/kafkatxn/kafkatxn/markers"
)

const (
	queueDir   = "marker_queue"
	entryExt   = ".entry"
	ackExt     = ".ack"
	damagedExt = ".damaged"
	tempExt    = ".tmp"
)

func inboxName(to markers.Target) string { return fmt.Sprintf("to-%d", to) }

// parseInbox is the broker whose inbox a directory is.
func parseInbox(name string) (markers.Target, bool) {
	digits, ok := strings.CutPrefix(name, "to-")
	n, err := strconv.ParseInt(digits, 10, 32)
	return markers.Target(n), ok && err == nil && inboxName(markers.Target(n)) == name
}

// newProcess is a name that no other process has.
func newProcess() string { return rand.Text() }

// address names one entry: which process of which broker sent it, and its number
// there.
type address struct {
	from    markers.Target
	process string
	seq     uint64
}

// String is the address as file names begin, such that names sort as the entries
// of a process were made.
func (a address) String() string { return fmt.Sprintf("%d-%s-%020d", a.from, a.process, a.seq) }

// processLetters and processLen are those of rand.Text.
const (
	processLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
	processLen     = 26
)

// parseName takes a file's name apart. One that is spelled in another way than
// String does is not taken for it.
func parseName(name string) (a address, ext string, ok bool) {
	ext = filepath.Ext(name)
	base := strings.TrimSuffix(name, ext)
	seqAt := strings.LastIndexByte(base, '-')
	if seqAt < 0 {
		return a, ext, false
	}
	processAt := strings.LastIndexByte(base[:seqAt], '-')
	if processAt < 0 {
		return a, ext, false
	}
	from, err1 := strconv.ParseInt(base[:processAt], 10, 32)
	seq, err2 := strconv.ParseUint(base[seqAt+1:], 10, 64)
	a = address{markers.Target(from), base[processAt+1 : seqAt], seq}
	ok = err1 == nil && err2 == nil && len(a.process) == processLen && strings.Trim(a.process, processLetters) == "" && a.String() == base
	return a, ext, ok
}

// tempName is a name to write a file under that gets another one later. The
// process that writes is in it, so that two never write one.
func tempName(base, process string) string { return "." + base + "." + process + tempExt }

// parseTemp takes such a name apart.
func parseTemp(name string) (base, process string, ok bool) {
	name, dot := strings.CutPrefix(name, ".")
	name, ext := strings.CutSuffix(name, tempExt)
	i := strings.LastIndexByte(name, '.')
	if !dot || !ext || i < 0 {
		return "", "", false
	}
	return name[:i], name[i+1:], true
}
