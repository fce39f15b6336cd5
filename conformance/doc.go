// Package conformance replays recorded conversations with Apache Kafka against
// any broker that speaks its protocol, and says where the transactional answers
// differ.
package conformance
