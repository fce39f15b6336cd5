package offsets

import "context"

// Idle returns when nothing is on its way to the log.
func (m *Manager) Idle() {
	for _, p := range m.parts {
		_ = p.idle(context.Background()) // which does not end
	}
}

// Dump is all that a Manager knows, in a form to compare.
func (m *Manager) Dump() string { return dump(m) }

// Neighbour is another group in the same offsets partition.
func Neighbour(group string) string { return neighbour(group) }

// SetCopyFrom makes a FileLog copy files of this size.
func (l *FileLog) SetCopyFrom(n int64) { l.copyFrom = n }
