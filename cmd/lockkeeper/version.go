package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
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
