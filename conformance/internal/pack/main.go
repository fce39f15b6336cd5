// Command pack keeps the recordings compressed.
//
//	pack DIR            rewrites every DIR/*.jsonl.gz the way this command compresses
//	pack -from SRC DIR  packs every SRC/*.jsonl into DIR
//	pack -to DST DIR    unpacks every DIR/*.jsonl.gz into DST
//
// The same scenarios give the same bytes, with the same version of Go; a file
// whose content is already what it should be is left alone.
package main

import (
	"bytes"
	"compress/gzip"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/kafkatxn/kafkatxn/conformance"
)

func main() {
	from := flag.String("from", "", "pack the *.jsonl of this directory")
	to := flag.String("to", "", "unpack into this directory")
	flag.Parse()
	if err := run(*from, *to, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "pack:", err)
		os.Exit(1)
	}
}

func run(from, to string, args []string) error {
	if len(args) != 1 || from != "" && to != "" {
		return errors.New("usage: pack [-from SRC | -to DST] DIR")
	}
	dir := args[0]
	src, pattern := dir, "*.jsonl.gz"
	if from != "" {
		src, pattern = from, "*.jsonl"
	}
	files, err := filepath.Glob(filepath.Join(src, pattern))
	if err != nil {
		return err
	}
	if len(files) == 0 {
		return fmt.Errorf("no %s in %s", pattern, src)
	}
	for _, f := range files {
		if err := one(f, from != "", to, dir); err != nil {
			return fmt.Errorf("%s: %w", f, err)
		}
	}
	return nil
}

func one(file string, plain bool, to, dir string) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if !plain {
		if b, err = unpack(b); err != nil {
			return err
		}
	}
	if _, err := conformance.ReadScenarios(bytes.NewReader(b)); err != nil {
		return err
	}
	name := strings.TrimSuffix(strings.TrimSuffix(filepath.Base(file), ".gz"), ".jsonl")
	if to != "" {
		return os.WriteFile(filepath.Join(to, name+".jsonl"), b, 0o644)
	}
	target := filepath.Join(dir, name+".jsonl.gz")
	if old, err := os.ReadFile(target); err == nil && plain {
		if was, err := unpack(old); err == nil && bytes.Equal(was, b) {
			return nil
		}
	}
	packed, err := pack(b)
	if err != nil {
		return err
	}
	return os.WriteFile(target, packed, 0o644)
}

// pack compresses without a name or a time, which would differ from run to run.
func pack(b []byte) ([]byte, error) {
	var out bytes.Buffer
	z, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := z.Write(b); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func unpack(b []byte) ([]byte, error) {
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(z, 512<<20))
}
