package kafkatxn_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/kafkatxn/kafkatxn"

// deps are the packages that packages need, outside of the standard library.
func deps(t *testing.T, pkgs ...string) map[string]bool {
	t.Helper()
	args := append([]string{"list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}"}, pkgs...)
	out, err := exec.Command("go", args...).Output()
	require.NoError(t, err)
	found := map[string]bool{}
	for _, p := range strings.Fields(string(out)) {
		found[p] = true
	}
	return found
}

// An embedder of the core takes on the standard library, golang.org/x/sync and
// renameio, and nothing else.
func TestTheCoreNeedsTheStandardLibraryXSyncAndRenameioOnly(t *testing.T) {
	for p := range deps(t, "./txnstate/...", "./markers", "./markers/queue", "./fence", "./offsets", "./reaper", "./pidalloc", "./lease") {
		ours := strings.HasPrefix(p, module+"/") && !strings.Contains(p, "/wire") && !strings.Contains(p, "/examples") && !strings.Contains(p, "/conformance")
		allowed := strings.HasPrefix(p, "golang.org/x/sync/") || strings.HasPrefix(p, "github.com/google/renameio/")
		require.True(t, ours || allowed, "the core needs %s", p)
	}
}

// Imports go one way, and Kafka's wire types stay in the rooms that speak it.
func TestImportsGoOneWay(t *testing.T) {
	never := map[string][]string{
		"./txnstate":    {"fence", "markers", "offsets", "reaper", "pidalloc", "wire", "conformance"},
		"./fence":       {"markers", "offsets", "reaper", "pidalloc", "wire"},
		"./markers":     {"offsets", "reaper", "pidalloc", "wire"},
		"./offsets":     {"reaper", "pidalloc", "wire"},
		"./reaper":      {"fence", "markers", "offsets", "pidalloc", "wire"},
		"./lease":       {"fence", "markers", "offsets", "reaper", "pidalloc", "wire", "conformance"},
		"./pidalloc":    {"fence", "markers", "offsets", "reaper", "wire"},
		"./wire":        {"conformance", "examples/minibroker"},
		"./conformance": {"txnstate", "fence", "markers", "offsets", "wire"},
	}
	for pkg, others := range never {
		found := deps(t, pkg)
		for _, o := range others {
			require.False(t, found[module+"/"+o], "%s imports %s", pkg, o)
		}
	}
}
