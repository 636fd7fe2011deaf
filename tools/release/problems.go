package main

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/mod/modfile"
	modpath "golang.org/x/mod/module"
	"golang.org/x/mod/semver"
)

const (
	changelog = "CHANGELOG.md"
	passed    = "refs/ci/passed" // where .ci/run notes the commit that has passed it
)

// problems returns what stands in the way of a release of the repository's last commit.
func problems(repo string, mods []*module, version string) (found []string, err error) {
	problem := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }

	if err := checkVersion(version); err != nil {
		return []string{err.Error()}, nil // other problems would be about it
	}
	earlier, err := git(repo, "tag", "--merged", "HEAD", "--list", "v*")
	if err != nil {
		return nil, err
	}
	for tag := range strings.Lines(earlier) {
		if tag = strings.TrimSpace(tag); semver.Compare(tag, version) > 0 {
			problem("the later version %s has been released from this branch", tag)
		}
	}
	existing, err := git(repo, append([]string{"tag", "--list"}, tags(mods, version)...)...)
	if err != nil {
		return nil, err
	}
	if existing != "" {
		problem("there are tags of this version: %s", strings.Join(strings.Fields(existing), " "))
	}

	changed, err := git(repo, "status", "--porcelain")
	if err != nil {
		return nil, err
	}
	if changed != "" {
		problem("what is not committed:\n%s", changed)
	}
	head, err := git(repo, "rev-parse", "HEAD")
	if err != nil {
		return nil, err
	}
	if good, err := git(repo, "rev-parse", "--verify", "--quiet", passed); err != nil || good != head {
		problem("the commit has not passed .ci/run in this repository")
	}

	found = append(found, moduleProblems(repo, mods)...)

	text, err := os.ReadFile(filepath.Join(repo, changelog))
	if err != nil {
		return nil, err
	}
	if _, err := dated(string(text), version, time.Now()); err != nil {
		problem("%v", err)
	}
	return found, nil
}

// moduleProblems returns what is wrong with the go.mod and go.work files, in any version.
func moduleProblems(repo string, mods []*module) (found []string) {
	problem := func(m *module, format string, args ...any) {
		found = append(found, m.dir+": "+fmt.Sprintf(format, args...))
	}
	tagged := map[string]bool{} // before the module looked at
	for _, m := range mods {
		if want := path.Join(rootPath, m.dir); m.path() != want {
			problem(m, "its path is %s, not %s", m.path(), want)
		}
		if !m.published {
			continue
		}
		for _, r := range m.file.Replace {
			problem(m, "go.mod replaces %s; development replaces it in go.work", r.Old.Path)
		}
		replaced, err := replacedForDevelopment(repo, m)
		if err != nil {
			problem(m, "%v", err)
		}
		for _, r := range m.file.Require {
			switch {
			case !ours(r.Mod.Path):
			case !tagged[r.Mod.Path]:
				problem(m, "go.mod requires %s, which is not tagged before it", r.Mod.Path)
			case err == nil && !replaced[r.Mod.Path]:
				problem(m, "go.work does not replace %s", r.Mod.Path)
			}
		}
		tagged[m.path()] = true
	}
	return found
}

// replacedForDevelopment returns the paths of what the module's go.work replaces.
func replacedForDevelopment(repo string, m *module) (map[string]bool, error) {
	name := path.Join(m.dir, "go.work")
	data, err := os.ReadFile(filepath.Join(repo, filepath.FromSlash(name)))
	if os.IsNotExist(err) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	work, err := modfile.ParseWork(name, data, nil)
	if err != nil {
		return nil, err
	}
	replaced := map[string]bool{}
	for _, r := range work.Replace {
		replaced[r.Old.Path] = true
	}
	return replaced, nil
}

// checkVersion checks that the version is one of the modules in this repository, written as in a tag.
func checkVersion(version string) error {
	if semver.Canonical(version) != version || version == "" || modpath.IsPseudoVersion(version) {
		return fmt.Errorf("the version %q is not of the form v1.2.3 or v1.2.3-rc.1; say for example: make release VERSION=v0.1.0", version)
	}
	return modpath.Check(rootPath, version)
}

// date writes the day of the release into the changelog in dir.
func date(dir, version string, now time.Time) error {
	file := filepath.Join(dir, changelog)
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	after, err := dated(string(text), version, now)
	if err != nil {
		return err
	}
	return os.WriteFile(file, []byte(after), 0o644)
}

var section = regexp.MustCompile(`(?m)^## .*\n`)

// dated returns a changelog in which the heading of its first section, such as "## 0.1.0 (unreleased)", has the day of the
// release instead, as in "## 0.1.0 - 2026-01-31".
func dated(text, version string, now time.Time) (string, error) {
	number := strings.TrimPrefix(version, "v")
	want := "## " + number + " (unreleased)\n"
	at := section.FindAllStringIndex(text, 2)
	if len(at) == 0 || text[at[0][0]:at[0][1]] != want {
		return "", fmt.Errorf("the first section of %s is not %q", changelog, strings.TrimSpace(want))
	}
	end := len(text)
	if len(at) > 1 {
		end = at[1][0]
	}
	if strings.TrimSpace(text[at[0][1]:end]) == "" {
		return "", fmt.Errorf("%s says nothing about %s", changelog, number)
	}
	return text[:at[0][0]] + "## " + number + " - " + now.Format(time.DateOnly) + "\n" + text[at[0][1]:], nil
}
