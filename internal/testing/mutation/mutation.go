// Package mutation puts deliberate bugs into the sources of this module, so that tests can show that they find them.
package mutation

import (
	"bytes"
	"crypto/sha1"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/lockkeeper/lockkeeper/lua"
)

// Script returns a script that package lua does not have, or one of its own with another text.
func Script(name, text string, keys ...lua.Key) *lua.Script {
	sum := sha1.Sum([]byte(text))
	return &lua.Script{Name: name, Text: text, SHA: hex.EncodeToString(sum[:]), Keys: keys}
}

// Mutant is a deliberate bug: in a file of this module, a text that occurs once is replaced.
type Mutant struct {
	File     string // below the root of the module
	Old, New string
}

// Source returns the path of the file and its text with the bug. The test fails unless the text to be replaced occurs exactly once.
func (m Mutant) Source(t *testing.T, root string) (path string, text []byte) {
	t.Helper()
	path = filepath.Join(root, m.File)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(text, []byte(m.Old)); n != 1 {
		t.Fatalf("%q occurs %d times in %s, want once", m.Old, n, m.File)
	}
	return path, bytes.Replace(text, []byte(m.Old), []byte(m.New), 1)
}

// Build builds the tests of the package in the current directory with the bug, and returns the binary.
func (m Mutant) Build(t *testing.T, root string) (binary string) {
	t.Helper()
	return m.BuildPackage(t, root, ".")
}

// BuildPackage is Build for the package in another directory.
func (m Mutant) BuildPackage(t *testing.T, root, dir string) (binary string) {
	t.Helper()
	path, text := m.Source(t, root)
	return BuildWith(t, dir, map[string][]byte{path: text})
}

// BuildWith builds the tests of the package in a directory with other texts of these files, by their paths, and returns the binary.
func BuildWith(t *testing.T, dir string, texts map[string][]byte) (binary string) {
	t.Helper()
	temp := t.TempDir()
	overlay := filepath.Join(temp, "overlay")
	binary = filepath.Join(temp, "binary")
	write := func(file string, text []byte) {
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	replace := map[string]string{}
	for path, text := range texts {
		replace[path] = filepath.Join(temp, strconv.Itoa(len(replace)))
		write(replace[path], text)
	}
	list, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	write(overlay, list)
	build := exec.Command("go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-overlay", overlay, "-o", binary, ".")
	build.Dir = dir
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return binary
}
