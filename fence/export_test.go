package fence

import "unsafe"

const (
	ProducerSize = unsafe.Sizeof(producer{})
	PendingSize  = unsafe.Sizeof(pending{})
)
