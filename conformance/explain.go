package conformance

import (
	"fmt"
	"strings"
)

// explain makes the Difference of the step at hand.
func (r *replay) explain(got Answer, trouble string) *Difference {
	s := r.sc.Steps[r.next]
	d := &Difference{Scenario: r.sc.Name, Step: r.next, Request: s, Got: got, Trouble: trouble}
	for i := range r.next {
		st := r.sc.Steps[i]
		if r.e.o.Between != nil && i == r.cut && r.cut > 0 {
			d.Story = append(d.Story, "-- Between was called here --")
		}
		d.Story = append(d.Story, st.String()+": "+st.Want.String())
	}
	d.Text = fmt.Sprintf("%s: Kafka answered %s, this broker answered %s", s, s.Want, got)
	d.Kind = s.Op.API() + ": Kafka answers " + s.Want.outcome() + ", this broker " + got.outcome()
	return d
}

// API is the name of the request that the operation sends.
func (o Op) API() string {
	switch o {
	case OpInit, OpAge:
		return "InitProducerId"
	case OpAddPartitions, OpAddBatch:
		return "AddPartitionsToTxn"
	case OpAddOffsets:
		return "AddOffsetsToTxn"
	case OpEnd:
		return "EndTxn"
	case OpTxnOffsetCommit:
		return "TxnOffsetCommit"
	case OpOffsetCommit:
		return "OffsetCommit"
	case OpOffsetFetch:
		return "OffsetFetch"
	case OpJoin:
		return "JoinGroup"
	case OpLeave:
		return "LeaveGroup"
	case OpProduce:
		return "Produce"
	case OpFetch:
		return "Fetch"
	case OpWriteMarkers:
		return "WriteTxnMarkers"
	case OpDescribeTxns:
		return "DescribeTransactions"
	case OpListTxns:
		return "ListTransactions"
	case OpDescribeProducers:
		return "DescribeProducers"
	case OpDeny:
		return "CreateAcls"
	case OpSleep:
		return "sleep"
	}
	return string(o)
}

func (a Answer) outcome() string {
	if a.Err == "" {
		return "success"
	}
	return a.Err
}

func (a Answer) String() string { return a.outcome() }

func (s *Step) String() string {
	return strings.TrimSpace(fmt.Sprintf("%s v%d", s.Op.API(), s.Version))
}
