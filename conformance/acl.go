package conformance

import (
	"context"
	"time"

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
	if x.Results[0].ErrorCode != 0 {
		return Answer{Err: errName(x.Results[0].ErrorCode)}, nil
	}
	return Answer{}, p.enforced(ctx, c)
}

// enforced waits until the brokers know a rule: they learn of it after CreateAcls
// has answered. A broker that cannot be asked is given a moment.
func (p *player) enforced(ctx context.Context, c kmsg.CreateACLsRequestCreation) error {
	at := []string{p.c.boot}
	if p.c.follow {
		var err error
		if at, err = p.c.brokers(ctx); err != nil {
			return err
		}
	}
	req := kmsg.NewPtrDescribeACLsRequest()
	req.Version = p.e.apis.best(req.Key(), 2)
	req.ResourceType, req.ResourceName, req.ResourcePatternType = c.ResourceType, &c.ResourceName, c.ResourcePatternType
	req.Operation, req.PermissionType = c.Operation, c.PermissionType
	for begin := time.Now(); len(at) > 0; {
		x, err := ask[*kmsg.DescribeACLsResponse](ctx, p.c, at[0], req)
		switch {
		case err != nil && ctx.Err() != nil:
			return ctx.Err()
		case err != nil || x.ErrorCode != 0:
			return pause(ctx, p.e.aclWait)
		case len(x.Resources) > 0:
			at = at[1:]
			continue
		case time.Since(begin) > p.e.o.Patience:
			return nil // whether it holds shows in the next step
		}
		if err := pause(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}
