package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
)

// TestPageIsGenerated: docs/options.md is what go generate writes.
func TestPageIsGenerated(t *testing.T) {
	want := must.Get(generate("../../.."))(t)
	got := must.Get(os.ReadFile("../../../docs/options.md"))(t)
	check.That(t, string(got) == want,
		"docs/options.md differs from the comments of the options. In the root of the module, run: go generate .")
}

func TestGenerate(t *testing.T) {
	for name, x := range map[string]struct{ source, want string }{
		"first paragraph": {"type Options struct {\n// A is\n// [B.C] | D.\n//\n// More.\nA int\n}", "`A` | `B.C` \\| D."},
		"two names":       {"type Options struct {\n// A and B are these.\nA, B int\n}", "`A`, `B` | these."},
		"other struct":    {"type XOptions struct {\n// A adds.\nA int\n}", "`XOptions.A` | adds."},
		"nested":          {"type R struct {\n// Min is two.\nMin int\n}\ntype Options struct {\n// R is one.\nR R\n}", "`R` | one.\n`R.Min` | two."},
		"function":        {"type Option func()\n// With sets.\nfunc With() Option { return nil }", "`With` | sets."},
		"section":         {"type Options struct {\n// A is \"Some facts\" in the package comment.\nA int\n}", "`A` | [Some facts](https://pkg.go.dev/github.com/lockkeeper/lockkeeper/a#hdr-Some_facts)."},
		"no section":      {"type Options struct {\n// A is \"No facts\" in the package comment.\nA int\n}", "no section \"No facts\""},
		"no comment":      {"type Options struct {\nA int // here\n}", "package a: `A` has no comment"},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for dir, source := range map[string]string{"a": x.source, "tools": "type Options struct {\n// No is.\nNo int\n}"} {
				must.OK(t, os.Mkdir(filepath.Join(root, dir), 0o755))
				must.OK(t, os.WriteFile(filepath.Join(root, dir, "x.go"), []byte("// Package a is\n//\n// # Some facts\n//\n// here.\npackage a\n"+source), 0o644))
			}
			page, err := generate(root)
			switch {
			case x.want[0] != '`' && (err == nil || !strings.Contains(err.Error(), x.want)):
				t.Errorf("%v, want: %s", err, x.want)
			case x.want[0] == '`' && page != preface+"\n## a\n\n| option | description |\n|---|---|\n"+"| "+strings.ReplaceAll(x.want, "\n", " |\n| ")+" |\n":
				t.Errorf("%v\n%s", err, strings.TrimPrefix(page, preface))
			}
		})
	}
}

func TestRepeatedRowsRefer(t *testing.T) {
	p := page{seen: map[row]string{}}
	p.write("a/b", []row{{"`P.X`", "is"}, {"`Y`", "is"}})
	p.write("c", []row{{"`X`", "is"}, {"`Y`", "is"}, {"`Z`", "is"}})
	if want := "| `X`, `Y` | as in [a/b](#ab) |\n| `Z` | is |\n"; !strings.HasSuffix(p.text.String(), want) {
		t.Error(p.text.String())
	}
}
