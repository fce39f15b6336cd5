module github.com/kafkatxn/kafkatxn/internal/histories

go 1.26.0

require (
	github.com/anishathalye/porcupine v1.3.1
	github.com/kafkatxn/kafkatxn v0.0.0
	go.uber.org/goleak v1.3.0
)

require (
	github.com/google/renameio/v2 v2.0.2 // indirect
	golang.org/x/sync v0.25.0 // indirect
)

replace github.com/kafkatxn/kafkatxn => ../..
