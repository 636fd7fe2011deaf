package main

import (
	"cmp"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
)

// Which modules are published, in the order of their tags. The others are for the development of this repository: they
// replace what they require of it.
var (
	published   = []string{".", "otellockkeeper", "contrib/*"}
	unpublished = []string{"bench", "examples/*", "inspector/browsertest", "tools"}
)

const rootPath = "github.com/lockkeeper/lockkeeper"

// module is a module of this repository.
type module struct {
	dir       string // from the root, with slashes; "." is the root
	published bool
	order     int // index in published, or behind it in unpublished
	file      *modfile.File
}

func (m *module) path() string { return m.file.Module.Mod.Path }

// tag returns the tag at which the go command looks for a version of the module.
func (m *module) tag(version string) string { return path.Join(m.dir, version) }

// modules returns the modules of a repository in the order of their tags, those that are not published at the end.
func modules(repo string) ([]*module, error) {
	files, err := git(repo, "ls-files", "go.mod", "*/go.mod")
	if err != nil {
		return nil, err
	}
	var mods []*module
	for file := range strings.Lines(files) {
		file = strings.TrimSpace(file)
		m := &module{dir: path.Dir(file)}
		m.order = slices.IndexFunc(slices.Concat(published, unpublished), m.matches)
		if m.order < 0 {
			return nil, fmt.Errorf("tools/release/modules.go does not say whether %s is published", m.dir)
		}
		m.published = m.order < len(published)
		if m.file, err = readModule(repo, m.dir); err != nil {
			return nil, err
		}
		mods = append(mods, m)
	}
	slices.SortStableFunc(mods, func(a, b *module) int { return cmp.Compare(a.order, b.order) })
	return mods, nil
}

func (m *module) matches(pattern string) bool {
	ok, err := path.Match(pattern, m.dir)
	return ok && err == nil
}

func readModule(repo, dir string) (*modfile.File, error) {
	file := filepath.Join(repo, filepath.FromSlash(dir), "go.mod")
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return modfile.Parse(path.Join(dir, "go.mod"), data, nil)
}

// tags returns the tags of the published modules in order.
func tags(mods []*module, version string) (list []string) {
	for _, m := range mods {
		if m.published {
			list = append(list, m.tag(version))
		}
	}
	return list
}

// require writes the version into the go.mod of every module in dir that requires another one of the repository.
func require(dir string, mods []*module, version string) error {
	for _, m := range mods {
		file, err := readModule(dir, m.dir)
		if err != nil {
			return err
		}
		for _, r := range file.Require {
			if !ours(r.Mod.Path) {
				continue
			}
			if err := file.AddRequire(r.Mod.Path, version); err != nil {
				return err
			}
		}
		data, err := file.Format()
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.FromSlash(m.dir), "go.mod"), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// ours reports whether the path is that of a module of this repository.
func ours(modulePath string) bool {
	return modulePath == rootPath || strings.HasPrefix(modulePath, rootPath+"/")
}
