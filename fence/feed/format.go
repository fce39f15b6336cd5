package feed

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/kafkatxn/kafkatxn/txnstate"
)

const fencesDir = "producer_fences"

func fileName(broker int32) string { return fmt.Sprintf("from-%d.json", broker) }

// parseFileName is the broker whose file has a name.
func parseFileName(name string) (int32, bool) {
	digits, ok := strings.CutPrefix(name, "from-")
	digits, ok2 := strings.CutSuffix(digits, ".json")
	n, err := strconv.ParseInt(digits, 10, 32)
	return int32(n), ok && ok2 && err == nil && fileName(int32(n)) == name
}

func path(dir string, broker int32) string {
	return filepath.Join(dir, fencesDir, fileName(broker))
}

// encode is a file with fences, in their order.
func encode(fences []txnstate.Producer) []byte {
	b := make([]byte, 0, 2+24*len(fences))
	b = append(b, '{')
	for i, p := range fences {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '"')
		b = strconv.AppendInt(b, p.ID, 10)
		b = append(b, `":`...)
		b = strconv.AppendInt(b, int64(p.Epoch), 10)
	}
	return append(b, '}')
}

// decode reads a file. The fences are in the order in which they stand there, one
// for each producer id; where one stands twice, the higher epoch counts.
func decode(data []byte) ([]txnstate.Producer, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	if t, err := dec.Token(); err != nil {
		return nil, err
	} else if t != json.Delim('{') {
		return nil, errors.New("not a JSON object")
	}
	var out []txnstate.Producer
	at := map[int64]int{}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return nil, err
		}
		name, _ := key.(string)
		id, err := strconv.ParseInt(name, 10, 64)
		if err != nil || id < 0 || strconv.FormatInt(id, 10) != name {
			return nil, fmt.Errorf("%.40q is not a producer id", name)
		}
		value, err := dec.Token()
		if err != nil {
			return nil, err
		}
		number, _ := value.(json.Number)
		epoch, err := strconv.ParseInt(number.String(), 10, 16)
		if err != nil || epoch < 0 {
			return nil, fmt.Errorf("producer id %d has %.40v and not an epoch from 0 to %d", id, value, math.MaxInt16)
		}
		if i, twice := at[id]; twice {
			out[i].Epoch = max(out[i].Epoch, int16(epoch))
			continue
		}
		at[id] = len(out)
		out = append(out, txnstate.Producer{ID: id, Epoch: int16(epoch)})
	}
	if _, err := dec.Token(); err != nil { // the closing brace
		return nil, err
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, errors.New("there is something after the JSON object")
	}
	return out, nil
}
