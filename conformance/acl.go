package conformance

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Rule is what a deny step asks for: from now on nobody may do Operation to the
// one resource of exactly this name.
type Rule struct {
	Resource  string // "topic", "group" or "txn"
	Name      string // as the broker knows it, with the scenario's prefix
	Operation string // "read", "write", "describe" or "all"
}

// aclResources and aclOperations are what a step may name, and Kafka's numbers.
var aclResources = map[string]kmsg.ACLResourceType{
	"topic": kmsg.ACLResourceTypeTopic,
	"group": kmsg.ACLResourceTypeGroup,
	"txn":   kmsg.ACLResourceTypeTransactionalId,
}

var aclOperations = map[string]kmsg.ACLOperation{
	"read":     kmsg.ACLOperationRead,
	"write":    kmsg.ACLOperationWrite,
	"describe": kmsg.ACLOperationDescribe,
	"all":      kmsg.ACLOperationAll,
}

func (p *player) deny(ctx context.Context, s *Step) (Answer, error) {
	r := Rule{Resource: s.Resource, Operation: s.Operation}
	switch s.Resource {
	case "topic":
		r.Name = p.topic(s.ResourceName)
	case "group":
		r.Name = p.group(s.ResourceName)
	default:
		r.Name = p.name(s.ResourceName)
	}
	if p.e.o.Deny != nil {
		return Answer{}, p.e.o.Deny(ctx, r)
	}
	req := kmsg.NewPtrCreateACLsRequest()
	req.Version = 2
	c := kmsg.NewCreateACLsRequestCreation()
	c.ResourcePatternType, c.Principal, c.Host, c.PermissionType = kmsg.ACLResourcePatternTypeLiteral, "User:*", "*", kmsg.ACLPermissionTypeDeny
	c.ResourceType, c.ResourceName, c.Operation = aclResources[r.Resource], r.Name, aclOperations[r.Operation]
	req.Creations = append(req.Creations, c)
	x, err := do[*kmsg.CreateACLsResponse](ctx, p.c, req)
	if err != nil {
		return Answer{}, err
	}
	if len(x.Results) != 1 {
		return Answer{}, short("%d results, want 1", len(x.Results))
	}
	return Answer{Err: errName(x.Results[0].ErrorCode)}, pause(ctx, p.e.aclWait)
}
