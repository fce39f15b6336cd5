package wire

import (
	"context"

	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Handle answers DescribeAcls, CreateAcls and DeleteAcls, for who; ok is false
// for any other request. Changing rules needs ALTER on the cluster, reading them
// DESCRIBE. A host that keeps the rules does so (MarshalJSON) before it sends
// the answer to a change.
func (a *ACLs) Handle(ctx context.Context, req kmsg.Request, who Principal) (resp kmsg.Response, ok bool) {
	c := caller{ctx: ctx, who: who, auth: a}
	switch r := req.(type) {
	case *kmsg.DescribeACLsRequest:
		return a.describeACLs(c, r), true
	case *kmsg.CreateACLsRequest:
		return a.createACLs(c, r), true
	case *kmsg.DeleteACLsRequest:
		return a.deleteACLs(c, r), true
	}
	return nil, false
}

// ACLVersions lists what Handle of ACLs answers, for the host's ApiVersions
// answer: the versions of Kafka 4.4.
func ACLVersions() []APIVersion { return []APIVersion{{29, 1, 3}, {30, 1, 3}, {31, 1, 3}} }

func (c caller) onCluster(op Operation, name string) error {
	if c.may(op, ClusterResource, ClusterName) {
		return nil
	}
	return txnstate.CodeClusterAuthorization.Errorf("", "%s has no %s on the cluster", c.who, name)
}

// errorAnswer is an error as the answers about rules have it.
func errorAnswer(err error) (int16, *string) {
	return int16(txnstate.CodeOf(err)), message(err)
}

func (a *ACLs) createACLs(c caller, req *kmsg.CreateACLsRequest) kmsg.Response {
	refusal := c.onCluster(OpAlter, "ALTER")
	resp := req.ResponseKind().(*kmsg.CreateACLsResponse)
	for _, r := range req.Creations {
		err := refusal
		if err == nil {
			err = a.Add(ACL{
				Type: ResourceType(r.ResourceType), Name: r.ResourceName, Pattern: PatternType(r.ResourcePatternType),
				Principal: r.Principal, Host: r.Host, Operation: Operation(r.Operation), Permission: Permission(r.PermissionType),
			})
		}
		res := kmsg.NewCreateACLsResponseResult()
		res.ErrorCode, res.ErrorMessage = errorAnswer(err)
		resp.Results = append(resp.Results, res)
	}
	return resp
}

func (a *ACLs) describeACLs(c caller, req *kmsg.DescribeACLsRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.DescribeACLsResponse)
	f, err := newACLFilter(aclFilterFields{
		uint8(req.ResourceType), req.ResourceName, uint8(req.ResourcePatternType),
		req.Principal, req.Host, uint8(req.Operation), uint8(req.PermissionType),
	})
	if e := c.onCluster(OpDescribe, "DESCRIBE"); e != nil {
		err = e
	}
	if err != nil {
		resp.ErrorCode, resp.ErrorMessage = errorAnswer(err)
		return resp
	}
	type resource struct {
		t       ResourceType
		name    string
		pattern PatternType
	}
	at := map[resource]int{}
	for _, rule := range a.List(f) {
		k := resource{rule.Type, rule.Name, rule.Pattern}
		i, ok := at[k]
		if !ok {
			i = len(resp.Resources)
			at[k] = i
			rr := kmsg.NewDescribeACLsResponseResource()
			rr.ResourceType, rr.ResourceName = kmsg.ACLResourceType(rule.Type), rule.Name
			rr.ResourcePatternType = kmsg.ACLResourcePatternType(rule.Pattern)
			resp.Resources = append(resp.Resources, rr)
		}
		ra := kmsg.NewDescribeACLsResponseResourceACL()
		ra.Principal, ra.Host = rule.Principal, rule.Host
		ra.Operation, ra.PermissionType = kmsg.ACLOperation(rule.Operation), kmsg.ACLPermissionType(rule.Permission)
		resp.Resources[i].ACLs = append(resp.Resources[i].ACLs, ra)
	}
	return resp
}

func (a *ACLs) deleteACLs(c caller, req *kmsg.DeleteACLsRequest) kmsg.Response {
	refusal := c.onCluster(OpAlter, "ALTER")
	resp := req.ResponseKind().(*kmsg.DeleteACLsResponse)
	for _, rf := range req.Filters {
		f, err := newACLFilter(aclFilterFields{
			uint8(rf.ResourceType), rf.ResourceName, uint8(rf.ResourcePatternType),
			rf.Principal, rf.Host, uint8(rf.Operation), uint8(rf.PermissionType),
		})
		if refusal != nil {
			err = refusal
		}
		res := kmsg.NewDeleteACLsResponseResult()
		res.ErrorCode, res.ErrorMessage = errorAnswer(err)
		if err == nil {
			for _, rule := range a.Remove(f) {
				m := kmsg.NewDeleteACLsResponseResultMatchingACL()
				m.ResourceType, m.ResourceName = kmsg.ACLResourceType(rule.Type), rule.Name
				m.ResourcePatternType = kmsg.ACLResourcePatternType(rule.Pattern)
				m.Principal, m.Host = rule.Principal, rule.Host
				m.Operation, m.PermissionType = kmsg.ACLOperation(rule.Operation), kmsg.ACLPermissionType(rule.Permission)
				res.MatchingACLs = append(res.MatchingACLs, m)
			}
		}
		resp.Results = append(resp.Results, res)
	}
	return resp
}

// aclFilterFields are a filter as the two requests have it.
type aclFilterFields struct {
	resource   uint8
	name       *string
	pattern    uint8
	principal  *string
	host       *string
	operation  uint8
	permission uint8
}

// newACLFilter refuses what is unknown (0) or no number of Kafka's, so that a
// deletion that was misread removes nothing.
func newACLFilter(f aclFilterFields) (ACLFilter, error) {
	out := ACLFilter{
		Type: ResourceType(f.resource), Name: f.name, Pattern: PatternType(f.pattern),
		Principal: f.principal, Host: f.host, Operation: Operation(f.operation), Permission: Permission(f.permission),
	}
	if out.Type < AnyResource || out.Type > UserResource || out.Pattern < AnyPattern || out.Pattern > PrefixedPattern ||
		out.Operation < OpAny || out.Operation > OpTwoPhaseCommit || out.Permission < AnyPermission || out.Permission > AllowPermission {
		return out, txnstate.CodeInvalidRequest.Errorf("", "a filter for access rules with resource type %d, pattern type %d, operation %d, permission %d", f.resource, f.pattern, f.operation, f.permission)
	}
	return out, nil
}
