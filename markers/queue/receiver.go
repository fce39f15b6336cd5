package queue

import (
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/markers"
	"github.com/kafkatxn/kafkatxn/txnstate"
)

// ReceiverConfig is what a Receiver is made of.
type ReceiverConfig struct {
	Dir  string // the directory that holds marker_queue; required, made when it is missing
	Self markers.Target

	// Apply applies deliveries on this broker: usually a wire.LocalSink. Required.
	// Where it is a markers.OpenChecker too, senders can ask what is open. It is
	// called with one participant's deliveries at a time, for several participants
	// at once, and for one participant never twice at once.
	Apply markers.Sink
	// Acked is told when there is something new for a broker: in a process that
	// has the Sink too, its Wake. nil is none.
	Acked func(sender markers.Target)

	// Poll is how often the inbox is looked into; zero is 100 ms.
	Poll time.Duration
	// Width is how many participants are served at once; zero is 256.
	Width int
	// Entries is how many entries are worked on at once; zero is 256. The others
	// wait in the inbox. EntryBytes is the longest that is read; zero is 16 MiB. A
	// longer one is damaged.
	Entries, EntryBytes int
	// AbandonAfter is how long an entry stays that was acknowledged and that its
	// sender does not remove, and a file that was begun and not finished. Zero is
	// 10 minutes. It is measured from when this process saw it, by its own clock.
	AbandonAfter time.Duration

	FS     fsx.FS           // nil is the real file system
	Now    func() time.Time // nil is time.Now
	Logger *slog.Logger     // nil is silent
}

func (c ReceiverConfig) validate() error {
	var errs []error
	if c.Dir == "" {
		errs = append(errs, errors.New("queue: ReceiverConfig.Dir is required"))
	}
	if c.Apply == nil {
		errs = append(errs, errors.New("queue: ReceiverConfig.Apply is required"))
	}
	if c.Poll < 0 || c.Width < 0 || c.Entries < 0 || c.EntryBytes < 0 || c.AbandonAfter < 0 {
		errs = append(errs, errors.New("queue: ReceiverConfig has a negative number"))
	}
	return errors.Join(errs...)
}

func (c ReceiverConfig) withDefaults() ReceiverConfig {
	c.Poll = cmp.Or(c.Poll, 100*time.Millisecond)
	c.Width = cmp.Or(c.Width, 256)
	c.Entries = cmp.Or(c.Entries, 256)
	c.EntryBytes = cmp.Or(c.EntryBytes, 16<<20)
	c.AbandonAfter = cmp.Or(c.AbandonAfter, 10*time.Minute)
	if c.FS == nil {
		c.FS = fsx.OS()
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// maxDamaged is how many damaged entries are kept for somebody to look at.
const maxDamaged = 100

// Receiver takes in what other brokers put into this broker's inbox; the package
// comment has how. Run has to be called for anything to happen.
type Receiver struct {
	cfg     ReceiverConfig
	process string
	dir     string
	wake    chan struct{}

	// What follows belongs to the goroutine of Run.
	calm  calm
	jobs  map[string]*job      // by name without extension; of entries that are there
	temps map[string]time.Time // files that somebody has begun, and since when they were seen

	work sync.WaitGroup

	mu      sync.Mutex // never held in a call of Apply or an operation of FS
	started bool
	lines   map[txnstate.Participant]*applyLine
	ready   []*applyLine // lines that wait for a worker
	workers int
}

// job is one entry.
type job struct {
	entry
	name   string
	check  uint32
	ctx    context.Context // until the entry is gone, or Run ends
	cancel context.CancelFunc
	readAt time.Time // before it was read

	// Of the goroutine of Run.
	refused string    // why nothing was applied
	written *ack      // what is in the acknowledgement
	firstAt time.Time // when the first verdict was seen that is not written
	ackedAt time.Time // when the whole was acknowledged

	// Guarded by Receiver.mu.
	verdicts []verdict
}

// NewReceiver makes a Receiver.
func NewReceiver(cfg ReceiverConfig) (*Receiver, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	return &Receiver{
		cfg: cfg, calm: calm{log: cfg.Logger}, process: newProcess(), wake: make(chan struct{}, 1),
		dir:  filepath.Join(cfg.Dir, queueDir, inboxName(cfg.Self)),
		jobs: map[string]*job{}, temps: map[string]time.Time{}, lines: map[txnstate.Participant]*applyLine{},
	}, nil
}

// Wake makes the receiver look into its inbox now. It may be called at any time.
func (r *Receiver) Wake() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Run takes in entries until ctx is done, waits for the calls of Apply that are
// under way, acknowledges what they came to, and returns nil. It may be called
// once.
func (r *Receiver) Run(ctx context.Context) error {
	r.mu.Lock()
	if r.started {
		r.mu.Unlock()
		return errors.New("queue: Run was called before")
	}
	r.started = true
	r.mu.Unlock()
	if err := fsx.MkdirSynced(r.cfg.FS, filepath.Dir(r.dir), 0o755); err != nil {
		r.cfg.Logger.Warn("inbox not made, senders will", "inbox", r.dir, "err", err)
	}
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for ctx.Err() == nil {
		r.scan(ctx)
		r.acknowledge()
		timer.Reset(r.cfg.Poll)
		select {
		case <-timer.C:
		case <-r.wake:
		case <-ctx.Done():
		}
	}
	r.mu.Lock()
	for _, j := range r.jobs {
		j.cancel()
	}
	r.ready = nil
	r.mu.Unlock()
	r.work.Wait()
	r.acknowledge()
	return nil
}

// scan looks into the inbox: what is new is begun, what is gone is dropped, what
// nobody needs is removed.
func (r *Receiver) scan(ctx context.Context) {
	now := r.cfg.Now()
	files, err := r.cfg.FS.ReadDir(r.dir)
	if errors.Is(err, fs.ErrNotExist) {
		files, err = nil, nil // nobody has sent anything yet
	}
	if err != nil {
		r.calm.warn("inbox not read", "inbox", r.dir, "err", err)
		return
	}
	entries, acks, temps := map[string]bool{}, map[string]bool{}, map[string]time.Time{}
	damaged := 0
	var order []string
	for _, f := range files {
		name := f.Name()
		if name[0] == '.' {
			if _, _, ok := parseTemp(name); ok {
				temps[name] = r.temps[name]
			}
			continue
		}
		a, ext, ok := parseName(name)
		switch {
		case !ok:
		case ext == entryExt:
			entries[a.String()] = true
			order = append(order, a.String())
		case ext == ackExt:
			acks[a.String()] = true
		case ext == damagedExt:
			damaged++
		}
	}
	for name, j := range r.jobs {
		if !entries[name] && !j.refusal(now) {
			r.drop(j)
		}
	}
	slices.Sort(order) // of each process as it made them
	working := 0
	for _, j := range r.jobs {
		if j.ackedAt.IsZero() {
			working++
		}
	}
	for _, name := range order {
		if r.jobs[name] != nil {
			continue
		}
		if working >= r.cfg.Entries || ctx.Err() != nil {
			break
		}
		if r.begin(ctx, name, acks[name], &damaged) {
			working++
		}
	}
	r.clean(now, entries, acks, temps)
}

// refusalKept is how long the answer to an entry stays that was set aside, and so
// has no entry beside it that its sender could remove.
const refusalKept = 10 * time.Second

// refusal reports whether an answer is of that kind, and is to stay.
func (j *job) refusal(now time.Time) bool {
	return j.refused == refusedDamaged && (j.ackedAt.IsZero() || now.Sub(j.ackedAt) < refusalKept)
}

// drop forgets an entry that is gone. What waits to be applied of it no longer is.
func (r *Receiver) drop(j *job) {
	delete(r.jobs, j.name)
	j.cancel()
}

// begin reads an entry and starts to apply it. It reports whether there is work
// to do.
func (r *Receiver) begin(ctx context.Context, name string, acked bool, damaged *int) bool {
	j := &job{name: name, readAt: r.cfg.Now()}
	data, err := r.read(filepath.Join(r.dir, name+entryExt))
	var e *entry
	if err == nil {
		e, j.check, err = decodeEntry(data)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false // withdrawn meanwhile
	case errors.Is(err, errVersion):
		r.cfg.Logger.Error("an entry is of a version that is not known here, its sender is told", "entry", name, "err", err)
		j.refused = refusedVersion
	case errors.Is(err, errDamaged):
		r.setAside(name, *damaged, err)
		*damaged++
		j.refused = refusedDamaged
	case err != nil:
		r.calm.warn("entry not read, is tried again", "entry", name, "err", err)
		return false
	case e.address.String() != name || e.to != r.cfg.Self:
		// Copied, or moved, by hand: its acknowledgement would find nobody.
		err := errors.New("its contents are those of another name or inbox")
		r.setAside(name, *damaged, err)
		*damaged++
		j.refused = refusedDamaged
	default:
		j.entry = *e
		j.verdicts = make([]verdict, len(e.ds))
	}
	j.ctx, j.cancel = context.WithCancel(ctx)
	r.jobs[name] = j
	if j.refused != "" {
		return false
	}
	if acked {
		// An earlier process of this broker has answered, in part perhaps: then all
		// is applied once more, which is harmless.
		if a, err := r.readAck(name); err == nil && a.complete() && a.Entry == quote(j.check) && len(a.Verdicts) == len(j.ds) {
			j.written, j.ackedAt, j.verdicts = a, r.cfg.Now(), a.Verdicts
			return false
		}
	}
	r.apply(j)
	return true
}

// read reads a file that is not too long.
func (r *Receiver) read(name string) ([]byte, error) {
	f, err := r.cfg.FS.OpenFile(name, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, int64(r.cfg.EntryBytes)+1))
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil && len(data) > r.cfg.EntryBytes {
		err = errDamaged
	}
	return data, err
}

func (r *Receiver) readAck(name string) (*ack, error) {
	data, err := r.read(filepath.Join(r.dir, name+ackExt))
	if err != nil {
		return nil, err
	}
	return decodeAck(data)
}

// setAside takes a damaged entry out of the way, for somebody to look at. Its
// sender sends its deliveries again.
func (r *Receiver) setAside(name string, have int, why error) {
	from := filepath.Join(r.dir, name+entryExt)
	var err error
	if have < maxDamaged {
		err = r.cfg.FS.Rename(from, filepath.Join(r.dir, name+damagedExt))
	} else {
		err = remove(r.cfg.FS, from)
	}
	r.cfg.Logger.Error("a damaged entry was set aside, its sender is told", "inbox", r.dir, "entry", name, "why", why, "kept", have < maxDamaged, "err", err)
}

// acknowledge writes what has become known.
func (r *Receiver) acknowledge() {
	now := r.cfg.Now()
	for _, name := range slices.Sorted(func(yield func(string) bool) {
		for name := range r.jobs {
			if !yield(name) {
				return
			}
		}
	}) {
		j := r.jobs[name]
		if !j.ackedAt.IsZero() {
			continue
		}
		a := &ack{Entry: quote(j.check), Refused: j.refused}
		r.mu.Lock()
		a.Verdicts = slices.Clone(j.verdicts)
		r.mu.Unlock()
		news := j.written == nil && slices.ContainsFunc(a.Verdicts, func(v verdict) bool { return v != pending }) ||
			j.written != nil && !slices.Equal(a.Verdicts, j.written.Verdicts)
		switch {
		case a.complete():
		case !news:
			continue
		case j.firstAt.IsZero():
			j.firstAt = now // the rest is perhaps there in a moment
			continue
		case now.Sub(j.firstAt) < r.cfg.Poll:
			continue
		}
		if err := r.writeAck(name, a); err != nil {
			r.calm.warn("acknowledgement not written, is tried again", "inbox", r.dir, "entry", name, "err", err)
			continue
		}
		j.written, j.firstAt = a, time.Time{}
		if a.complete() {
			j.ackedAt = now
			j.ds = nil
		}
		if r.cfg.Acked != nil {
			if from, _, ok := parseName(name); ok {
				r.cfg.Acked(from.from)
			}
		}
	}
}

// writeAck makes an acknowledgement, in place of an earlier one that said less. It
// is not synced: it is for a process that is alive, and where power takes it away
// the entry is applied and acknowledged again.
func (r *Receiver) writeAck(name string, a *ack) error {
	tmp := filepath.Join(r.dir, tempName(name+ackExt, r.process))
	f, err := r.cfg.FS.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(a.encode())
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = r.cfg.FS.Rename(tmp, filepath.Join(r.dir, name+ackExt))
	}
	if err != nil {
		_ = remove(r.cfg.FS, tmp) // a leftover is harmless, and the first error tells more
	}
	return err
}

// clean removes what nobody needs.
//
// An acknowledgement whose entry is gone is one: its sender has read it before it
// removed the entry, or does not want it any more, and the entry's name does not
// come back. So is, after a time, an entry whose sender has not removed it, with
// its acknowledgement: if the sender lives after all, it learns nothing, and
// nothing is what it makes of that. None of it needs a sync: what comes back is
// removed again.
func (r *Receiver) clean(now time.Time, entries, acks map[string]bool, temps map[string]time.Time) {
	try := func(name string) bool {
		err := remove(r.cfg.FS, filepath.Join(r.dir, name))
		if err != nil {
			r.calm.warn("file not removed, is tried again", "inbox", r.dir, "file", name, "err", err)
		}
		return err == nil
	}
	for name := range acks {
		if !entries[name] && r.jobs[name] == nil {
			try(name + ackExt)
		}
	}
	for name, j := range r.jobs {
		if !j.ackedAt.IsZero() && now.Sub(j.ackedAt) >= r.cfg.AbandonAfter {
			r.cfg.Logger.Info("an entry that its sender has left behind is removed", "inbox", r.dir, "entry", name)
			if try(name+entryExt) && try(name+ackExt) {
				r.drop(j)
			}
		}
	}
	for name, since := range temps {
		if since.IsZero() {
			temps[name] = now
		} else if now.Sub(since) >= r.cfg.AbandonAfter && try(name) {
			delete(temps, name)
		}
	}
	r.temps = temps
}
