package conformance

import (
	"compress/gzip"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
)

//go:generate go run ./internal/pack recordings

//go:embed recordings
var recordings embed.FS

// Suite is a recording: scenarios that exercise one part of the protocol.
type Suite struct {
	Name      string `json:"suite"`
	About     string `json:"about,omitempty"` // what it exercises
	Source    string `json:"source"`          // what gave the answers: product, version, settings that matter
	Needs     string `json:"needs,omitempty"` // what the broker must have or be set to, beside transactions
	Scenarios int    `json:"scenarios"`
	Answers   int    `json:"answers"`  // steps of all scenarios
	OneByOne  bool   `json:"oneByOne"` // replayed one scenario at a time
	// OnRequest suites are replayed only where Options.Suites names them: they need
	// a setting that a broker does not show and that others must not have.
	OnRequest bool `json:"onRequest,omitempty"`
}

// about is what is known of the recordings beyond their bytes.
var about = []struct {
	name, text, needs   string
	oneByOne, onRequest bool
	// level is the finalised transaction.version that the suite is for, counted
	// from 1; 0 is any. A broker that shows another is spared it.
	level int16
}{
	{name: "coord1", text: "the coordinator's APIs at the versions of transaction protocol 1: InitProducerId 0-4, AddPartitionsToTxn 0-3, AddOffsetsToTxn 0-3, EndTxn 0-4, DescribeTransactions, ListTransactions"},
	{name: "coord2", text: "the same with protocol 2 (KIP-890): InitProducerId 5, EndTxn 5, batched and verifying AddPartitionsToTxn 4-5"},
	{name: "mixed", text: "both protocols on one transactional id, in turn"},
	{name: "batch2", text: "two transactional ids in one AddPartitionsToTxn request"},
	{name: "offsets1", text: "TxnOffsetCommit 0-3, AddOffsetsToTxn, OffsetFetch with and without require-stable"},
	{name: "offsets2", text: "the same with protocol 2: TxnOffsetCommit 4-5"},
	{name: "member1", text: "transactional offsets of a real group member, stale generations, plain OffsetCommit beside them"},
	{name: "member2", text: "the same with protocol 2"},
	{name: "data1", oneByOne: true, text: "Produce 7-11, Fetch at both isolation levels, control batches, DescribeProducers"},
	{name: "data2", oneByOne: true, text: "the same with protocol 2: Produce 12, which adds partitions by itself"},
	{name: "marker1", oneByOne: true, text: "WriteTxnMarkers 1 sent by hand beside real transactions: stale and future producer epochs, coordinator epochs going back and forth"},
	{name: "marker2", oneByOne: true, text: "the same with WriteTxnMarkers 2 and its transaction version (KIP-1228)"},
	{name: "wrap1", oneByOne: true, text: "producer sequences around 2147483647, after which comes 0"},
	{name: "wrap2", oneByOne: true, text: "the same with protocol 2"},
	{name: "timeout1", text: "transactions that time out after 500 ms", needs: "timed-out transactions looked for every 200 ms (Kafka's transaction.abort.timed.out.transaction.cleanup.interval.ms)"},
	{name: "timeout2", text: "the same with protocol 2", needs: "timed-out transactions looked for every 200 ms (Kafka's transaction.abort.timed.out.transaction.cleanup.interval.ms)"},
	{name: "exhaust1", text: "producer epochs near 32767, reached by 32,760 InitProducerId a scenario"},
	{name: "exhaust2", text: "the same with protocol 2"},
	{name: "acl1", text: "requests that an access rule forbids", needs: "an authorizer that allows what no rule forbids, and CreateAcls or Options.Deny"},
	{name: "acl2", text: "the same with protocol 2", needs: "an authorizer that allows what no rule forbids, and CreateAcls or Options.Deny"},
	{name: "odd", text: "requests that no producer sends, at all versions mixed: empty partition lists, internal topics, the group \"\", epochs and producer ids that cannot be, unknown states and patterns in ListTransactions 0-2"},
	{name: "oddoffsets", oneByOne: true, text: "TxnOffsetCommit 0-6, OffsetCommit 2-10 and OffsetFetch 1-10 mixed: topic ids, any offsets, metadata that is too long, static members, all topics of a group"},
	{name: "odddata", oneByOne: true, text: "Produce 3-13 mixed on one id: several batches in a request, control batches, internal topics, batches of somebody else's; fetches from any offset, ListOffsets"},
	{name: "markers", oneByOne: true, text: "WriteTxnMarkers with several markers over several partitions, of several producers, some of which cannot be"},
	{name: "blend", oneByOne: true, text: "all of these on one id"},
	{name: "deletes", oneByOne: true, text: "topics and groups deleted while a transaction has records or offsets in them, and made again"},
	{name: "rotation", oneByOne: true, text: "producer epochs near 32767: both protocols mixed, rotations and their repeats"},
	{name: "timeouts", oneByOne: true, text: "transactions that time out with records and offsets in them, both protocols mixed", needs: "timed-out transactions looked for every 200 ms (Kafka's transaction.abort.timed.out.transaction.cleanup.interval.ms)"},
	{name: "expiry", oneByOne: true, onRequest: true, text: "transactional ids that expire", needs: "ids that expire after 6 s, looked for every 300 ms (Kafka's transactional.id.expiration.ms and transaction.remove.expired.transaction.cleanup.interval.ms)"},
	{name: "level1", oneByOne: true, level: 2, text: "requests of both protocols at a broker that has finalised level 1", needs: "the finalised transaction.version 1, and timed-out transactions looked for every 200 ms"},
	{name: "level0", oneByOne: true, level: 1, text: "the same at level 0", needs: "the finalised transaction.version 0, and timed-out transactions looked for every 200 ms"},
	{name: "twopc", text: "InitProducerId 6 with enable2Pc and keepPreparedTxn (KIP-939)", needs: "two-phase commit switched on (Kafka's transaction.two.phase.commit.enable and unstable.api.versions.enable)"},
}

// Suites lists the recordings that the package carries.
func Suites() []Suite {
	out := make([]Suite, 0, len(about))
	for _, a := range about {
		s, _, err := loadSuite(recordings, "recordings/"+a.name+".jsonl.gz")
		if err != nil {
			continue // a test keeps the recordings readable
		}
		out = append(out, s)
	}
	return out
}

// Recording gives the scenarios of a suite that the package carries. They are the
// caller's.
func Recording(suite string) ([]*Scenario, error) {
	_, scs, err := loadSuite(recordings, "recordings/"+suite+".jsonl.gz")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("no suite %q", suite)
	}
	return scs, err
}

const maxRecording = 512 << 20 // bytes of one recording unpacked

func loadSuite(fsys fs.FS, file string) (Suite, []*Scenario, error) {
	f, err := fsys.Open(file)
	if err != nil {
		return Suite{}, nil, err
	}
	defer f.Close()
	var r io.Reader = f
	base := path.Base(file)
	if strings.HasSuffix(base, ".gz") {
		z, err := gzip.NewReader(f)
		if err != nil {
			return Suite{}, nil, fmt.Errorf("%s: %w", file, err)
		}
		r = z
		base = strings.TrimSuffix(base, ".gz")
	}
	scs, err := ReadScenarios(io.LimitReader(r, maxRecording))
	if err != nil {
		return Suite{}, nil, fmt.Errorf("%s: %w", file, err)
	}
	s := Suite{Name: strings.TrimSuffix(base, ".jsonl"), Scenarios: len(scs)}
	for _, sc := range scs {
		s.Answers += len(sc.Steps)
		if !strings.Contains(s.Source, sc.Source) {
			if s.Source != "" {
				s.Source += "; "
			}
			s.Source += sc.Source
		}
	}
	for _, a := range about {
		if a.name == s.Name {
			s.About, s.Needs, s.OneByOne, s.OnRequest = a.text, a.needs, a.oneByOne, a.onRequest
		}
	}
	return s, scs, nil
}

// loaded is a suite with its scenarios.
type loaded struct {
	Suite
	scenarios []*Scenario
}

// load gives the suites that o selects, in the order of Suites, extra ones last.
func load(o Options) ([]loaded, error) {
	type source struct {
		fsys fs.FS
		file string
	}
	from := map[string]source{}
	var names []string
	for _, a := range about {
		from[a.name] = source{recordings, "recordings/" + a.name + ".jsonl.gz"}
		names = append(names, a.name)
	}
	if o.Extra != nil {
		var files []string
		for _, pat := range []string{"*.jsonl", "*.jsonl.gz"} {
			m, err := fs.Glob(o.Extra, pat)
			if err != nil {
				return nil, err
			}
			files = append(files, m...)
		}
		slices.Sort(files)
		for _, f := range files {
			n := strings.TrimSuffix(strings.TrimSuffix(f, ".gz"), ".jsonl")
			if _, ok := from[n]; ok {
				return nil, fmt.Errorf("extra recording %s: there is a suite %q already", f, n)
			}
			from[n] = source{o.Extra, f}
			names = append(names, n)
		}
	}
	want := names
	if len(o.Suites) > 0 {
		want = nil
		for _, pat := range o.Suites {
			found := false
			for _, n := range names {
				if ok, err := path.Match(pat, n); err != nil {
					return nil, fmt.Errorf("suite %q: %w", pat, err)
				} else if ok {
					found = true
					if !slices.Contains(want, n) {
						want = append(want, n)
					}
				}
			}
			if !found {
				return nil, fmt.Errorf("no suite %q; there are %s", pat, strings.Join(names, ", "))
			}
		}
	}
	var out []loaded
	for _, n := range want {
		s, scs, err := loadSuite(from[n].fsys, from[n].file)
		if err != nil {
			return nil, err
		}
		if out = append(out, loaded{s, scs}); o.excludes(n, "") {
			out = out[:len(out)-1]
		}
	}
	return out, nil
}

// levelOf is the finalised transaction.version that a suite is for, -1 for any.
func levelOf(suite string) int16 {
	for _, a := range about {
		if a.name == suite {
			return a.level - 1
		}
	}
	return -1
}
