package processes

import (
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/parallel"
	"github.com/lockkeeper/lockkeeper/internal/testing/quiet"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	quiet.Redis()
	parallel.Tests("8")
	goleak.VerifyTestMain(m)
}
