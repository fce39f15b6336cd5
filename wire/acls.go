package wire

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/kafkatxn/kafkatxn/txnstate"
)

// PatternType says how the name of a rule's resource is meant, with Kafka's number.
type PatternType uint8

// Kafka's pattern types.
const (
	AnyPattern      PatternType = 1 // in filters only
	MatchPattern    PatternType = 2 // in filters only: what would apply to the resource named
	LiteralPattern  PatternType = 3 // the name itself, or "*" for every one
	PrefixedPattern PatternType = 4 // every name that begins so
)

// Permission is what a rule does, with Kafka's number.
type Permission uint8

// Kafka's permission types.
const (
	AnyPermission   Permission = 1 // in filters only
	DenyPermission  Permission = 2
	AllowPermission Permission = 3
)

// AnyName is the name or host of a rule that is about every one. A principal
// that is every user is AnyUser.
const (
	AnyName = "*"
	AnyUser = "User:*"
)

// ACL is one access rule.
type ACL struct {
	Type       ResourceType `json:"type"`
	Name       string       `json:"name"`
	Pattern    PatternType  `json:"pattern"`
	Principal  Principal    `json:"principal"`
	Host       string       `json:"host"`
	Operation  Operation    `json:"operation"`
	Permission Permission   `json:"permission"`
}

func (a ACL) compare(b ACL) int {
	return cmp.Or(cmp.Compare(a.Type, b.Type), strings.Compare(a.Name, b.Name), cmp.Compare(a.Pattern, b.Pattern),
		strings.Compare(a.Principal, b.Principal), strings.Compare(a.Host, b.Host),
		cmp.Compare(a.Operation, b.Operation), cmp.Compare(a.Permission, b.Permission))
}

// check is what CreateAcls refuses (AclControlManager.validateNewAcl).
func (a ACL) check() error {
	bad := func(format string, args ...any) error {
		return txnstate.CodeInvalidRequest.Errorf("", "access rule: "+format, args...)
	}
	switch {
	case a.Type < TopicResource || a.Type > UserResource:
		return bad("resource type %d", a.Type)
	case a.Pattern != LiteralPattern && a.Pattern != PrefixedPattern:
		return bad("pattern type %d", a.Pattern)
	case a.Name == "":
		return bad("no resource name")
	case a.Type == ClusterResource && a.Name != ClusterName:
		return bad("the cluster is called %q, not %q", ClusterName, a.Name)
	case !strings.Contains(a.Principal, ":"):
		return bad("principal %q, and it has the form type:name", a.Principal)
	case a.Operation < OpAll || a.Operation > OpTwoPhaseCommit:
		return bad("operation %d", a.Operation)
	case a.Permission != AllowPermission && a.Permission != DenyPermission:
		return bad("permission %d", a.Permission)
	case a.Host != AnyName:
		// Authorizer is not told where a request comes from. A rule that denies
		// one host and is taken for none would be worse than no rule.
		return bad("host %q: rules for single hosts are not supported", a.Host)
	}
	return nil
}

// covers reports whether the rule is about a resource.
func (a ACL) covers(r Resource) bool {
	switch {
	case a.Type != r.Type:
		return false
	case a.Pattern == PrefixedPattern:
		return strings.HasPrefix(r.Name, a.Name)
	}
	return a.Name == AnyName || a.Name == r.Name
}

func (a ACL) about(who Principal) bool { return a.Principal == AnyUser || a.Principal == who }

// grants reports whether the rule, about the resource and the principal, speaks
// of an operation. An allowed operation brings along what it can't be done
// without; a denied one only itself (StandardAuthorizerData.findResult).
func (a ACL) grants(op Operation) bool {
	switch {
	case a.Operation == OpAll, a.Operation == op:
		return true
	case a.Permission == DenyPermission:
		return false
	}
	switch op {
	case OpDescribe:
		return a.Operation == OpRead || a.Operation == OpWrite || a.Operation == OpDelete || a.Operation == OpAlter
	case OpDescribeConfigs:
		return a.Operation == OpAlterConfigs
	}
	return false
}

// ACLFilter selects rules, as DescribeAcls and DeleteAcls do. The zero value
// selects all. In a request 0 is Kafka's UNKNOWN: a host refuses it there.
type ACLFilter struct {
	Type       ResourceType // 0 or AnyResource: any
	Name       *string      // nil: any
	Pattern    PatternType  // 0 or AnyPattern: any
	Principal  *Principal   // nil: any
	Host       *string      // nil: any
	Operation  Operation    // 0 or OpAny: any
	Permission Permission   // 0 or AnyPermission: any
}

// Match reports whether the filter selects a rule. With MatchPattern it selects
// the rules that apply to the resource named, by wildcard and prefix too.
func (f ACLFilter) Match(a ACL) bool {
	switch {
	case f.Type > AnyResource && f.Type != a.Type,
		f.Principal != nil && *f.Principal != a.Principal,
		f.Host != nil && *f.Host != a.Host,
		f.Operation > OpAny && f.Operation != a.Operation,
		f.Permission > AnyPermission && f.Permission != a.Permission,
		f.Pattern > MatchPattern && f.Pattern != a.Pattern:
		return false
	case f.Name == nil:
		return true
	case f.Pattern == MatchPattern:
		return a.covers(Resource{a.Type, *f.Name})
	}
	return *f.Name == a.Name
}

// ACLs decides by access rules, as Kafka's StandardAuthorizer: what a rule
// denies is denied, else what a rule allows is allowed, else it is denied, unless
// no rule at all is about the resource: then Default decides. So one rule on a
// resource, whatever it says, ends the default there for every operation.
//
// The zero value has no rules and allows nothing but to Super. It may be used
// concurrently; the fields are set before first use.
type ACLs struct {
	// Default is the answer for a resource that no rule is about
	// (allow.everyone.if.no.acl.found).
	Default bool
	// Super may do everything, whatever the rules say (super.users).
	Super []Principal
	// MaxRules bounds how many rules there may be; zero is 10,000. One more is
	// refused with POLICY_VIOLATION.
	MaxRules int

	mu    sync.RWMutex
	rules []ACL // sorted, each once
}

var (
	_ Authorizer            = (*ACLs)(nil)
	_ AnyResourceAuthorizer = (*ACLs)(nil)
)

// Allow decides about one operation.
func (a *ACLs) Allow(_ context.Context, who Principal, op Operation, r Resource) bool {
	if slices.Contains(a.Super, who) {
		return true
	}
	a.mu.RLock()
	defer a.mu.RUnlock()
	found, allowed := false, false
	for _, rule := range a.ofType(r.Type) {
		if !rule.covers(r) {
			continue
		}
		found = true
		if !rule.about(who) || !rule.grants(op) {
			continue
		}
		if rule.Permission == DenyPermission {
			return false
		}
		allowed = true
	}
	return allowed || !found && a.Default
}

// AllowAny reports whether who may do op to at least one resource of a type that
// may exist (Authorizer.authorizeByResourceType).
func (a *ACLs) AllowAny(ctx context.Context, who Principal, op Operation, t ResourceType) bool {
	// A name that no rule has: it tells of the default, and of rules for all.
	if a.Allow(ctx, who, op, Resource{t, "hardcode"}) {
		return true
	}
	a.mu.RLock()
	defer a.mu.RUnlock()
	var allow, deny []ACL
	for _, rule := range a.ofType(t) {
		if !rule.about(who) || rule.Operation != op && rule.Operation != OpAll {
			continue
		}
		if rule.Permission == AllowPermission {
			allow = append(allow, rule)
			continue
		}
		if rule.Pattern == LiteralPattern && rule.Name == AnyName {
			return false
		}
		deny = append(deny, rule)
	}
	return slices.ContainsFunc(allow, func(rule ACL) bool {
		if rule.Pattern == LiteralPattern && rule.Name == AnyName {
			return true
		}
		return !slices.ContainsFunc(deny, func(d ACL) bool {
			if d.Pattern == PrefixedPattern {
				return strings.HasPrefix(rule.Name, d.Name)
			}
			return rule.Pattern == LiteralPattern && rule.Name == d.Name
		})
	})
}

// ofType are the rules about resources of a type.
func (a *ACLs) ofType(t ResourceType) []ACL {
	at := func(t ResourceType) int {
		i, _ := slices.BinarySearchFunc(a.rules, t, func(r ACL, t ResourceType) int { return cmp.Compare(r.Type, t) })
		return i
	}
	return a.rules[at(t):at(t+1)]
}

// Add adds a rule, as CreateAcls does; one that is there already is no error.
// INVALID_REQUEST for a rule that can't be, POLICY_VIOLATION for one too many.
func (a *ACLs) Add(rule ACL) error {
	if err := rule.check(); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	i, found := slices.BinarySearchFunc(a.rules, rule, ACL.compare)
	if found {
		return nil
	}
	if limit := cmp.Or(a.MaxRules, 10_000); len(a.rules) >= limit {
		return txnstate.CodePolicyViolation.Errorf("", "%d access rules, and %d are allowed", len(a.rules)+1, limit)
	}
	a.rules = slices.Insert(a.rules, i, rule)
	return nil
}

// List is the rules that a filter selects, sorted. The slice is the caller's.
func (a *ACLs) List(f ACLFilter) []ACL {
	a.mu.RLock()
	defer a.mu.RUnlock()
	var out []ACL
	for _, rule := range a.rules {
		if f.Match(rule) {
			out = append(out, rule)
		}
	}
	return out
}

// Remove removes the rules that a filter selects, and returns them.
func (a *ACLs) Remove(f ACLFilter) []ACL {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []ACL
	a.rules = slices.DeleteFunc(a.rules, func(rule ACL) bool {
		if !f.Match(rule) {
			return false
		}
		out = append(out, rule)
		return true
	})
	return out
}

// aclFile is how rules are kept.
type aclFile struct {
	Version int   `json:"version"`
	Rules   []ACL `json:"rules"`
}

// MarshalJSON is the rules, for a host to keep. Default and Super are
// configuration and not part of it.
func (a *ACLs) MarshalJSON() ([]byte, error) {
	return json.Marshal(aclFile{Version: 1, Rules: append([]ACL{}, a.List(ACLFilter{})...)})
}

// UnmarshalJSON replaces the rules by those that MarshalJSON wrote. With an error
// they stay as they were.
func (a *ACLs) UnmarshalJSON(b []byte) error {
	var f aclFile
	if err := json.Unmarshal(b, &f); err != nil {
		return fmt.Errorf("wire: access rules: %w", err)
	}
	if f.Version != 1 {
		return fmt.Errorf("wire: access rules of version %d, and 1 is known", f.Version)
	}
	tmp := ACLs{MaxRules: a.MaxRules}
	for _, rule := range f.Rules {
		if err := tmp.Add(rule); err != nil {
			return fmt.Errorf("wire: access rules: %w", err)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.rules = tmp.rules
	return nil
}
