// Package wire answers Kafka's requests: it takes them decoded, by kmsg, and
// gives answers to encode. It holds what the other packages leave out because it
// is about the protocol and not about transactions: which versions there are and
// what each of them knows, who is asked for permission and in which order things
// are refused, and how an error becomes a number. All of it is Apache Kafka
// 4.4's, to the order of the checks.
//
// A host owns connections, topics, logs, membership of groups, and Fetch,
// ListOffsets and Metadata. It hands a request of an API that [Handler.Versions]
// lists to [Handler.Handle]:
//
//	req, err := h.NewRequest(key, version) // from the request's header
//	...
//	err = req.ReadFrom(body)
//	...
//	resp, err := h.Handle(ctx, req, "User:alice")
//
// and writes the answer; nothing where it is nil; and closes the connection on
// [ErrClose]. Nothing here reads or writes a connection.
//
// # What a host provides
//
//	Topics       which topics and partitions there are
//	Leader, Log  logs of partitions, each with its fence.Partition beside it
//	Groups       who is a member of which group (offsets.Groups)
//	Authorizer   who may do what; ACLs is a ready one; nil allows all
//	Verifier     for transactional ids that another broker coordinates
//
// A Config without Leader, Offsets or Coordinator is a broker without that role,
// and the APIs of the role are not served.
//
// # The promise of Log
//
// Producer state and log move together: [Log.Append] decides (admit) and
// appends under one lock, so that no batch of an older epoch comes behind a
// fence, and no batch behind a marker that it does not know of. What Append
// reports is durable. After a crash, and after a write that failed, the
// producer state is rebuilt from what the log has.
//
// # Markers
//
// [LocalSink] applies markers on this broker, for the dispatcher of this process
// and for WriteTxnMarkers of others. It is built before the Coordinator, which
// needs the dispatcher.
package wire
