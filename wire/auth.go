package wire

import "context"

// Principal is who a request comes from, as Kafka writes it: "User:alice".
type Principal = string

// Operation is an operation of Kafka's access rules, with Kafka's number.
type Operation uint8

// Kafka's operations (AclOperation).
const (
	OpAny             Operation = 1 // in filters only
	OpAll             Operation = 2 // in rules only: every operation
	OpRead            Operation = 3
	OpWrite           Operation = 4
	OpCreate          Operation = 5
	OpDelete          Operation = 6
	OpAlter           Operation = 7
	OpDescribe        Operation = 8
	OpClusterAction   Operation = 9
	OpDescribeConfigs Operation = 10
	OpAlterConfigs    Operation = 11
	OpIdempotentWrite Operation = 12
	OpCreateTokens    Operation = 13
	OpDescribeTokens  Operation = 14
	OpTwoPhaseCommit  Operation = 15 // KIP-939
)

// ResourceType is a kind of resource of Kafka's access rules, with Kafka's number.
type ResourceType uint8

// Kafka's resource types.
const (
	AnyResource             ResourceType = 1 // in filters only
	TopicResource           ResourceType = 2
	GroupResource           ResourceType = 3
	ClusterResource         ResourceType = 4
	TransactionalIDResource ResourceType = 5
	DelegationTokenResource ResourceType = 6
	UserResource            ResourceType = 7
)

// ClusterName is the name of the one resource of type ClusterResource.
const ClusterName = "kafka-cluster"

// Resource is what an operation is done to.
type Resource struct {
	Type ResourceType
	Name string
}

// Authorizer decides who may do what. A Handler asks before it reveals whether a
// thing exists or who is in charge of it. That one permission implies another
// (READ lets DESCRIBE) is the Authorizer's business. Allow may be called
// concurrently; the answer is final for the request. ACLs is one.
type Authorizer interface {
	Allow(ctx context.Context, who Principal, op Operation, r Resource) bool
}

// AnyResourceAuthorizer is an optional ability of an Authorizer: whether who may
// do op to at least one resource of a type, existing or not. A producer without
// a transactional id needs IDEMPOTENT_WRITE on the cluster, or WRITE on any
// topic at all (KIP-679). Without the ability only the former counts.
type AnyResourceAuthorizer interface {
	AllowAny(ctx context.Context, who Principal, op Operation, t ResourceType) bool
}

// AuthorizerFunc is a function as an Authorizer.
type AuthorizerFunc func(ctx context.Context, who Principal, op Operation, r Resource) bool

// Allow calls f.
func (f AuthorizerFunc) Allow(ctx context.Context, who Principal, op Operation, r Resource) bool {
	return f(ctx, who, op, r)
}

// caller is the sender of one request.
type caller struct {
	ctx  context.Context
	who  Principal
	auth Authorizer // nil allows all
}

func (h *Handler) caller(ctx context.Context, who Principal) caller {
	return caller{ctx: ctx, who: who, auth: h.cfg.Authorizer}
}

func (c caller) may(op Operation, t ResourceType, name string) bool {
	return c.auth == nil || c.auth.Allow(c.ctx, c.who, op, Resource{t, name})
}

func (c caller) mayAny(op Operation, t ResourceType) bool {
	if c.auth == nil {
		return true
	}
	a, ok := c.auth.(AnyResourceAuthorizer)
	return ok && a.AllowAny(c.ctx, c.who, op, t)
}
