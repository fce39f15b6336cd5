module github.com/kafkatxn/kafkatxn

go 1.26.0

require github.com/google/renameio/v2 v2.0.2
