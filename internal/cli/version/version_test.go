package version

import (
	"runtime/debug"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/check"
)

func TestVersionOfBuilds(t *testing.T) {
	info := &debug.BuildInfo{GoVersion: "go1.x", Main: debug.Module{Version: "v1.2.3"}}
	if got := buildOf(info).String(); !strings.HasPrefix(got, "v1.2.3, go1.x, ") {
		t.Error(got)
	}
	info.Main.Version = "(devel)"
	info.Settings = []debug.BuildSetting{{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.modified", Value: "true"}}
	b := buildOf(info)
	if got := b.String(); !strings.HasPrefix(got, "devel abc, modified, go1.x, ") {
		t.Error(got)
	}
	check.That(t, b.Version == "devel" && b.Commit == "abc" && b.Modified && len(b.Protocol) == 12, "%+v", b)
}
