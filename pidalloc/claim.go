package pidalloc

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
)

// How a block is claimed, and why two processes never claim the same
//
// One file, the token, stands for the right to take the next block. Its name
// says where that block begins: <chain>-<N>. A process claims [N, M) by
//
//	rename <chain>-N to <chain>-M
//
// and, when that succeeded, syncing the directory. Renames of one name exclude
// one another: one caller succeeds, for all others the name is gone. On NFS it
// is the server that looks for the name, so no client's cache comes into it.
//
// The claim holds wherever a process is stopped, and however long:
//
//   - Names of a chain only grow, and a name that is gone never comes back. To
//     make <chain>-N, somebody has to rename a lower name, and the only token is
//     at N or above. So a process that slept on its way to rename N finds the
//     name gone and begins anew, be it a day later.
//   - A process that slept after its rename owns its block: the token stood at N
//     at that instant, so every earlier block ended at N or below, and every
//     later one begins at M or above.
//   - Nothing is read after the rename on which the claim depends, so nothing
//     that is read can be out of date.
//
// It holds through a loss of power, because ids are used only when the rename is
// durable, and through an error whose outcome is unknown, because the block is
// then given up: the token may have moved, or move later, and either way nobody
// uses what it moved over.
//
// What remains is the first token, which no rename makes. If it were simply
// created at the number in the JSON file, a process that was about to do so and
// slept would make a second one. So it belongs to a chain with a random name,
// and a chain counts only if the file "chain" names it. A process makes the
// token first and then links it to "chain", which succeeds for one process only
// and for good; "chain" is never removed. So the token of the chain that counts
// was made once, before it counted. The tokens of other chains mean nothing.
//
// After that, the JSON file is brought up to date. It is replaced by rename,
// and there a process that slept can put an old number over a newer one; that
// is why the number is not believed when it is behind the token. Whoever wrote
// it looks at the token again and mends the file where it was overtaken, so the
// file is behind only when its last writer died in between, and then until the
// next block.
//
// Nothing piles up: there is one token, whatever the number of blocks, and a
// process that lost the race to found the chain removes its own.

// chainFile names the chain that counts.
const chainFile = "chain"

// maxAttempts bounds the tries to take the token. Each failed one means that
// another process has just taken a block, or moved the token while the
// directory was read.
const maxAttempts = 100

// errLost says that somebody else was faster and that nothing was changed.
var errLost = errors.New("another process took the token")

// errNoToken says that the directory listed no token of the chain.
var errNoToken = errors.New("no token was seen")

// slice claims blocks of one broker's ids. Its methods must not overlap; the
// Allocator has one refill at a time.
type slice struct {
	fs    fsx.FS
	paths slicePaths
	size  int64
	ready bool // the directories are there and durable
}

func newSlice(c Config) *slice {
	return &slice{fs: c.FS, paths: pathsOf(c.Dir, c.Broker), size: int64(c.BlockSize)}
}

// claim reserves a block, durably. above is the end of the last block that the
// caller was given; one that begins lower is refused.
func (s *slice) claim(above int64) (block, error) {
	err := s.prepare()
	for attempt := 0; err == nil && attempt < maxAttempts; attempt++ {
		var b block
		b, err = s.tryClaim(above)
		if err == nil {
			return b, nil
		}
		if errors.Is(err, errLost) {
			err = nil
		}
	}
	if err == nil {
		err = errLost
	}
	return block{}, fmt.Errorf("pidalloc: claim a block in %s: %w", s.paths.tokens, err)
}

// prepare makes the directories, and their names durable, once.
func (s *slice) prepare() error {
	if s.ready {
		return nil
	}
	const perm = 0o755
	// Dir is the host's and its parent may be none of our business: read-only,
	// or of a kind that cannot be synced. It matters only if Dir was not there.
	known := s.fs.SyncDir(s.paths.dir) == nil
	if known {
		_ = s.fs.SyncDir(filepath.Dir(s.paths.dir)) // in case another process has just made Dir
	} else if err := fsx.MkdirSynced(s.fs, s.paths.dir, perm); err != nil {
		return err
	}
	for _, dir := range []string{s.paths.ids, s.paths.claims, s.paths.tokens} {
		if err := fsx.MkdirSynced(s.fs, dir, perm); err != nil {
			return err
		}
	}
	s.ready = true
	return nil
}

func (s *slice) tryClaim(above int64) (block, error) {
	published, err := s.readJSON()
	if err != nil {
		return block{}, err
	}
	chain, err := s.readChain()
	if errors.Is(err, fs.ErrNotExist) {
		chain, err = s.found(published)
	}
	if err != nil {
		return block{}, err
	}
	at, err := s.token(chain)
	if err != nil {
		return block{}, err
	}
	start := max(at, published)
	if start < above {
		return block{}, fmt.Errorf("%w: it says that %d is free, and this process was given all below %d",
			ErrCorrupt, start, above)
	}
	if start >= sliceSize {
		return block{}, ErrExhausted
	}
	end := start + min(s.size, sliceSize-start)

	err = s.fs.Rename(s.tokenPath(chain, at), s.tokenPath(chain, end))
	if errors.Is(err, fs.ErrNotExist) {
		return block{}, errLost
	}
	if err != nil {
		return block{}, err
	}
	if err := s.fs.SyncDir(s.paths.tokens); err != nil {
		return block{}, err
	}
	if err := s.publish(chain, end); err != nil {
		return block{}, err
	}
	return block{next: start, end: end}, nil
}

// found makes the first token, at a local number, and its chain the one that
// counts, unless another process is faster. It returns the chain that counts.
func (s *slice) found(at int64) (string, error) {
	chain := rand.Text()
	token, name := s.tokenPath(chain, at), filepath.Join(s.paths.tokens, chainFile)
	if err := fsx.CreateSynced(s.fs, token, []byte(chain), 0o644); err != nil {
		return "", err
	}
	// The token must be there whenever "chain" is, after a loss of power too.
	if err := s.fs.SyncDir(s.paths.tokens); err != nil {
		return "", err
	}
	if err := s.fs.Link(token, name); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	// The file is asked who won, and not the answer of Link: a network file
	// system that repeats a lost request may answer "exists" to the winner, who
	// would then remove the token that counts.
	counts, err := s.readChain()
	if err != nil {
		return "", err
	}
	if counts != chain {
		_ = s.fs.Remove(token) // it means nothing to anybody
	}
	return counts, s.fs.SyncDir(s.paths.tokens)
}

// token says where the token of a chain stands.
func (s *slice) token(chain string) (int64, error) {
	for range maxAttempts {
		entries, err := s.fs.ReadDir(s.paths.tokens)
		if err != nil {
			return 0, err
		}
		top := int64(-1)
		for _, e := range entries {
			at, ok := parseToken(chain, e.Name())
			if !ok {
				continue
			}
			// A token that moves while the directory is read may be seen twice,
			// and then the higher name is the later one. A file system that
			// breaks renames apart when power is lost leaves two as well; there
			// the lower one must go before anybody can take it.
			if top >= 0 {
				lower := min(top, at)
				if err := s.fs.Remove(s.tokenPath(chain, lower)); err != nil && !errors.Is(err, fs.ErrNotExist) {
					return 0, err
				}
			}
			top = max(top, at)
		}
		if top >= 0 {
			return top, nil
		}
		// It may have moved from a name not yet read to one already passed.
	}
	return 0, fmt.Errorf("%w: %s names chain %s: %w", ErrCorrupt, chainFile, chain, errNoToken)
}

// publish brings the JSON file up to date, durably, with at least end.
func (s *slice) publish(chain string, end int64) error {
	for range maxAttempts {
		have, err := s.readJSON()
		if err != nil {
			return err
		}
		if have < end {
			err = s.fs.Replace(s.paths.json, encodeBlockFile(end), 0o644)
		} else {
			// Somebody else wrote it and has perhaps not synced it yet.
			err = s.fs.SyncDir(s.paths.ids)
		}
		if err != nil {
			return err
		}
		now, err := s.token(chain)
		if err != nil {
			return err
		}
		if now <= end {
			return nil
		}
		end = now
	}
	// Others take blocks faster than this process can write them down. They
	// write them down too, and the token is right in any case.
	return nil
}

// readJSON is the number in the JSON file, zero where there is none.
func (s *slice) readJSON() (int64, error) {
	data, err := s.fs.ReadFile(s.paths.json)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	n, err := decodeBlockFile(data)
	if err != nil {
		return 0, fmt.Errorf("%w: %s: %w", ErrCorrupt, s.paths.json, err)
	}
	return n, nil
}

func (s *slice) readChain() (string, error) {
	name := filepath.Join(s.paths.tokens, chainFile)
	data, err := s.fs.ReadFile(name)
	if err != nil {
		return "", err
	}
	if !isChain(string(data)) {
		return "", fmt.Errorf("%w: %s does not hold the name of a chain", ErrCorrupt, name)
	}
	return string(data), nil
}

func (s *slice) tokenPath(chain string, at int64) string {
	return filepath.Join(s.paths.tokens, tokenName(chain, at))
}
