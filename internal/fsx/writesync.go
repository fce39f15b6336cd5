package fsx

import "runtime"

// WriteSync writes what take gives to f, syncs it and tells done; and once more, as
// long as done asks for that and there was no error.
//
// Where f shares its syncs with other files, take is called when the sync begins
// that it shares, and not before: so everything is in it that came while the one
// before was under way. done is told before the next one begins.
//
// Each take is followed by one done, also where nothing can be written. Both may be
// called by other goroutines, which hold locks of the file system: they do not
// block, and call nothing of the file system.
func WriteSync(f File, take func() (p []byte, off int64), done func(error) (again bool)) {
	if s, ok := f.(interface {
		WriteSync(func() ([]byte, int64), func(error) bool)
	}); ok {
		s.WriteSync(take, done)
		return
	}
	for {
		_, err := f.WriteAt(take())
		if err == nil {
			err = f.Sync()
		}
		if again := done(err); err != nil || !again {
			return
		}
		// Those whom done has woken go first, and share the next sync: else half of
		// them would wait for one more.
		runtime.Gosched()
	}
}
