package doctor

import (
	"runtime/debug"
	"strings"
)

// operations is where docs/operations.md can be read: who has only installed the command has no copy of it.
func operations() string {
	at := "main"
	if info, ok := debug.ReadBuildInfo(); ok {
		at = branchOf(info.Main.Version)
	}
	return "https://github.com/lockkeeper/lockkeeper/blob/" + at + "/docs/operations.md"
}

// branchOf is what has the documentation of a version: its tag, if it is a release.
func branchOf(version string) string {
	if !strings.HasPrefix(version, "v") || strings.ContainsAny(version, "-+") {
		return "main"
	}
	return version
}
