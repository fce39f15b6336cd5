package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// given is what an overlay file of the go command puts in place of other files. The
// worlds run in a binary that this command builds: without this a change that was
// handed to the command by an overlay would be missing in them, and nobody would
// notice.
func given() (map[string]string, error) {
	name := *overlay
	if name == "" {
		out, err := exec.Command("go", "env", "GOFLAGS").Output()
		if err != nil {
			return nil, err
		}
		name = overlayIn(strings.Fields(string(out)))
	}
	if name == "" {
		// go run is the parent. Where there is no /proc, -overlay has to say it.
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", os.Getppid()))
		if args := strings.Split(string(b), "\x00"); len(args) > 1 && args[1] == "run" {
			name = overlayIn(args[2:])
		}
	}
	if name == "" {
		return nil, nil
	}
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	return parseOverlay(name, b)
}

// overlayIn is the file that the go command's flags name, or "".
func overlayIn(args []string) (name string) {
	for i, a := range args {
		a, ok := strings.CutPrefix(a, "-")
		if !ok {
			continue
		}
		switch flag, value, has := strings.Cut(strings.TrimPrefix(a, "-"), "="); {
		case flag != "overlay":
		case has:
			name = value
		case i+1 < len(args):
			name = args[i+1]
		}
	}
	return name
}

// parseOverlay makes names that are relative, to this process's directory, absolute.
func parseOverlay(name string, b []byte) (map[string]string, error) {
	var o struct{ Replace map[string]string }
	if err := json.Unmarshal(b, &o); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	out := map[string]string{}
	for file, by := range o.Replace {
		for _, p := range []*string{&file, &by} {
			if *p == "" {
				continue // the file is to be missing
			}
			abs, err := filepath.Abs(*p)
			if err != nil {
				return nil, err
			}
			*p = abs
		}
		out[file] = by
	}
	return out, nil
}
