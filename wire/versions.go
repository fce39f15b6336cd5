package wire

import (
	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// The keys of the APIs that a Handler serves.
const (
	keyProduce              int16 = 0
	keyOffsetCommit         int16 = 8
	keyOffsetFetch          int16 = 9
	keyFindCoordinator      int16 = 10
	keyInitProducerID       int16 = 22
	keyAddPartitionsToTxn   int16 = 24
	keyAddOffsetsToTxn      int16 = 25
	keyEndTxn               int16 = 26
	keyWriteTxnMarkers      int16 = 27
	keyTxnOffsetCommit      int16 = 28
	keyDescribeProducers    int16 = 61
	keyDescribeTransactions int16 = 65
	keyListTransactions     int16 = 66
)

// never is a version that no request has.
const never int16 = 1 << 14

// role is what a broker needs to be to serve an API.
type role uint8

const (
	roleCoordinator role = iota
	roleLeader
	roleGroups
	roleMarkers // a leader or a group coordinator
	roleLookup
)

// api is what is to be known of one API and its versions.
type api struct {
	key      int16
	min, max int16 // of Kafka 4.4, which kmsg knows too
	role     role
	byID     int16 // first version that names topics by id; never for none

	// Codes that clients learned later (KIP-588, KIP-890) are sent as an older
	// one below these versions: PRODUCER_FENCED as INVALID_PRODUCER_EPOCH, and
	// TRANSACTION_ABORTABLE as INVALID_TXN_STATE. AddPartitionsToTxn names 5 as
	// the version that knows the latter, and Kafka sends it to 4 all the same.
	fenced, abortable int16
}

// apis is the one table of keys and versions.
var apis = [...]api{
	{keyProduce, 3, 13, roleLeader, 13, never, 11},
	{keyOffsetCommit, 2, 10, roleGroups, 10, never, never},
	{keyOffsetFetch, 1, 10, roleGroups, 10, never, never},
	{keyFindCoordinator, 0, 6, roleLookup, never, never, never},
	{keyInitProducerID, 0, 6, roleCoordinator, never, 4, 5},
	{keyAddPartitionsToTxn, 0, 5, roleCoordinator, never, 2, 4},
	{keyAddOffsetsToTxn, 0, 4, roleCoordinator, never, 2, 4},
	{keyEndTxn, 0, 5, roleCoordinator, never, 2, 4},
	{keyWriteTxnMarkers, 1, 2, roleMarkers, never, never, never},
	{keyTxnOffsetCommit, 0, 6, roleGroups, 6, never, 4},
	{keyDescribeProducers, 0, 0, roleLeader, never, never, never},
	{keyDescribeTransactions, 0, 0, roleCoordinator, never, never, never},
	{keyListTransactions, 0, 2, roleCoordinator, never, never, never},
}

// apiOf is the table's line for a key.
func apiOf(key int16) (api, bool) {
	for _, a := range apis {
		if a.key == key {
			return a, true
		}
	}
	return api{}, false
}

// served are the APIs of a configuration, with the versions it allows.
func served(c Config) []api {
	var out []api
	for _, a := range apis {
		has := map[role]bool{
			roleCoordinator: c.Coordinator != nil,
			roleLeader:      c.Leader != nil,
			roleGroups:      c.Offsets != nil,
			roleMarkers:     c.Leader != nil || c.Offsets != nil,
			roleLookup:      c.FindCoordinator != nil,
		}[a.role]
		if !has {
			continue
		}
		if c.WithoutTopicIDs {
			a.max = min(a.max, a.byID-1)
		}
		if a.key == keyInitProducerID && !c.TwoPhaseCommit {
			a.max = 5
		}
		out = append(out, a)
	}
	return out
}

func (h *Handler) serves(key, version int16) bool {
	for _, a := range h.apis {
		if a.key == key {
			return a.min <= version && version <= a.max
		}
	}
	return false
}

// APIVersion is the range of versions of one API, both ends included.
type APIVersion struct{ Key, Min, Max int16 }

// Versions lists what Handle answers, in the order of keys, for the host's
// ApiVersions answer. AddPartitionsToTxn v4 and later is between brokers; Kafka
// advertises it to everybody, and so does this.
func (h *Handler) Versions() []APIVersion {
	out := make([]APIVersion, len(h.apis))
	for i, a := range h.apis {
		out[i] = APIVersion{a.key, a.min, a.max}
	}
	return out
}

// featureName is Kafka's name of the transaction version.
const featureName = "transaction.version"

// Features are the entries for transaction.version in an ApiVersions answer from
// v3 on. Clients use transaction protocol 2 only where it is finalised at 2. A
// level of 0 is not listed as finalised. The host counts
// FinalizedFeaturesEpoch itself.
func (h *Handler) Features() (supported []kmsg.ApiVersionsResponseSupportedFeature, finalized []kmsg.ApiVersionsResponseFinalizedFeature) {
	s := kmsg.NewApiVersionsResponseSupportedFeature()
	s.Name, s.MinVersion, s.MaxVersion = featureName, int16(txnstate.TV0), int16(txnstate.TV2)
	supported = append(supported, s)
	if v := int16(h.cfg.TransactionVersion); v > 0 {
		f := kmsg.NewApiVersionsResponseFinalizedFeature()
		f.Name, f.MinVersionLevel, f.MaxVersionLevel = featureName, v, v
		finalized = append(finalized, f)
	}
	return supported, finalized
}

// clientVersion is the transaction version that an EndTxn speaks by its version:
// it, and not the finalised level, chooses the rules (a v5 is not refused while
// the level is below 2).
func clientVersion(endTxn int16) txnstate.TransactionVersion {
	if endTxn >= 5 {
		return txnstate.TV2
	}
	return txnstate.TV0
}

// NewRequest is an empty request of an API and version to decode into: kmsg's,
// but for InitProducerId v6, which kmsg does not have yet. ErrClose where the
// Handler does not serve it.
func (h *Handler) NewRequest(key, version int16) (kmsg.Request, error) {
	if !h.serves(key, version) {
		return nil, ErrClose
	}
	var req kmsg.Request
	if key == keyInitProducerID && version >= 6 {
		req = new(InitProducerIDV6Request)
	} else {
		req = kmsg.RequestForKey(key)
	}
	req.SetVersion(version)
	return req, nil
}
