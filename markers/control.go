package markers

import "errors"

// ErrNotMarker is of a control batch of another kind.
var ErrNotMarker = errors.New("markers: a control batch that ends no transaction")

// AppendControlBatch appends the marker as it stands in a log.
func AppendControlBatch(dst []byte, m Marker, offset int64, leaderEpoch int32, timestampMs int64) []byte {
	return dst
}

// ParseControlBatch reads a marker.
func ParseControlBatch(batch []byte) (m Marker, timestampMs int64, err error) {
	return Marker{}, 0, nil
}
