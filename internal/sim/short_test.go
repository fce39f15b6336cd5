package sim

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// What is told of a complaint is what its transaction went through and which faults
// there were then, not what others did.
func TestAShortStoryIsOfItsComplaint(t *testing.T) {
	t.Parallel()
	story := []string{
		"    1.000000 broker 0   t1.1#1 AddPartitionsToTxn a-0: NONE",
		"    2.000000 b0.1       t1: stored Ongoing",
		"    2.100000 broker 0   produce v12 t1.2#7/a-0/1 1/0: NONE @4",
		"    2.200000 FAULT      3: broker 1 dies for 1s",
		"    2.300000 broker 0   t2.1#4 EndTxn v5 commit=true 2/0: NONE",
		"    2.400000 broker 0   t1.2#7 EndTxn v5 commit=true 1/0: CONCURRENT_TRANSACTIONS",
		"    2.500000 broker 0   t1.2#7 EndTxn v5 commit=true 1/0: CONCURRENT_TRANSACTIONS",
		"   90.000000 FAULT      no more of them",
		"  290.000000 MODEL      I8: t1.2#7 is committed",
	}
	of := []string{story[1], story[2], story[3], story[5], story[8]}
	require.Equal(t, of, Short(story, "I8: t1.2#7 is committed"))
	require.Equal(t, of[1:4], Short(story[:8], "I12: the last stable offset of a-0 stays at 4, and its high watermark is 9")[1:], "whose record is there")
	require.Equal(t, story, Short(story, "crash: something else"))
}
