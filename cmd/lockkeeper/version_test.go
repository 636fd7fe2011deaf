package main

import (
	"encoding/json"
	"runtime"
	"strings"
	"testing"
)

func TestVersion(t *testing.T) {
	t.Parallel()
	c := command(t, "--version")
	c.ends(0)
	if !strings.HasPrefix(c.out.String(), "lockkeeper version ") || !strings.Contains(c.out.String(), "go1.") {
		t.Errorf("%q", c.out.String())
	}
	c = command(t, "version")
	c.ends(0)
	for _, text := range []string{"lockkeeper devel\n", "\ncommit  ", "\nGo  ", "\nprotocol  "} {
		if !strings.Contains(c.out.String(), text) {
			t.Errorf("no %q in %q", text, c.out.String())
		}
	}
	c = command(t, "version", "--json")
	c.ends(0)
	var b struct {
		Version, Commit, Go, Platform, Protocol string
		Modified                                *bool
	}
	if err := json.Unmarshal(c.out.Bytes(), &b); err != nil || b.Go != runtime.Version() || b.Platform != runtime.GOOS+"/"+runtime.GOARCH || len(b.Protocol) != 12 || b.Modified == nil {
		t.Errorf("%v: %s", err, c.out.String())
	}
}
