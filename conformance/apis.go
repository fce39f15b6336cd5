package conformance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"sort"
	"strings"
	"sync"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// apis is what a broker advertises: API key -> lowest and highest version. nil
// where it does not say.
type apis map[int16][2]int16

// versions asks the broker what it offers. The error is that it cannot be reached.
func (p *player) versions(ctx context.Context) (apis, error) {
	x, err := p.ask(ctx)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.Is(err, errUnreachable):
		return nil, err
	case err != nil:
		p.e.notes = append(p.e.notes, fmt.Sprintf("The broker does not answer ApiVersions (%v): what it lacks shows only in the scenarios.", err))
		return nil, nil
	case x.ErrorCode != 0 || len(x.ApiKeys) == 0:
		p.e.notes = append(p.e.notes, fmt.Sprintf("The broker answers ApiVersions with %d APIs and error %q: what it lacks shows only in the scenarios.", len(x.ApiKeys), errName(x.ErrorCode)))
		return nil, nil
	}
	out := apis{}
	for _, k := range x.ApiKeys {
		out[k.ApiKey] = [2]int16{k.MinVersion, k.MaxVersion}
	}
	return out, nil
}

func (p *player) ask(ctx context.Context) (*kmsg.ApiVersionsResponse, error) {
	return do[*kmsg.ApiVersionsResponse](ctx, p.c, kmsg.NewPtrApiVersionsRequest())
}

// level is the finalised transaction.version, as the broker tells clients; -1
// where it does not.
func (p *player) level(ctx context.Context) int16 {
	req := kmsg.NewPtrApiVersionsRequest()
	req.Version = 3
	req.ClientSoftwareName, req.ClientSoftwareVersion = "conformance", "1"
	x, err := do[*kmsg.ApiVersionsResponse](ctx, p.c, req)
	if err != nil || x.ErrorCode != 0 || x.FinalizedFeaturesEpoch < 0 {
		return -1
	}
	for _, f := range x.FinalizedFeatures {
		if f.Name == "transaction.version" {
			return f.MaxVersionLevel
		}
	}
	return 0
}

// best is the version to use for a request whose version no recording fixes: the
// wanted one, or an older one if the broker has no newer.
func (a apis) best(key, want int16) int16 {
	if v, ok := a[key]; ok && v[1] < want {
		return v[1]
	}
	return want
}

func (a apis) has(key, version int16) bool {
	if a == nil {
		return true
	}
	v, ok := a[key]
	return ok && v[0] <= version && version <= v[1]
}

// uses are the requests of a step.
func (s *Step) uses(o Options) [][2]int16 {
	switch s.Op {
	case OpInit, OpAge:
		return [][2]int16{{22, s.Version}}
	case OpAddPartitions, OpAddBatch:
		return [][2]int16{{24, s.Version}}
	case OpAddOffsets:
		return [][2]int16{{25, s.Version}}
	case OpEnd:
		return [][2]int16{{26, s.Version}}
	case OpTxnOffsetCommit:
		return [][2]int16{{28, s.Version}}
	case OpOffsetCommit:
		return [][2]int16{{8, s.Version}}
	case OpOffsetFetch:
		return [][2]int16{{9, cmp.Or(s.Version, 7)}}
	case OpJoin:
		return [][2]int16{{11, 5}, {14, 3}}
	case OpLeave:
		return [][2]int16{{13, s.Version}}
	case OpProduce:
		return [][2]int16{{0, s.Version}}
	case OpFetch:
		return [][2]int16{{1, 11}}
	case OpListOffsets:
		return [][2]int16{{2, 5}}
	case OpWriteMarkers:
		return [][2]int16{{27, s.Version}}
	case OpNewTopic:
		if o.CreateTopic == nil {
			return [][2]int16{{19, 5}}
		}
	case OpDeleteTopic:
		return [][2]int16{{20, 5}}
	case OpDeleteGroup:
		return [][2]int16{{42, 2}}
	case OpDescribeTxns:
		return [][2]int16{{65, 0}}
	case OpListTxns:
		return [][2]int16{{66, s.Version}}
	case OpDescribeProducers:
		return [][2]int16{{61, 0}}
	case OpDeny:
		if o.Deny == nil {
			return [][2]int16{{30, 2}}
		}
	}
	return nil
}

// missing says which APIs and versions the scenarios use and the broker does not
// advertise.
func (a apis) missing(scs []*Scenario, o Options) []string {
	lacks := map[int16]map[int16]int{} // key -> version -> steps
	for _, sc := range scs {
		for _, s := range sc.Steps {
			for _, u := range s.uses(o) {
				if !a.has(u[0], u[1]) {
					if lacks[u[0]] == nil {
						lacks[u[0]] = map[int16]int{}
					}
					lacks[u[0]][u[1]]++
				}
			}
		}
	}
	var keys []int16
	for k := range lacks {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	var out []string
	for _, k := range keys {
		var vs []int
		n := 0
		for v, c := range lacks[k] {
			vs = append(vs, int(v))
			n += c
		}
		sort.Ints(vs)
		list := strings.Trim(strings.ReplaceAll(fmt.Sprint(vs), " ", ", "), "[]")
		have := "does not have"
		if v, ok := a[k]; ok {
			have = fmt.Sprintf("has in versions %d-%d, not in %s", v[0], v[1], list)
		} else {
			have += " (wanted in version " + list + ")"
		}
		out = append(out, fmt.Sprintf("%d requests are %s, which the broker %s", n, apiName(k), have))
	}
	return out
}

// skip says why a suite that nobody asked for by name is not worth replaying.
func (a apis) skip(scs []*Scenario, o Options) string {
	for _, sc := range scs {
		for _, s := range sc.Steps {
			if s.Op == OpDeny && o.Deny == nil && !a.has(30, 2) {
				return "the broker does not have CreateAcls version 2, and Options.Deny is not set"
			}
			if s.Op == OpInit && s.Version >= 6 && !a.has(22, s.Version) {
				return fmt.Sprintf("the broker does not have InitProducerId version %d", s.Version)
			}
		}
	}
	return ""
}

// deniesNothing tells that the first rule of the scenarios is refused because the
// broker has no access control.
func (e *env) deniesNothing(ctx context.Context, scs []*Scenario) bool {
	if len(scs) == 0 || scs[0].Steps[0].Op != OpDeny || e.o.Deny != nil {
		return false
	}
	p := e.player(e.o.Prefix+"deny.", e.o.Prefix)
	defer p.close()
	a, err := p.deny(ctx, &Step{Op: OpDeny, Resource: "group", ResourceName: "nobody", Operation: "read"})
	return err == nil && a.Err == "SECURITY_DISABLED"
}

// learnEpoch finds the epoch of the broker's transaction coordinator, if the
// scenarios write markers by hand. In a cluster each transactional id has a
// coordinator of its own, see epochOf.
func (e *env) learnEpoch(ctx context.Context, scs []*Scenario) error {
	if !slices.ContainsFunc(scs, func(sc *Scenario) bool {
		return slices.ContainsFunc(sc.Steps, func(s *Step) bool { return s.Op == OpWriteMarkers })
	}) {
		return nil
	}
	e.epochs.mu.Lock()
	defer e.epochs.mu.Unlock()
	e.epochs.by = map[shards]int32{}
	if e.o.Follow {
		return nil
	}
	epoch, err := e.probeEpoch(ctx, fmt.Sprintf("%sprobe%d.", e.o.Prefix, e.epochs.next()))
	e.epochs.by[shards{}] = epoch // of all
	return err
}

// epochs are those of transaction coordinators, as far as they are known.
type epochs struct {
	mu     sync.Mutex
	by     map[shards]int32
	probes int // ids used to find them
}

func (e *epochs) next() int {
	e.probes++
	return e.probes
}

// shards is what makes two transactional ids have the same coordinator: the
// partition of Kafka's __transaction_state, and the shard of brokers that go by
// FNV. Both have 50.
type shards struct{ java, fnv uint32 }

func shardsOf(id string) shards {
	h := fnv.New32a()
	h.Write([]byte(id))
	return shards{uint32(offsetsPartition(id)), h.Sum32() % 50}
}

// epochOf is the epoch that a transactional id's coordinator puts into markers.
// Recorded ones are counted from it: on the Kafka that was recorded it was 0.
// In a cluster it is learnt from another id with the same coordinator.
func (e *env) epochOf(ctx context.Context, id string) (int32, error) {
	e.epochs.mu.Lock()
	defer e.epochs.mu.Unlock()
	if !e.o.Follow {
		return e.epochs.by[shards{}], nil
	}
	s := shardsOf(id)
	if epoch, ok := e.epochs.by[s]; ok {
		return epoch, nil
	}
	name, n := "", e.epochs.next()
	for try := 0; name == "" || shardsOf(name+probeID) != s; try++ { // one in 2500 is
		name = fmt.Sprintf("%sprobe%d.%d.", e.o.Prefix, n, try)
	}
	epoch, err := e.probeEpoch(ctx, name)
	if err != nil {
		return 0, err
	}
	if e.epochs.by == nil {
		e.epochs.by = map[shards]int32{}
	}
	e.epochs.by[s] = epoch
	return epoch, nil
}

const probeID = "tx"

// probeEpoch runs a transaction and looks at the epoch in its marker. A broker
// that does not get that far is taken to be at 0, as Kafka was.
func (e *env) probeEpoch(ctx context.Context, name string) (int32, error) {
	p := e.player(name, name)
	defer p.close()
	if err := p.patiently(ctx, func() error { return p.createTopics(ctx, map[string]int{"d": 1}) }); err != nil {
		return 0, err
	}
	d := []TP{{Topic: "d"}}
	for _, s := range []*Step{
		{Op: OpInit, Version: 4, TxnID: probeID, Producer: "none", Epoch: -1, TimeoutMs: 60000},
		{Op: OpAddPartitions, Version: 3, TxnID: probeID, Producer: "P1", Parts: d},
		{Op: OpEnd, Version: 4, TxnID: probeID, Producer: "P1", Commit: true},
	} {
		a, why, err := p.play(ctx, s)
		if err != nil {
			return 0, err
		}
		if why != "" || a.Err != "" {
			return 0, nil
		}
	}
	var fp kmsg.FetchResponseTopicPartition
	if err := p.patiently(ctx, func() (err error) {
		fp, _, err = p.fetchFrom(ctx, d[0], 0, 0)
		return err
	}); err != nil {
		return 0, ctx.Err()
	}
	bs, err := batches(fp.RecordBatches)
	if err != nil || len(bs) == 0 {
		return 0, nil
	}
	if c, ok := controlOf(&bs[len(bs)-1]); ok && c.coordinator > 0 {
		return c.coordinator, nil
	}
	return 0, nil
}
