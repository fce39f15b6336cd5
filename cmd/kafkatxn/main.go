// Command kafkatxn shows what is stored of transactional ids.
//
//	kafkatxn journal [-json] [-frames] PATH    a directory of package journal, or one file of it
//	kafkatxn slot [-json] [-slot N] FILE...    files of package slotfile: slot-N.json, or a generation of it
//
// It prints one line for each record, with times as people read them, or with
// -json one object for each. Of a journal it also prints the files, and of a
// single file, or with -frames, every frame: where it is, whether it checks, and
// the writes in it. What can't be read is said plainly, and what is beyond it is
// shown as far as it is whole.
//
// It only reads, and takes no lock: it may be used beside a running broker. What
// is being written at that moment looks like the end of a write that a crash has
// cut off.
//
// The exit status is 0 when all is well, 1 when something can't be read, 2 when
// the command was not understood.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
)

const usage = `kafkatxn shows what is stored of transactional ids. It only reads.

  kafkatxn journal [-json] [-frames] PATH    a directory of the journal, or one file of it
  kafkatxn slot [-json] [-slot N] FILE...    slot-N.json, or a generation of it

`

// Exit statuses.
const (
	ok       = 0
	damaged  = 1
	misusage = 2
)

func main() {
	os.Exit(run(os.Args[1:], fsx.OS(), os.Stdout, os.Stderr))
}

func run(args []string, fsys fsx.FS, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		say(stderr, usage)
		return misusage
	}
	flags := flag.NewFlagSet("kafkatxn "+args[0], flag.ContinueOnError)
	flags.SetOutput(stderr)
	asJSON := flags.Bool("json", false, "print JSON, one object a line")
	parse := func() (status int, done bool) {
		switch err := flags.Parse(args[1:]); {
		case errors.Is(err, flag.ErrHelp):
			return ok, true
		case err != nil:
			return misusage, true
		case flags.NArg() == 0:
			say(stderr, "kafkatxn %s: what is to be read?\n", args[0])
			return misusage, true
		}
		return ok, false
	}
	out := &printer{w: stdout, json: asJSON}
	switch args[0] {
	case "journal":
		frames := flags.Bool("frames", false, "print every frame of every file of a directory")
		if status, done := parse(); done {
			return status
		}
		for _, path := range flags.Args() {
			(&journalReader{fs: fsys, out: out, frames: *frames}).read(path)
		}
	case "slot":
		n := flags.Int("slot", -1, "the `number` of the slot, where the file's name does not say it")
		if status, done := parse(); done {
			return status
		}
		for _, name := range flags.Args() {
			readSlot(fsys, out, name, *n)
		}
	case "help", "-h", "-help", "--help":
		say(stdout, usage)
		return ok
	default:
		say(stderr, "kafkatxn: %q is no command\n%s", args[0], usage)
		return misusage
	}
	switch {
	case out.err != nil:
		say(stderr, "kafkatxn: %v\n", out.err)
		return damaged
	case out.damaged:
		return damaged
	}
	return ok
}

// say writes to a terminal; where that fails there is nobody left to tell.
func say(w io.Writer, format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) }
