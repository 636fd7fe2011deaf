package main

import (
	"runtime"
	"testing"
)

func TestVersion(t *testing.T) {
	t.Parallel()
	command(t, "--version").ends(0).prints("lockkeeper version ", "go1.")
	command(t, "version").ends(0).prints("lockkeeper devel\n", "\ncommit  ", "\nGo  ", "\nprotocol  ")
	var b struct {
		Version, Commit, Go, Platform, Protocol string
		Modified                                *bool
	}
	command(t, "version", "--json").ends(0).decode(&b)
	if b.Go != runtime.Version() || b.Platform != runtime.GOOS+"/"+runtime.GOARCH || len(b.Protocol) != 12 || b.Modified == nil {
		t.Errorf("%+v", b)
	}
}
