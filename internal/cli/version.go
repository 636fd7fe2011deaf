package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// version is what --version says: the module's version, or the commit that a build from a checkout was made of.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown, " + runtime.Version()
	}
	return versionOf(info)
}

func versionOf(info *debug.BuildInfo) string {
	of := info.Main.Version
	if of == "" || of == "(devel)" {
		of = "devel"
		var commit, changed string
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision":
				commit = " " + s.Value
			case s.Key == "vcs.modified" && s.Value == "true":
				changed = ", changed since"
			}
		}
		of += commit + changed
	}
	return fmt.Sprintf("%s, %s, %s/%s", of, info.GoVersion, runtime.GOOS, runtime.GOARCH)
}
