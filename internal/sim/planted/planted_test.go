package planted_test

import (
	"go/parser"
	"go/token"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kafkatxn/kafkatxn/internal/sim/planted"
)

func TestEveryPlantedDefectStillApplies(t *testing.T) {
	t.Parallel()
	all, err := planted.All()
	require.NoError(t, err)
	assert.GreaterOrEqual(t, len(all), 30)
	names := map[string]bool{}
	for _, d := range all {
		assert.False(t, names[d.Name], d.Name)
		names[d.Name] = true
		files, err := d.Apply("../../..")
		require.NoError(t, err)
		assert.NotEmpty(t, files)
		for name, b := range files {
			_, err := parser.ParseFile(token.NewFileSet(), name, b, parser.SkipObjectResolution)
			require.NoError(t, err, d.Name)
		}
	}
}
