// Package harness shows a test that needs Kafka's transactions: the broker runs
// inside go test, and the test moves its clock. See harness_test.go.
package harness
