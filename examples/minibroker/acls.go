package minibroker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"

	"github.com/kafkatxn/kafkatxn/internal/fsx"
	"github.com/kafkatxn/kafkatxn/wire"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// acls are the access rules, kept in a file. What they say is decided by
// wire.ACLs; without any rule everybody may do everything, as Kafka does with
// allow.everyone.if.no.acl.found.
type acls struct {
	fsys fsx.FS // nil: in memory
	file string
	// shared makes a rule for all brokers of a cluster; nil: there is one.
	shared func(wire.ACL) error

	change sync.Mutex // held during I/O
	rules  *wire.ACLs
}

func newRules() *wire.ACLs { return &wire.ACLs{Default: true} }

func openACLs(fsys fsx.FS, file string) (*acls, error) {
	a := &acls{fsys: fsys, file: file, rules: newRules()}
	if fsys == nil {
		return a, nil
	}
	raw, err := fsys.ReadFile(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return a, nil
	case err != nil:
		return nil, err
	}
	if err := a.rules.UnmarshalJSON(raw); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return a, nil
}

// add adds a rule, durably: it is not in force before it is written.
func (a *acls) add(rule wire.ACL) error {
	if a.shared != nil {
		return a.shared(rule)
	}
	a.change.Lock()
	defer a.change.Unlock()
	if a.fsys != nil {
		next := newRules()
		raw, err := a.rules.MarshalJSON()
		if err == nil {
			err = next.UnmarshalJSON(raw)
		}
		if err == nil {
			err = next.Add(rule)
		}
		if err != nil {
			return err
		}
		if raw, err = next.MarshalJSON(); err != nil {
			return err
		}
		if err := a.fsys.Replace(a.file, raw, 0o644); err != nil {
			return kafkaErrorf(kerr.KafkaStorageError, "%w", err)
		}
	}
	return a.rules.Add(rule)
}

// may asks the authorizer.
func (b *Broker) may(ctx context.Context, who wire.Principal, op wire.Operation, t wire.ResourceType, name string) bool {
	return b.auth.Allow(ctx, who, op, wire.Resource{Type: t, Name: name})
}

func (b *Broker) createACLs(ctx context.Context, who wire.Principal, r *kmsg.CreateACLsRequest) (kmsg.Response, error) {
	resp := r.ResponseKind().(*kmsg.CreateACLsResponse)
	allowed := b.may(ctx, who, wire.OpAlter, wire.ClusterResource, wire.ClusterName)
	for _, c := range r.Creations {
		var err error
		switch {
		case !allowed:
			err = kafkaErrorf(kerr.ClusterAuthorizationFailed, "%s has no ALTER on the cluster", who)
		case b.acls == nil:
			err = kafkaErrorf(kerr.SecurityDisabled, "access is decided by the program that runs this broker")
		default:
			pattern := wire.LiteralPattern
			if r.Version >= 1 {
				pattern = wire.PatternType(c.ResourcePatternType)
			}
			err = b.acls.add(wire.ACL{
				Type: wire.ResourceType(c.ResourceType), Name: c.ResourceName, Pattern: pattern,
				Principal: c.Principal, Host: c.Host, Operation: wire.Operation(c.Operation), Permission: wire.Permission(c.PermissionType),
			})
		}
		x := kmsg.NewCreateACLsResponseResult()
		x.ErrorCode, x.ErrorMessage = codeOf(err), message(err)
		resp.Results = append(resp.Results, x)
	}
	return resp, nil
}

func (b *Broker) describeACLs(ctx context.Context, who wire.Principal, r *kmsg.DescribeACLsRequest) (kmsg.Response, error) {
	resp := r.ResponseKind().(*kmsg.DescribeACLsResponse)
	switch {
	case !b.may(ctx, who, wire.OpDescribe, wire.ClusterResource, wire.ClusterName):
		resp.ErrorCode = kerr.ClusterAuthorizationFailed.Code
		return resp, nil
	case b.acls == nil:
		resp.ErrorCode = kerr.SecurityDisabled.Code
		return resp, nil
	}
	f := wire.ACLFilter{
		Type: wire.ResourceType(r.ResourceType), Name: r.ResourceName, Pattern: wire.LiteralPattern,
		Principal: r.Principal, Host: r.Host, Operation: wire.Operation(r.Operation), Permission: wire.Permission(r.PermissionType),
	}
	if r.Version >= 1 {
		f.Pattern = wire.PatternType(r.ResourcePatternType)
	}
	for _, rule := range b.acls.rules.List(f) {
		last := len(resp.Resources) - 1
		if last < 0 || resp.Resources[last].ResourceType != kmsg.ACLResourceType(rule.Type) || resp.Resources[last].ResourceName != rule.Name ||
			resp.Resources[last].ResourcePatternType != kmsg.ACLResourcePatternType(rule.Pattern) {
			x := kmsg.NewDescribeACLsResponseResource()
			x.ResourceType, x.ResourceName, x.ResourcePatternType = kmsg.ACLResourceType(rule.Type), rule.Name, kmsg.ACLResourcePatternType(rule.Pattern)
			resp.Resources = append(resp.Resources, x)
			last++
		}
		y := kmsg.NewDescribeACLsResponseResourceACL()
		y.Principal, y.Host, y.Operation, y.PermissionType = rule.Principal, rule.Host, kmsg.ACLOperation(rule.Operation), kmsg.ACLPermissionType(rule.Permission)
		resp.Resources[last].ACLs = append(resp.Resources[last].ACLs, y)
	}
	return resp, nil
}
