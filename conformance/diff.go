package conformance

import (
	"bytes"
	"encoding/json"
)

// equal compares as JSON does, for which an empty list is none.
func (a Answer) equal(b Answer) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}
