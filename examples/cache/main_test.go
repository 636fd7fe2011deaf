package main

import (
	"testing"
	"time"
)

func TestLockPreventsMixedVersions(t *testing.T) {
	got, err := run("", time.Second)
	if err != nil {
		t.Fatal(err)
	}
	got.print(t.Output()) // how many mixes there are without the lock is a matter of chance
	if got.guarded.reads == 0 || got.refreshes == 0 {
		t.Error("nothing was done")
	}
	if got.guarded.mixes != 0 {
		t.Errorf("%d stale mixes under the lock", got.guarded.mixes)
	}
}

func TestMixedVersionsDetected(t *testing.T) {
	whole, other := version(1), version(11)
	if whole.mixed() {
		t.Errorf("%q is a mix", whole)
	}
	if mix := (document{whole.Title, other.Text}); !mix.mixed() {
		t.Errorf("%q is no mix", mix)
	}
}
