package pidalloc

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// nextBlockKey is spelled as the system that introduced the file spells it.
const nextBlockKey = "nextBlock"

func encodeBlockFile(next int64) []byte {
	return fmt.Appendf(nil, `{"%s":%d}`, nextBlockKey, next)
}

// decodeBlockFile reads the number of the JSON file. Other keys are passed over,
// so that a later version may add some. It is strict about the one that counts,
// for a number that is read wrongly is an id given out twice: encoding/json
// alone would take another capitalisation for it, and the last of two values.
func decodeBlockFile(data []byte) (int64, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	if t, err := dec.Token(); err != nil {
		return 0, err
	} else if t != json.Delim('{') {
		return 0, errors.New("not a JSON object")
	}
	next := int64(-1)
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return 0, err
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return 0, err
		}
		if key != nextBlockKey {
			continue
		}
		if next >= 0 {
			return 0, fmt.Errorf("%s occurs twice", nextBlockKey)
		}
		n, err := strconv.ParseInt(string(value), 10, 64)
		if err != nil || n < 0 || n > sliceSize {
			return 0, fmt.Errorf("%s is not a number from 0 to %d", nextBlockKey, sliceSize)
		}
		next = n
	}
	if _, err := dec.Token(); err != nil { // the closing brace
		return 0, err
	}
	if _, err := dec.Token(); err != io.EOF {
		return 0, errors.New("there is something after the JSON object")
	}
	if next < 0 {
		return 0, fmt.Errorf("%s is missing", nextBlockKey)
	}
	return next, nil
}

// The random names of chains are of the letters and digits of base 32, with no
// dash and nothing that means something to a file system.
const chainLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"

// isChain says whether s can be the name of a chain. A file that was cut short
// by a crash is not: its name would be a chain without a token.
func isChain(s string) bool {
	return len(s) == 26 && strings.Trim(s, chainLetters) == ""
}

// tokenName is the name of a chain's token that stands at a local number.
func tokenName(chain string, at int64) string {
	return chain + "-" + strconv.FormatInt(at, 10)
}

// parseToken is where the token named so stands, if it is one of the chain. A
// number spelled in another way than tokenName does is not taken for it.
func parseToken(chain, name string) (int64, bool) {
	digits, ok := strings.CutPrefix(name, chain+"-")
	if !ok {
		return 0, false
	}
	at, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || at < 0 || at > sliceSize || tokenName(chain, at) != name {
		return 0, false
	}
	return at, true
}
