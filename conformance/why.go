package conformance

import "strings"

// why is Kafka's rule behind an answer, and where to read about it: the class of
// Apache Kafka that applies it, the KIP that brought it. "" where no rule is
// likely to be the cause.
func why(s *Step, got Answer) string {
	switch got.Err {
	case errNoAnswer, errUnreadable:
		return ""
	case "CONCURRENT_TRANSACTIONS":
		return "The id's previous transaction was still being completed when patience ran out: its markers are not written, or not acknowledged, or the completion is not recorded (TransactionMarkerChannelManager)."
	case "COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR":
		return "The coordinator was not there for this id or group. In a cluster of several brokers each request must go to its own: Options.Follow, -follow."
	case "NOT_LEADER_FOR_PARTITION":
		return "Another broker leads this partition: Options.Follow, -follow."
	}
	want := s.Want.Err
	if strings.HasPrefix(want, "TRANSACTIONAL_ID_AUTHORIZATION") && s.Op == OpInit && s.Enable2PC {
		return "enable2Pc needs the broker's transaction.two.phase.commit.enable, and the operation TWO_PHASE_COMMIT on the transactional id (KIP-939; KafkaApis.handleInitProducerIdRequest)."
	}
	if strings.HasSuffix(want, "_AUTHORIZATION_FAILED") || strings.Contains(s.Want.outcome(), "TOPIC_AUTHORIZATION") {
		return "Access is looked at first, before anything is told of ids, groups and topics; one rule on a resource ends the default there for every operation (KafkaApis, StandardAuthorizer with allow.everyone.if.no.acl.found)."
	}
	switch s.Op {
	case OpInit, OpAge:
		return whyInit(s, got)
	case OpAddPartitions, OpAddBatch, OpAddOffsets:
		return whyAdd(s)
	case OpEnd:
		return whyEnd(s, got)
	case OpTxnOffsetCommit, OpOffsetCommit, OpOffsetFetch, OpLeave, OpJoin:
		return whyGroup(s, got)
	case OpProduce:
		return whyProduce(s, got)
	case OpWriteMarkers:
		return whyMarkers(s)
	case OpDeleteGroup:
		return "A group is deleted with all its offsets, those of open transactions too, unless it has members (GroupCoordinatorService.deleteGroups)."
	case OpListOffsets:
		return "The latest offset of a read-committed reader is the last stable one (ReplicaManager.fetchOffset)."
	case OpFetch, OpDescribeTxns, OpListTxns, OpDescribeProducers:
		return whyRead(s, got)
	}
	return ""
}

// KIP-588 gave PRODUCER_FENCED to clients that know it.
const whyOldVersion = "Clients that send this version do not know PRODUCER_FENCED and are told INVALID_PRODUCER_EPOCH instead; so it is below version 4 of InitProducerId and version 2 of AddPartitionsToTxn, AddOffsetsToTxn and EndTxn (KIP-588; KafkaApis)."

func whyInit(s *Step, got Answer) string {
	switch s.Want.Err {
	case "INVALID_REQUEST":
		if s.EmptyID {
			return "A null transactional id makes an idempotent producer, an empty one is refused (TransactionCoordinator.handleInitProducerId)."
		}
		return "Producer id and epoch are both given or both -1, also without a transactional id (KIP-360; KafkaApis.handleInitProducerIdRequest)."
	case "INVALID_TRANSACTION_TIMEOUT":
		return "The timeout must be above 0 and at most transaction.max.timeout.ms (900000); this is tested before the id is looked up (TransactionCoordinator.handleInitProducerId)."
	case "UNSUPPORTED_VERSION":
		return "Kafka 4.1 to 4.4 know keepPreparedTxn and refuse it (KIP-939; TransactionCoordinator.handleInitProducerId)."
	case "INVALID_PRODUCER_EPOCH":
		return whyOldVersion
	case "PRODUCER_FENCED":
		return "Expected ids must be the current producer id and epoch, or those before the last bump that gave expected ids (KIP-360; TransactionMetadata.prepareIncrementProducerEpoch)."
	case "":
	default:
		return ""
	}
	switch {
	case got.Err != "" && s.Producer != "none":
		return "A producer may ask for a new epoch with its current ids, and again with the old ones when the answer was lost; without a record of the transactional id, expected ids are ignored and a new producer id is given (KIP-360; TransactionCoordinator.prepareInitProducerIdTransit)."
	case got.Err != "" && s.TxnID == "" && !s.EmptyID:
		return "Without a transactional id every request gets a producer id of its own, whatever the timeout and the expected ids (TransactionCoordinator.handleInitProducerId)."
	case got.Err == "" && got.Producer != s.Want.Producer:
		return "A transactional id keeps its producer id until the epochs are used up at 32766; only then it gets another, at epoch 0 (TransactionMetadata.prepareProducerIdRotation)."
	case got.Err == "":
		return "Every InitProducerId bumps the epoch by one. An open transaction is fenced first, with a bump of its own, and aborted, so that the new holder is two ahead; a repeat with the ids from before the last bump gets the current ones without another (KIP-360; TransactionCoordinator.prepareInitProducerIdTransit)."
	}
	return ""
}

func whyAdd(s *Step) string {
	out := s.Want.outcome()
	switch {
	case strings.Contains(out, "UNKNOWN_TOPIC_OR_PARTITION"), strings.Contains(out, "OPERATION_NOT_ATTEMPTED"):
		return "One unknown or forbidden partition stops the whole transaction's part of the request: it answers its own error, the others OPERATION_NOT_ATTEMPTED, nothing is added, and the coordinator is not asked (KafkaApis.handleAddPartitionsToTxnRequest)."
	case strings.Contains(out, "TRANSACTION_ABORTABLE"):
		return "A verifying request adds nothing and answers TRANSACTION_ABORTABLE for each partition that is not in the transaction, also where there is no transaction (KIP-890; TransactionCoordinator.handleVerifyPartitionsInTransaction)."
	case out == "INVALID_REQUEST":
		return "An empty transactional id is refused (TransactionCoordinator.handleAddPartitionsToTransaction)."
	case out == "INVALID_PRODUCER_ID_MAPPING":
		return "The id is unknown, or has another producer id; this is tested before the epoch (TransactionCoordinator.handleAddPartitionsToTransaction)."
	case out == "INVALID_PRODUCER_EPOCH":
		return whyOldVersion
	case out == "PRODUCER_FENCED":
		return "The epoch must be the current one exactly, a higher one is refused too (TransactionCoordinator.handleAddPartitionsToTransaction)."
	case out == "success" && s.Op == OpAddBatch:
		return "The transactions of one request are judged each for itself (KIP-890; KafkaApis.handleAddPartitionsToTxnRequest)."
	case out == "success" && s.Op == OpAddOffsets && s.Group == "":
		return "Neither the group's id nor its existence is looked at here (KafkaApis.handleAddOffsetsToTxnRequest)."
	}
	return ""
}

func whyEnd(s *Step, got Answer) string {
	switch s.Want.Err {
	case "INVALID_TXN_STATE":
		if s.Version >= 5 {
			return "With protocol 2 a commit needs an open transaction or must repeat one that was committed; an abort without one is a transaction of its own, which bumps the epoch (KIP-890; TransactionCoordinator.endTransaction)."
		}
		return "There is no open transaction, and this is no repeat of the outcome of the last (TransactionCoordinator.endTransactionWithTV1)."
	case "INVALID_REQUEST":
		return "An empty transactional id is refused (TransactionCoordinator.endTransaction)."
	case "INVALID_PRODUCER_ID_MAPPING":
		return "The id is unknown, or has another producer id; this is tested before the epoch and the state (TransactionCoordinator.endTransaction)."
	case "INVALID_PRODUCER_EPOCH":
		return whyOldVersion
	case "PRODUCER_FENCED":
		if s.Version >= 5 {
			return "With protocol 2 the epoch must be the current one, or one less for a repeat after the transaction has ended (KIP-890; TransactionCoordinator.endTransaction)."
		}
		return "The epoch must be the current one exactly, a higher one is refused too; this is tested before the state (TransactionCoordinator.endTransactionWithTV1)."
	case "":
		switch {
		case got.Err != "" && s.Version >= 5:
			return "A repeat with the epoch from before the transaction ended is answered with the current ids, and an abort without a transaction succeeds with an epoch more (KIP-890; TransactionCoordinator.endTransaction)."
		case got.Err != "":
			return "A repeat of the last outcome succeeds as long as no new transaction was begun (TransactionCoordinator.endTransactionWithTV1)."
		case s.Version >= 5:
			return "EndTxn 5 answers the ids for the next transaction: one epoch more, or another producer id at epoch 0 when 32766 was used; a repeat gets the same again (KIP-890; TransactionMetadata.prepareAbortOrCommit)."
		}
	}
	return ""
}

func whyGroup(s *Step, got Answer) string {
	out := s.Want.outcome()
	switch {
	case s.Op == OpOffsetFetch && got.Err != "":
		return "A group, topic or partition that has no offsets answers -1 for each partition, not an error (GroupCoordinatorService.fetchOffsets)."
	case s.Op == OpOffsetFetch && (strings.Contains(out, "UNSTABLE") || strings.Contains(got.outcome(), "UNSTABLE")):
		return "With require-stable a partition for which an open transaction holds an offset answers UNSTABLE_OFFSET_COMMIT and -1, and only that one (KIP-447; OffsetMetadataManager.fetchOffsets)."
	case s.Op == OpOffsetFetch:
		return "Offsets of an open or aborted transaction are never seen; those of a committed one replace what was committed before them, not what was committed plainly after them (KAFKA-5247; OffsetMetadataManager.replayEndTransactionMarker)."
	case s.Op == OpLeave:
		return "The group is missing or the member unknown: UNKNOWN_MEMBER_ID either way (GroupMetadataManager.classicGroupLeave)."
	case s.Op == OpJoin:
		return "Every completed round is one generation more, and so is the leaving of the last member (ClassicGroup)."
	case strings.Contains(out, "UNKNOWN_TOPIC_OR_PARTITION"):
		return "Partitions of an unknown topic are refused alone, the others are committed (KafkaApis)."
	case out == "ILLEGAL_GENERATION", out == "UNKNOWN_MEMBER_ID":
		return "The member is tested first (UNKNOWN_MEMBER_ID), then the generation (ILLEGAL_GENERATION); where there is no group yet, any generation from 0 on is an illegal one (KIP-447; ClassicGroup.validateOffsetCommit)."
	case s.Op == OpOffsetCommit:
		return ""
	case out == "INVALID_TXN_STATE", out == "TRANSACTION_ABORTABLE":
		return "The group must be in the transaction. Versions up to 3 are told INVALID_TXN_STATE where it is not, version 4 TRANSACTION_ABORTABLE, and from version 5 on the group is added by itself (KIP-890; CoordinatorRuntime.scheduleTransactionalWriteOperation, AddPartitionsToTxnManager)."
	case out == "INVALID_PRODUCER_EPOCH":
		return "A stale epoch is INVALID_PRODUCER_EPOCH in every version of TxnOffsetCommit: it is the group's log that refuses it, or the leader's verification (ProducerAppendInfo.checkProducerEpoch, AddPartitionsToTxnManager)."
	case out == "INVALID_PRODUCER_ID_MAPPING":
		return "The transaction's coordinator is asked first, before the group, the member and the generation are looked at (KIP-890; KafkaApis.handleTxnOffsetCommitRequest)."
	case out == "success":
		return "Where a transaction of exactly this producer id and epoch is open for the group, its coordinator is not asked again; a group that does not exist is made where no member and generation is named (GroupCoordinatorService.commitTransactionalOffsets)."
	}
	return ""
}

func whyProduce(s *Step, got Answer) string {
	if s.Want.outcome() == "INVALID_TOPIC_EXCEPTION" || got.outcome() == "INVALID_TOPIC_EXCEPTION" {
		return "Internal topics take no records from clients; the transaction is verified, or added to, before that is looked at (ReplicaManager.appendToLocalLog)."
	}
	switch s.Want.Err {
	case "INVALID_PRODUCER_EPOCH":
		return "A stale epoch is INVALID_PRODUCER_EPOCH in every version of Produce, never PRODUCER_FENCED (KAFKA-10687; ProducerAppendInfo.checkProducerEpoch, AddPartitionsToTxnManager)."
	case "INVALID_TXN_STATE", "TRANSACTION_ABORTABLE":
		if !s.Transactional {
			return "A batch that is not transactional is refused while its producer id has an open transaction on the partition (ProducerAppendInfo.appendDataBatch)."
		}
		return "The partition must be in the transaction. Versions up to 10 are told INVALID_TXN_STATE where it is not, version 11 TRANSACTION_ABORTABLE, and from version 12 on it is added by itself (KIP-890; AddPartitionsToTxnManager)."
	case "OUT_OF_ORDER_SEQUENCE_NUMBER":
		return "Under a new epoch the first sequence is 0, then each batch goes on where the last one ended (0 follows 2147483647). What a refused batch of the producer id announced counts as well, until a batch is accepted or a marker written (ProducerAppendInfo.checkSequence, VerificationStateEntry; KAFKA-18202)."
	case "INVALID_PRODUCER_ID_MAPPING":
		return "The transactional id is unknown or has another producer id (TransactionCoordinator.handleVerifyPartitionsInTransaction)."
	case "INVALID_RECORD":
		return "A batch with a producer id must have a base sequence of 0 or more (LogValidator.validateBatch)."
	case "":
		switch {
		case s.Producer == "none":
			return "A batch without a producer id is plain data, whatever its epoch, its sequence and its transactional bit say (UnifiedLog.analyzeAndValidateProducerState)."
		case got.Err == "OUT_OF_ORDER_SEQUENCE_NUMBER", got.Err == "DUPLICATE_SEQUENCE_NUMBER":
			return "One of the last five batches sent again succeeds with its first offset; 2147483647 is followed by 0; a producer id of which the partition knows nothing may begin anywhere (ProducerStateEntry.findDuplicateBatch, ProducerAppendInfo.checkSequence)."
		case got.Err == "":
			return "The offset tells which batches and markers the log has: a batch sent again gets its first offset, every partition of an ended transaction holds one marker (ProducerStateEntry.findDuplicateBatch, KafkaApis.handleWriteTxnMarkersRequest)."
		}
	}
	return ""
}

func whyMarkers(s *Step) string {
	if len(s.Txns) > 0 {
		return "Markers are written one after the other and answered by producer id; one whose producer id or epoch is -1 makes the whole request answer UNKNOWN_SERVER_ERROR, and those before it are written all the same (KafkaApis.handleWriteTxnMarkersRequest)."
	}
	switch s.Want.Err {
	case "INVALID_PRODUCER_EPOCH":
		return "A marker's producer epoch must not be below the partition's; with transaction version 2 it must be above, except for a repeat where no transaction is open (KIP-890, KIP-1228; ProducerAppendInfo.checkProducerEpoch)."
	case "TRANSACTION_COORDINATOR_FENCED":
		return "A marker of this producer id with a higher coordinator epoch was accepted before (ProducerAppendInfo.checkCoordinatorEpoch)."
	case "UNKNOWN_SERVER_ERROR":
		return "Producer id or producer epoch -1 makes the whole request fail (KafkaApis.handleWriteTxnMarkersRequest, MemoryRecordsBuilder.appendEndTxnMarker)."
	case "":
		return "A marker is written whether or not there is a transaction, also for a producer id that the partition never saw: no coordinator is asked (KafkaApis.handleWriteTxnMarkersRequest)."
	}
	return ""
}

func whyRead(s *Step, got Answer) string {
	if s.Want.Err != got.Err {
		if s.Want.Err == "TRANSACTIONAL_ID_NOT_FOUND" {
			return "Only InitProducerId makes a transactional id known (TransactionCoordinator.handleDescribeTransactions)."
		}
		return ""
	}
	ws, _ := differing(s.Want, got)
	if len(ws) == 0 {
		return ""
	}
	switch s.Op {
	case OpFetch:
		switch ws[0].name {
		case "last stable offset":
			return "The last stable offset is the first offset of the oldest open transaction, and the high watermark where none is open, at both isolation levels (ProducerStateManager.firstUnstableOffset)."
		case "aborted":
			return "Read-committed answers name each aborted transaction that has data from the fetch offset on, by producer id and first offset, in the order of their markers; read-uncommitted ones none (UnifiedLog.collectAbortedTransactions, TransactionIndex)."
		default:
			return "Each partition of an ended transaction holds one control batch with the producer's epoch, base sequence -1, a key of version 0 and type, a value of version 0 and the coordinator's epoch; read-committed answers end before the last stable offset (EndTransactionMarker, MemoryRecords.withEndTransactionMarker)."
		}
	case OpDescribeTxns:
		switch ws[0].name {
		case "epoch", "producer":
			return "The epoch is the stored one: with protocol 2 every end of a transaction bumps it, and so does the fencing of an open one by InitProducerId or its timeout (KIP-890, TransactionMetadata)."
		case "start time":
			return "A completed transaction keeps its start time until InitProducerId clears it (TransactionMetadata.prepareComplete)."
		case "partitions":
			return "A transaction shows the partitions that were added to it, and for each group one of __consumer_offsets, until its markers are written; a refused or verifying request adds none (TransactionMetadata)."
		case "timeout":
			return "The timeout is that of the last InitProducerId, or 2147483647 with two-phase commit (TransactionMetadata)."
		}
		return "Empty after InitProducerId, Ongoing from the first partition or group on, then CompleteCommit or CompleteAbort; an abort without a transaction ends in CompleteAbort with protocol 2 (TransactionState)."
	case OpListTxns:
		return "Ids of all states are listed, those that are Empty or completed too; filters of states and producer ids apply together; after a transaction the state is CompleteCommit or CompleteAbort until InitProducerId (TransactionStateManager.listTransactionStates)."
	case OpDescribeProducers:
		return "Every producer id with batches or a marker on the partition is listed: its epoch, the last sequence (-1 after a marker that raised the epoch, kept after one of the same epoch) and the first offset of its open transaction, -1 for none (ProducerStateManager.activeProducers)."
	}
	return ""
}
