package wire_test

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/wire"
)

func rule(t wire.ResourceType, name string, who wire.Principal, op wire.Operation, p wire.Permission) wire.ACL {
	return wire.ACL{Type: t, Name: name, Pattern: wire.LiteralPattern, Principal: who, Host: wire.AnyName, Operation: op, Permission: p}
}

func acls(t testing.TB, byDefault bool, rules ...wire.ACL) *wire.ACLs {
	t.Helper()
	a := &wire.ACLs{Default: byDefault, Super: []string{"User:root"}}
	for _, r := range rules {
		if err := a.Add(r); err != nil {
			t.Fatal(err)
		}
	}
	return a
}

// The rules of Kafka's StandardAuthorizer.
func TestACLsDecideAsStandardAuthorizer(t *testing.T) {
	const topic, deny, allow = wire.TopicResource, wire.DenyPermission, wire.AllowPermission
	prefixed := func(a wire.ACL) wire.ACL { a.Pattern = wire.PrefixedPattern; return a }
	for _, tt := range []struct {
		name      string
		byDefault bool
		rules     []wire.ACL
		who       string
		op        wire.Operation
		resource  string
		want      bool
	}{
		{"no rule, allowed by default", true, nil, "User:a", wire.OpRead, "t", true},
		{"no rule, denied by default", false, nil, "User:a", wire.OpRead, "t", false},
		{"one rule ends the default for every operation", true,
			[]wire.ACL{rule(topic, "t", wire.AnyUser, wire.OpWrite, deny)}, "User:a", wire.OpDescribe, "t", false},
		{"one rule ends the default for everybody", true,
			[]wire.ACL{rule(topic, "t", "User:b", wire.OpWrite, allow)}, "User:a", wire.OpWrite, "t", false},
		{"a rule elsewhere does not", true,
			[]wire.ACL{rule(topic, "other", wire.AnyUser, wire.OpWrite, deny)}, "User:a", wire.OpDescribe, "t", true},
		{"a rule on another type of resource does not", true,
			[]wire.ACL{rule(wire.GroupResource, "t", wire.AnyUser, wire.OpAll, deny)}, "User:a", wire.OpRead, "t", true},
		{"READ lets DESCRIBE", false, []wire.ACL{rule(topic, "t", "User:a", wire.OpRead, allow)}, "User:a", wire.OpDescribe, "t", true},
		{"WRITE lets DESCRIBE", false, []wire.ACL{rule(topic, "t", "User:a", wire.OpWrite, allow)}, "User:a", wire.OpDescribe, "t", true},
		{"DELETE lets DESCRIBE", false, []wire.ACL{rule(topic, "t", "User:a", wire.OpDelete, allow)}, "User:a", wire.OpDescribe, "t", true},
		{"ALTER lets DESCRIBE", false, []wire.ACL{rule(topic, "t", "User:a", wire.OpAlter, allow)}, "User:a", wire.OpDescribe, "t", true},
		{"ALTER_CONFIGS lets DESCRIBE_CONFIGS", false, []wire.ACL{rule(topic, "t", "User:a", wire.OpAlterConfigs, allow)}, "User:a", wire.OpDescribeConfigs, "t", true},
		{"CREATE does not let DESCRIBE", false, []wire.ACL{rule(topic, "t", "User:a", wire.OpCreate, allow)}, "User:a", wire.OpDescribe, "t", false},
		{"DESCRIBE does not let READ", false, []wire.ACL{rule(topic, "t", "User:a", wire.OpDescribe, allow)}, "User:a", wire.OpRead, "t", false},
		{"denying READ does not deny DESCRIBE", false, []wire.ACL{
			rule(topic, "t", "User:a", wire.OpRead, deny), rule(topic, "t", "User:a", wire.OpWrite, allow)}, "User:a", wire.OpDescribe, "t", true},
		{"ALL lets everything", false, []wire.ACL{rule(topic, "t", "User:a", wire.OpAll, allow)}, "User:a", wire.OpTwoPhaseCommit, "t", true},
		{"deny beats allow, of whatever reach", false, []wire.ACL{
			rule(topic, "t", "User:a", wire.OpAll, allow), rule(topic, wire.AnyName, wire.AnyUser, wire.OpWrite, deny)}, "User:a", wire.OpWrite, "t", false},
		{"a wildcard name", false, []wire.ACL{rule(topic, wire.AnyName, "User:a", wire.OpRead, allow)}, "User:a", wire.OpRead, "t", true},
		{"a wildcard name ends the default everywhere", true, []wire.ACL{rule(topic, wire.AnyName, "User:b", wire.OpRead, allow)}, "User:a", wire.OpRead, "t", false},
		{"a prefix", false, []wire.ACL{prefixed(rule(topic, "te", "User:a", wire.OpRead, allow))}, "User:a", wire.OpRead, "test", true},
		{"not that prefix", false, []wire.ACL{prefixed(rule(topic, "te", "User:a", wire.OpRead, allow))}, "User:a", wire.OpRead, "t", false},
		{"super users, whatever the rules", false, []wire.ACL{rule(topic, "t", wire.AnyUser, wire.OpAll, deny)}, "User:root", wire.OpWrite, "t", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := acls(t, tt.byDefault, tt.rules...)
			if got := a.Allow(t.Context(), tt.who, tt.op, wire.Resource{Type: topic, Name: tt.resource}); got != tt.want {
				t.Errorf("Allow = %v", got)
			}
		})
	}
}

// KIP-679: WRITE on any topic at all is enough for a producer without a
// transactional id.
func TestACLsAllowAny(t *testing.T) {
	const topic, deny, allow = wire.TopicResource, wire.DenyPermission, wire.AllowPermission
	prefixed := func(a wire.ACL) wire.ACL { a.Pattern = wire.PrefixedPattern; return a }
	for _, tt := range []struct {
		name      string
		byDefault bool
		rules     []wire.ACL
		want      bool
	}{
		{"by default", true, nil, true},
		{"not by default", false, nil, false},
		{"one topic", false, []wire.ACL{rule(topic, "t", "User:a", wire.OpWrite, allow)}, true},
		{"another's topic", false, []wire.ACL{rule(topic, "t", "User:b", wire.OpWrite, allow)}, false},
		{"another operation", false, []wire.ACL{rule(topic, "t", "User:a", wire.OpRead, allow)}, false},
		{"every topic denied", false, []wire.ACL{rule(topic, "t", "User:a", wire.OpWrite, allow), rule(topic, wire.AnyName, wire.AnyUser, wire.OpWrite, deny)}, false},
		{"the one topic denied", false, []wire.ACL{rule(topic, "t", "User:a", wire.OpWrite, allow), rule(topic, "t", "User:a", wire.OpAll, deny)}, false},
		{"the topic's prefix denied", false, []wire.ACL{rule(topic, "tt", "User:a", wire.OpWrite, allow), prefixed(rule(topic, "t", "User:a", wire.OpWrite, deny))}, false},
		{"a part of the prefix denied", false, []wire.ACL{prefixed(rule(topic, "t", "User:a", wire.OpWrite, allow)), prefixed(rule(topic, "tt", "User:a", wire.OpWrite, deny))}, true},
		{"every topic allowed, one denied", false, []wire.ACL{rule(topic, wire.AnyName, "User:a", wire.OpWrite, allow), rule(topic, "t", "User:a", wire.OpWrite, deny)}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := acls(t, tt.byDefault, tt.rules...).AllowAny(t.Context(), "User:a", wire.OpWrite, topic); got != tt.want {
				t.Errorf("AllowAny = %v", got)
			}
		})
	}
}

func TestACLsRefuseRulesThatCannotBe(t *testing.T) {
	good := rule(wire.TopicResource, "t", "User:a", wire.OpRead, wire.AllowPermission)
	for name, change := range map[string]func(*wire.ACL){
		"any resource":         func(a *wire.ACL) { a.Type = wire.AnyResource },
		"no name":              func(a *wire.ACL) { a.Name = "" },
		"a pattern of filters": func(a *wire.ACL) { a.Pattern = wire.MatchPattern },
		"principal of no type": func(a *wire.ACL) { a.Principal = "alice" },
		"any operation":        func(a *wire.ACL) { a.Operation = wire.OpAny },
		"operation 16":         func(a *wire.ACL) { a.Operation = 16 },
		"any permission":       func(a *wire.ACL) { a.Permission = wire.AnyPermission },
		"another cluster":      func(a *wire.ACL) { a.Type = wire.ClusterResource },
		// Taken for a rule for every host it would deny too much, ignored too little.
		"a single host": func(a *wire.ACL) { a.Host = "10.0.0.1" },
	} {
		bad := good
		change(&bad)
		if err := new(wire.ACLs).Add(bad); !errors.Is(err, txnstate.ErrInvalidRequest) {
			t.Errorf("%s: %v", name, err)
		}
	}
	a := &wire.ACLs{MaxRules: 1}
	for i, want := range []error{nil, nil, txnstate.ErrPolicyViolation} { // I13; a repeat takes no room
		r := good
		if i == 2 {
			r.Name = "u"
		}
		if err := a.Add(r); !errors.Is(err, want) {
			t.Errorf("rule %d: %v, want %v", i, err, want)
		}
	}
}

func TestACLsSurviveAsJSON(t *testing.T) {
	a := acls(t, true, rule(wire.TopicResource, "t", "User:a", wire.OpRead, wire.AllowPermission),
		rule(wire.GroupResource, wire.AnyName, wire.AnyUser, wire.OpAll, wire.DenyPermission))
	b, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	var back wire.ACLs
	if err := json.Unmarshal(b, &back); err != nil || len(back.List(wire.ACLFilter{})) != 2 {
		t.Fatalf("%v, %v", back.List(wire.ACLFilter{}), err)
	}
	for _, bad := range []string{`{"version":2}`, `{"version":1,"rules":[{}]}`, `[`} {
		if err := json.Unmarshal([]byte(bad), &back); err == nil || len(back.List(wire.ACLFilter{})) != 2 {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// DescribeAcls and DeleteAcls select in the same way.
func TestACLFilters(t *testing.T) {
	prefixed := rule(wire.TopicResource, "or", "User:b", wire.OpRead, wire.DenyPermission)
	prefixed.Pattern = wire.PrefixedPattern
	a := acls(t, false,
		rule(wire.TopicResource, "orders", "User:a", wire.OpWrite, wire.AllowPermission),
		rule(wire.TopicResource, wire.AnyName, "User:a", wire.OpRead, wire.AllowPermission),
		prefixed,
		rule(wire.GroupResource, "orders", "User:a", wire.OpRead, wire.AllowPermission))
	str := func(s string) *string { return &s }
	for _, tt := range []struct {
		name string
		f    wire.ACLFilter
		want int
	}{
		{"all", wire.ACLFilter{}, 4},
		{"all, in Kafka's numbers", wire.ACLFilter{Type: wire.AnyResource, Pattern: wire.AnyPattern, Operation: wire.OpAny, Permission: wire.AnyPermission}, 4},
		{"by type", wire.ACLFilter{Type: wire.GroupResource}, 1},
		{"by name", wire.ACLFilter{Name: str("orders")}, 2},
		{"by name and literal pattern", wire.ACLFilter{Name: str("or"), Pattern: wire.LiteralPattern}, 0},
		{"by prefix", wire.ACLFilter{Name: str("or"), Pattern: wire.PrefixedPattern}, 1},
		{"what applies to a topic", wire.ACLFilter{Type: wire.TopicResource, Name: str("orders"), Pattern: wire.MatchPattern}, 3},
		{"by principal", wire.ACLFilter{Principal: str("User:b")}, 1},
		{"by host", wire.ACLFilter{Host: str("10.0.0.1")}, 0},
		{"by operation and permission", wire.ACLFilter{Operation: wire.OpRead, Permission: wire.AllowPermission}, 2},
	} {
		if got := a.List(tt.f); len(got) != tt.want {
			t.Errorf("%s: %+v, want %d", tt.name, got, tt.want)
		}
	}
	if gone := a.Remove(wire.ACLFilter{Type: wire.TopicResource}); len(gone) != 3 || len(a.List(wire.ACLFilter{})) != 1 {
		t.Errorf("removed %+v, left %+v", gone, a.List(wire.ACLFilter{}))
	}
}
