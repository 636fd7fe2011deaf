package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestUsersOfThisRepository: who gets the root or an adapter, as the last commit would be tagged, can build the README's
// program or the adapter's examples, and can install the command.
func TestUsersOfThisRepository(t *testing.T) {
	repo := mustGit(t, ".", "rev-parse", "--show-toplevel")
	const version = "v0.0.0-test" // is never released
	err := rehearse(t.Output(), repo, version, func(dir string, mods []*module) error {
		for _, p := range moduleProblems(dir, mods) {
			t.Error(p)
		}
		return require(dir, mods, version)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func mustGit(t *testing.T, dir string, args ...string) string {
	t.Helper()
	out, err := git(dir, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// files are a small repository of which v0.1.0 can be released.
var files = map[string]string{
	"CHANGELOG.md":              "# Changelog\n\n## 0.1.0 (unreleased)\n\nThe first version.\n",
	"README.md":                 "```go\npackage main\n\nimport \"github.com/lockkeeper/lockkeeper\"\n\nfunc main() { println(lockkeeper.Answer) }\n```\n",
	"go.mod":                    "module github.com/lockkeeper/lockkeeper\n\ngo 1.26.0\n",
	"go.sum":                    "",
	"lockkeeper.go":             "package lockkeeper\n\nconst Answer = 42\n",
	"cmd/lockkeeper/main.go":    "package main\n\nimport (\n\t\"fmt\"\n\t\"runtime/debug\"\n)\n\nfunc main() {\n\tb, _ := debug.ReadBuildInfo()\n\tfmt.Println(\"lockkeeper\", b.Main.Version)\n}\n",
	"contrib/a/go.mod":          "module github.com/lockkeeper/lockkeeper/contrib/a\n\ngo 1.26.0\n\nrequire github.com/lockkeeper/lockkeeper v0.0.9\n",
	"contrib/a/go.sum":          "",
	"contrib/a/go.work":         "go 1.26.0\n\nuse .\n\nreplace github.com/lockkeeper/lockkeeper => ../..\n",
	"contrib/a/a.go":            "package a\n\nimport \"github.com/lockkeeper/lockkeeper\"\n\nconst Half = lockkeeper.Answer / 2\n",
	"contrib/a/example_test.go": "package a_test\n\nimport \"github.com/lockkeeper/lockkeeper/contrib/a\"\n\nfunc Example() { println(a.Half) }\n",
	"bench/go.mod":              "module github.com/lockkeeper/lockkeeper/bench\n\ngo 1.26.0\n\nreplace github.com/lockkeeper/lockkeeper => ../\n\nrequire github.com/lockkeeper/lockkeeper v0.0.9\n",
}

// repository returns a repository of these files, with changes, all committed. Its last commit has passed .ci/run.
func repository(t *testing.T, changes map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	mustGit(t, dir, "init", "--quiet")
	mustGit(t, dir, "config", "user.name", "test")
	mustGit(t, dir, "config", "user.email", "test@example.com")
	mustGit(t, dir, "config", "commit.gpgSign", "false")
	mustGit(t, dir, "config", "tag.gpgSign", "false")
	for _, list := range []map[string]string{files, changes} {
		for name, text := range list {
			write(t, dir, name, text)
		}
	}
	mustGit(t, dir, "add", "--all")
	mustGit(t, dir, "commit", "--quiet", "--message=first")
	mustGit(t, dir, "update-ref", passed, "HEAD")
	return dir
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	file := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, dir, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestRelease(t *testing.T) {
	t.Setenv("GOPROXY", "off")
	dir := repository(t, nil)
	before := mustGit(t, dir, "rev-parse", "HEAD")
	var out bytes.Buffer
	if err := release(&out, dir, "v0.1.0", false); err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(out.String(), "\n\n\tv0.1.0\n\tcontrib/a/v0.1.0\n") {
		t.Errorf("dry:\n%s", out.String())
	}
	if after := mustGit(t, dir, "rev-parse", "HEAD"); after != before || mustGit(t, dir, "status", "--porcelain") != "" || mustGit(t, dir, "tag") != "" {
		t.Errorf("a dry run has changed something:\n%s", mustGit(t, dir, "status"))
	}

	out.Reset()
	if err := release(&out, dir, "v0.1.0", true); err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(out.String(), "\tgit push --atomic origin HEAD v0.1.0 contrib/a/v0.1.0\n") {
		t.Errorf("applied:\n%s", out.String())
	}
	if parent := mustGit(t, dir, "rev-parse", "HEAD^"); parent != before || mustGit(t, dir, "status", "--porcelain") != "" {
		t.Errorf("not one commit on %s:\n%s", before, mustGit(t, dir, "status"))
	}
	if subject := mustGit(t, dir, "log", "-1", "--format=%s"); subject != "lockkeeper: release v0.1.0" {
		t.Error(subject)
	}
	tagged := strings.Fields(mustGit(t, dir, "tag", "--points-at", "HEAD"))
	if !slices.Equal(tagged, []string{"contrib/a/v0.1.0", "v0.1.0"}) {
		t.Errorf("tags %q", tagged)
	}
	if text := read(t, dir, "CHANGELOG.md"); !strings.Contains(text, "\n## 0.1.0 - 20") || strings.Contains(text, "unreleased") {
		t.Error(text)
	}
	for _, name := range []string{"contrib/a/go.mod", "bench/go.mod"} {
		if text := read(t, dir, name); !strings.HasSuffix(text, "\nrequire github.com/lockkeeper/lockkeeper v0.1.0\n") {
			t.Errorf("%s:\n%s", name, text)
		}
	}
	err := release(&out, dir, "v0.1.0", true)
	if err == nil || !strings.Contains(err.Error(), "there are tags of this version: contrib/a/v0.1.0 v0.1.0") {
		t.Errorf("a second time: %v", err)
	}
}

// TestProblems: what stands in the way is said, and nothing is released.
func TestProblems(t *testing.T) {
	t.Parallel()
	mod := files["contrib/a/go.mod"]
	for _, c := range []struct {
		name, version string
		changes       map[string]string
		then          func(t *testing.T, dir string)
		want          string
	}{
		{name: "no version", version: "", want: `the version "" is not of the form v1.2.3`},
		{name: "no v", version: "0.1.0", want: `the version "0.1.0" is not of the form v1.2.3`},
		{name: "build metadata", version: "v0.1.0+x", want: `the version "v0.1.0+x" is not of the form`},
		{name: "pseudo-version", version: "v0.0.0-20260101000000-0123456789ab", want: "is not of the form"},
		{name: "another major version", version: "v2.0.0", want: "should be v0 or v1"},
		{name: "uncommitted change", then: func(t *testing.T, dir string) { write(t, dir, "README.md", "") }, want: "what is not committed:\n M README.md"},
		{name: "uncommitted file", then: func(t *testing.T, dir string) { write(t, dir, "new.go", "") }, want: "what is not committed:\n?? new.go"},
		{name: "commit that was not tested", then: func(t *testing.T, dir string) {
			mustGit(t, dir, "commit", "--quiet", "--allow-empty", "--message=second")
		}, want: "the commit has not passed .ci/run"},
		{name: "a tag", then: func(t *testing.T, dir string) { mustGit(t, dir, "tag", "contrib/a/v0.1.0") }, want: "there are tags of this version: contrib/a/v0.1.0"},
		{name: "later version", then: func(t *testing.T, dir string) { mustGit(t, dir, "tag", "v0.10.0") }, want: "the later version v0.10.0 has been released"},
		{name: "replacement", changes: map[string]string{"contrib/a/go.mod": mod + "\nreplace github.com/lockkeeper/lockkeeper => ../..\n"},
			want: "contrib/a: go.mod replaces github.com/lockkeeper/lockkeeper"},
		{name: "no go.work", changes: map[string]string{"contrib/b/go.mod": strings.ReplaceAll(mod, "/a\n", "/b\n")},
			want: "contrib/b: go.work does not replace github.com/lockkeeper/lockkeeper"},
		{name: "requires what is not published", changes: map[string]string{"contrib/a/go.mod": mod + "require github.com/lockkeeper/lockkeeper/bench v0.0.9\n"},
			want: "contrib/a: go.mod requires github.com/lockkeeper/lockkeeper/bench, which is not tagged before it"},
		{name: "requires what is tagged later", changes: map[string]string{"go.mod": files["go.mod"] + "require github.com/lockkeeper/lockkeeper/contrib/a v0.0.9\n"},
			want: ".: go.mod requires github.com/lockkeeper/lockkeeper/contrib/a, which is not tagged before it"},
		{name: "wrong path", changes: map[string]string{"contrib/b/go.mod": "module github.com/lockkeeper/lockkeeper/b\n"},
			want: "contrib/b: its path is github.com/lockkeeper/lockkeeper/b, not github.com/lockkeeper/lockkeeper/contrib/b"},
		{name: "unknown module", changes: map[string]string{"new/go.mod": "module github.com/lockkeeper/lockkeeper/new\n"},
			want: "tools/release/modules.go does not say whether new is published"},
		{name: "no section", changes: map[string]string{"CHANGELOG.md": "# Changelog\n\n## 0.0.9 - 2026-01-01\n\nText.\n"},
			want: `the first section of CHANGELOG.md is not "## 0.1.0 (unreleased)"`},
		{name: "section of another version", version: "v0.2.0", want: `the first section of CHANGELOG.md is not "## 0.2.0 (unreleased)"`},
		{name: "empty section", changes: map[string]string{"CHANGELOG.md": "# Changelog\n\n## 0.1.0 (unreleased)\n\n## 0.0.9 - 2026-01-01\n\nText.\n"},
			want: "CHANGELOG.md says nothing about 0.1.0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := repository(t, c.changes)
			if c.then != nil {
				c.then(t, dir)
			}
			version := c.version
			if version == "" && c.name != "no version" {
				version = "v0.1.0"
			}
			before := mustGit(t, dir, "for-each-ref")
			err := release(t.Output(), dir, version, true)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %s", err, c.want)
			}
			if after := mustGit(t, dir, "for-each-ref"); after != before {
				t.Errorf("before:\n%s\nafter:\n%s", before, after)
			}
		})
	}
}

// TestUserCannotBuild: what users could not build is not released.
func TestUserCannotBuild(t *testing.T) {
	t.Setenv("GOPROXY", "off")
	for _, c := range []struct{ name, file, old, new, want string }{
		{"example", "contrib/a/example_test.go", "a.Half", "a.Third", "a user of github.com/lockkeeper/lockkeeper/contrib/a: go test"},
		{"program of the README", "README.md", "Answer", "Question", "a user of github.com/lockkeeper/lockkeeper: go build"},
		{"command without its version", "cmd/lockkeeper/main.go", "b.Main.Version", "b.Main.Path", "the command of v0.1.0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := repository(t, map[string]string{c.file: strings.Replace(files[c.file], c.old, c.new, 1)})
			err := release(t.Output(), dir, "v0.1.0", true)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %s", err, c.want)
			}
			if list := mustGit(t, dir, "tag"); list != "" {
				t.Errorf("tags %s", list)
			}
		})
	}
}

func TestDated(t *testing.T) {
	t.Parallel()
	const before = "# Changelog\n\nText.\n\n## 0.2.0 (unreleased)\n\n- New.\n\n## 0.1.0 - 2026-01-01\n\n- Old.\n"
	got, err := dated(before, "v0.2.0", time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC))
	want := strings.Replace(before, "0.2.0 (unreleased)", "0.2.0 - 2026-03-04", 1)
	if err != nil || got != want {
		t.Errorf("%v\n%s", err, got)
	}
}
