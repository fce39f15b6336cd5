package pidalloc

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
)

// DefaultBlockSize is how many ids are reserved at a time, as in Apache Kafka.
const DefaultBlockSize = 1000

// sliceSize is the number of ids that one broker has, ever.
const sliceSize = int64(1) << 40

// maxBroker is the last broker whose whole slice fits into an int64.
const maxBroker = 1<<23 - 2

var (
	// ErrExhausted says that no id is left, now and for ever.
	ErrExhausted = errors.New("pidalloc: the producer ids are used up")

	// ErrCorrupt says that a file of the allocator cannot be believed. Nothing
	// was changed. It needs a person: see Restoring a backup in the package
	// documentation.
	ErrCorrupt = errors.New("pidalloc: the stored state cannot be believed")
)

// Config says which ids an Allocator gives out and where it keeps its files.
type Config struct {
	// Dir is the directory that holds producer_ids; required. It is made when
	// it is missing.
	Dir string

	// Broker is the id of the broker whose slice is used, from 0 to 8388606.
	Broker int32

	// BlockSize is the number of ids reserved at a time. Each block costs a few
	// syncs, and a restart loses what is left of one. Zero means
	// DefaultBlockSize. It may change between runs, and processes that share a
	// broker id may differ in it.
	BlockSize int

	// FS is where the files are. Nil means the real file system.
	FS fsx.FS
}

func (c Config) withDefaults() Config {
	if c.BlockSize == 0 {
		c.BlockSize = DefaultBlockSize
	}
	if c.FS == nil {
		c.FS = fsx.OS()
	}
	return c
}

func (c Config) validate() error {
	var errs []error
	if c.Dir == "" {
		errs = append(errs, errors.New("missing Dir"))
	}
	if c.Broker < 0 || c.Broker > maxBroker {
		errs = append(errs, fmt.Errorf("bad Broker %d: not between 0 and %d", c.Broker, maxBroker))
	}
	if c.BlockSize < 0 || int64(c.BlockSize) > sliceSize {
		errs = append(errs, fmt.Errorf("bad BlockSize %d: not between 1 and %d", c.BlockSize, sliceSize))
	}
	if len(errs) > 0 {
		return fmt.Errorf("pidalloc: %w", errors.Join(errs...))
	}
	return nil
}

// Allocator gives out the producer ids of one broker, in ascending order. It is
// safe for concurrent use and needs no closing: it holds no file open.
type Allocator struct {
	base  int64 // added to a local number
	claim func(above int64) (block, error)

	// mu guards what follows and is never held while a file is touched, so that
	// a volume that hangs stops nobody who does not need it.
	mu     sync.Mutex
	left   block
	refill *refill // the one under way, or nil
}

// block is a range of local numbers, from next up to and without end.
type block struct{ next, end int64 }

// refill is the fetching of one block, shared by all who wait for it.
type refill struct {
	done chan struct{}
	err  error // to be read after done
}

// New checks the configuration; it touches no file and starts nothing. What is
// wrong with the files is told by Next, which tries again each time, so a broker
// may start before its volume is there.
func New(c Config) (*Allocator, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	c = c.withDefaults()
	s := newSlice(c)
	return &Allocator{
		base:  (int64(c.Broker) + 1) * sliceSize,
		claim: s.claim,
	}, nil
}

// Next gives out an id that was given to nobody before: not by this Allocator,
// not before a crash, and not by another process with the same broker id and
// directory. Ids may be skipped.
//
// Most calls answer from memory, whatever their context. One in BlockSize needs
// the files; calls that come meanwhile wait for the same block. The end of ctx
// ends the waiting and nothing else: the block is fetched to the end by a
// goroutine of its own and serves the calls that come later.
//
// After an error no id was given out, and ids may have been lost. ErrExhausted
// and ErrCorrupt stay until somebody does something about them; anything else
// may succeed at the next call, which looks at the files anew.
func (a *Allocator) Next(ctx context.Context) (int64, error) {
	for {
		local, wait, err := a.take(ctx)
		if err != nil {
			return 0, err
		}
		if wait == nil {
			return a.base + local, nil
		}
		select {
		case <-wait.done:
			if wait.err != nil {
				return 0, wait.err
			}
			// The others who waited may have used the block up: look again.
		case <-ctx.Done():
			return 0, waitingEnded(ctx)
		}
	}
}

// take returns a local number, or else what to wait for.
func (a *Allocator) take(ctx context.Context) (int64, *refill, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.left.next < a.left.end {
		local := a.left.next
		a.left.next++
		return local, nil, nil
	}
	if ctx.Err() != nil {
		// Nobody waits, so nobody may use what would be fetched.
		return 0, nil, waitingEnded(ctx)
	}
	if a.refill == nil {
		a.refill = &refill{done: make(chan struct{})}
		go a.fetch(a.refill, a.left.end)
	}
	return 0, a.refill, nil
}

// fetch performs a refill; above is the end of what this Allocator was given
// before.
func (a *Allocator) fetch(r *refill, above int64) {
	b, err := a.claim(above)
	a.mu.Lock()
	if err == nil {
		a.left = b
	}
	a.refill = nil
	r.err = err
	a.mu.Unlock()
	close(r.done)
}

func waitingEnded(ctx context.Context) error {
	return fmt.Errorf("pidalloc: waiting for a block of producer ids: %w", context.Cause(ctx))
}

// slicePaths names the files of a broker's slice.
type slicePaths struct {
	dir    string // Config.Dir
	ids    string // holds the JSON files of all brokers
	json   string
	claims string // holds the claims of all brokers
	tokens string // holds the chain file and the token
}

func pathsOf(dir string, broker int32) slicePaths {
	name := fmt.Sprintf("kaas-%d", broker)
	ids := filepath.Join(dir, "producer_ids")
	claims := filepath.Join(ids, ".claims")
	return slicePaths{
		dir:    dir,
		ids:    ids,
		json:   filepath.Join(ids, name+".json"),
		claims: claims,
		tokens: filepath.Join(claims, name),
	}
}
