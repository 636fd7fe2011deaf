package output

import (
	"runtime/debug"
	"strings"
)

// DocsURL is the address of a page of the documentation: users who have only installed the command have no copy of it.
func DocsURL(page string) string {
	ref := "main"
	if info, ok := debug.ReadBuildInfo(); ok {
		ref = docsRef(info.Main.Version)
	}
	return "https://github.com/lockkeeper/lockkeeper/blob/" + ref + "/docs/" + page
}

// docsRef returns the Git ref that has the documentation of a version: its tag if it is a release, otherwise main.
func docsRef(version string) string {
	if !strings.HasPrefix(version, "v") || strings.ContainsAny(version, "-+") {
		return "main"
	}
	return version
}
