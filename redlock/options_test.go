package redlock

import (
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"os"
	"regexp"
	"testing"
)

// TestDefaultMaxRetryDelayMatchesDocs: docs/options.md is made of the comments.
func TestDefaultMaxRetryDelayMatchesDocs(t *testing.T) {
	page := must.Get(os.ReadFile("../docs/options.md"))(t)
	m := regexp.MustCompile("(?m)^\\| `MaxRetryDelay` \\|.* Default (\\d+) (ms)\\.").FindSubmatch(page)
	check.That(t, m != nil && string(m[1])+string(m[2]) == defaultMaxRetryDelay.String(),
		"docs/options.md says %q, it is %v", m, defaultMaxRetryDelay)
}
