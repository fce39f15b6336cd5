package feed

import (
	"bytes"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/txnstate"
)

func TestTheFileIsAsDocumented(t *testing.T) {
	want, err := os.ReadFile("testdata/from-3.json")
	require.NoError(t, err)
	fences := []txnstate.Producer{{ID: 102, Epoch: 3}, {ID: 7, Epoch: 12}, {ID: math.MaxInt64, Epoch: math.MaxInt16}, {ID: 0, Epoch: 0}}
	require.Equal(t, string(want), string(encode(fences)))
	got, err := decode(want)
	require.NoError(t, err)
	require.Equal(t, fences, got)
	require.Equal(t, "producer_fences/from-3.json", path("", 3))
	require.Equal(t, "{}", string(encode(nil)))
}

func TestFilesOfOtherSystemsAreRead(t *testing.T) {
	got, err := decode([]byte("{\n  \"102\" : 3 ,\n \"7\":0}\n"))
	require.NoError(t, err)
	require.Equal(t, []txnstate.Producer{{ID: 102, Epoch: 3}, {ID: 7, Epoch: 0}}, got)
	got, err = decode([]byte(`{"7":3,"8":1,"7":2}`))
	require.NoError(t, err)
	require.Equal(t, []txnstate.Producer{{ID: 7, Epoch: 3}, {ID: 8, Epoch: 1}}, got, "the higher epoch of two")
}

func TestWhatIsNotAFileOfFences(t *testing.T) {
	for _, bad := range []string{
		"", " ", "{", `{"102":3`, `{"102":3,`, `{"102":3}}`, `{"102":3}x`, "null", "[]", "3", `"102"`, `{"102"}`,
		`{"x":3}`, `{"-1":3}`, `{"+1":3}`, `{"01":3}`, `{"9223372036854775808":3}`,
		`{"102":-1}`, `{"102":32768}`, `{"102":1.5}`, `{"102":1e2}`, `{"102":"3"}`, `{"102":null}`, `{"102":[3]}`, `{"102":{}}`, `{"102":true}`,
	} {
		_, err := decode([]byte(bad))
		require.Error(t, err, bad)
	}
	for name, want := range map[string]bool{
		"from-3.json": true, "from-0.json": true, "from--3.json": true, "from-03.json": false, "from-3.json.damaged": false,
		".from-3.json.XYZ": false, "from-.json": false, "to-3.json": false, "from-3": false, "from-4294967296.json": false,
	} {
		_, ok := parseFileName(name)
		require.Equal(t, want, ok, name)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"102":3,"7":12}`))
	f.Add([]byte(`{"7":3,"7":2}`))
	f.Add([]byte(` { } `))
	f.Fuzz(func(t *testing.T, b []byte) {
		fences, err := decode(b)
		if err != nil {
			return
		}
		for _, p := range fences {
			if p.ID < 0 || p.Epoch < 0 {
				t.Fatal(p)
			}
		}
		again, err := decode(encode(fences))
		if err != nil || !slices.Equal(again, fences) {
			t.Fatalf("%v, %v, want %v", again, err, fences)
		}
		if len(fences) > len(bytes.TrimSpace(b)) {
			t.Fatal("more fences than bytes")
		}
	})
}
