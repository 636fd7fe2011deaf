package tested

import (
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/example"
)

// TestDocumentedCodeIsTested: the code in docs/testing-your-code.md is that of this package.
func TestDocumentedCodeIsTested(t *testing.T) {
	example.RequireTested(t, example.Code(t, "../../docs/testing-your-code.md"), example.Code(t, "export.go", "export_test.go"))
}
