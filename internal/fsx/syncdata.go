package fsx

// SyncData is f.Sync without what nobody needs in order to read the bytes again,
// the time of modification say: on Linux, where a file is overwritten in place,
// the journal of the file system has no part in it. A file system that can't tell
// the two apart syncs all.
func SyncData(f File) error {
	if d, ok := f.(interface{ SyncData() error }); ok {
		return d.SyncData()
	}
	return f.Sync()
}
