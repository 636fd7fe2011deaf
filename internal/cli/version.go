package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// version is the output of --version: the version of the module or, in a build from a checkout, the commit.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown, " + runtime.Version()
	}
	return versionOf(info)
}

func versionOf(info *debug.BuildInfo) string {
	v := info.Main.Version
	if v == "" || v == "(devel)" {
		v = "devel"
		var commit, modified string
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision":
				commit = " " + s.Value
			case s.Key == "vcs.modified" && s.Value == "true":
				modified = ", modified"
			}
		}
		v += commit + modified
	}
	return fmt.Sprintf("%s, %s, %s/%s", v, info.GoVersion, runtime.GOOS, runtime.GOARCH)
}
