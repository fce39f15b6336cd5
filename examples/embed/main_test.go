package main

import (
	"bytes"
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/txnstate"
	"github.com/kafkatxn/kafkatxn/txnstate/storetest"
)

func TestTheStory(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, run(context.Background(), &out))
	require.Equal(t, `begin   pay is producer 1000/0
stage   orders/0 has "apples 1" at 0, stable up to 0
stage   orders/0 has "pears 1" at 1, stable up to 0
stage   group billing is to stand at 2
commit  pay
hook    group billing stands at 2
marker  group billing: commit true of producer 1000/1, applied
marker  orders/0: commit true of producer 1000/1, applied
read    ["apples 1" "pears 1"]

begin   pay is producer 1000/1
stage   orders/0 has "apples 2" at 3, stable up to 3
stage   orders/0 has "pears 2" at 4, stable up to 3
stage   group billing is to stand at 4
abort   pay
marker  group billing: commit false of producer 1000/2, applied
marker  orders/0: commit false of producer 1000/2, applied
read    ["apples 1" "pears 1"]

`, out.String())
}

func TestTheStoreKeepsTheContract(t *testing.T) {
	storetest.Run(t, storetest.Harness{
		Open:  func(testing.TB) txnstate.Store { return newStore() },
		Peer:  func(_ testing.TB, s txnstate.Store) txnstate.Store { return s },
		Syncs: func(txnstate.Store) int { return 0 },
	})
}

func TestTheHostIsSmall(t *testing.T) {
	text, err := os.ReadFile("main.go")
	require.NoError(t, err)
	require.Less(t, bytes.Count(text, []byte("\n")), 200)
}
