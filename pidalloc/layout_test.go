package pidalloc

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var corruptFiles = []string{
	"",
	"{not json",
	"null",
	"5",
	`"nextBlock"`,
	`[{"nextBlock":1000}]`,
	"{}",
	`{"next":1000}`,
	`{"NextBlock":1000}`,
	`{"nextblock":1000}`,
	`{"nextBlock":null}`,
	`{"nextBlock":"1000"}`,
	`{"nextBlock":1e3}`,
	`{"nextBlock":1000.0}`,
	`{"nextBlock":-1}`,
	`{"nextBlock":1099511627777}`,
	`{"nextBlock":99999999999999999999}`,
	`{"nextBlock":1000,"nextBlock":0}`,
	`{"nextBlock":1000`,
	`{"nextBlock":100`,
	`{"nextBlock":1000}{"nextBlock":0}`,
	`{"nextBlock":1000}x`,
	"\x00\x00\x00\x00",
}

func TestTheDecoderRefusesWhatItCannotBeSureOf(t *testing.T) {
	t.Parallel()
	for _, content := range corruptFiles {
		_, err := decodeBlockFile([]byte(content))
		assert.Error(t, err, "%q", content)
	}
}

func TestTheDecoderReadsWhatAnyWriterOfTheFileMayWrite(t *testing.T) {
	t.Parallel()
	for content, want := range map[string]int64{
		`{"nextBlock":0}`:                         0,
		`{"nextBlock":1000}`:                      1000,
		"{\n  \"nextBlock\": 2500\n}\n":           2500,
		`{"version":2,"nextBlock":3,"x":{"y":1}}`: 3,
		`{"nextBlock":1099511627776}`:             sliceSize,
	} {
		got, err := decodeBlockFile([]byte(content))
		require.NoError(t, err, content)
		assert.Equal(t, want, got, content)
	}
}

func FuzzDecodeBlockFile(f *testing.F) {
	for _, content := range corruptFiles {
		f.Add([]byte(content))
	}
	f.Add([]byte(`{"nextBlock":1000}`))
	f.Add([]byte(`{"x":[1,2],"nextBlock":7}`))
	// What decodes is in range, and what is encoded decodes to the same.
	f.Fuzz(func(t *testing.T, data []byte) {
		n, err := decodeBlockFile(data)
		if err != nil {
			require.Zero(t, n)
			return
		}
		require.True(t, 0 <= n && n <= sliceSize, "%d", n)
		again, err := decodeBlockFile(encodeBlockFile(n))
		require.NoError(t, err)
		require.Equal(t, n, again)
	})
}

func FuzzParseToken(f *testing.F) {
	const chain = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	for _, name := range []string{chain + "-0", chain + "-1000", chain + "-+1", chain + "-01", chain + "--1", "chain", "", chain} {
		f.Add(name)
	}
	// A name is taken for a token only if it is the one name of that token.
	f.Fuzz(func(t *testing.T, name string) {
		at, ok := parseToken(chain, name)
		if ok {
			require.Equal(t, fmt.Sprintf("%s-%d", chain, at), name)
			require.True(t, 0 <= at && at <= sliceSize)
		}
	})
}
