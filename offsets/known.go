package offsets

// HasOffsets reports whether a group has a committed or a staged offset; what is
// only announced does not count. A host that keeps nothing of a group without
// members knows by it that the group exists (View). false also where the group's
// partition cannot be asked.
func (m *Manager) HasOffsets(group string) bool {
	p := m.of(group)
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.refusal() == nil && len(p.st.groups[group]) > 0
}
