package output

import "testing"

func TestDocsOfVersions(t *testing.T) {
	for version, want := range map[string]string{"v1.2.3": "v1.2.3", "": "main", "(devel)": "main", "v0.0.0-20261122063000-0123456789ab": "main", "v1.2.3+dirty": "main"} {
		if got := docsRef(version); got != want {
			t.Errorf("the documentation of %q is at %s, want %s", version, got, want)
		}
	}
}
