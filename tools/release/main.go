// Command release releases the published modules of this repository, all at one version. CONTRIBUTING.md says how it is used.
//
// It lists what stands in the way of the release. If nothing does, it makes the release in a copy of the repository, and
// builds programs of users against it, which get the modules from a file proxy; then it prints the tags. With -apply it
// makes the commit and the tags in the repository as well. It pushes nothing.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

func main() {
	version := flag.String("version", "", "the version, such as v0.1.0")
	apply := flag.Bool("apply", false, "make the commit and the tags")
	flag.Parse()
	repo, err := git(".", "rev-parse", "--show-toplevel")
	if err == nil {
		err = release(os.Stdout, repo, *version, *apply)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func release(w io.Writer, repo, version string, apply bool) error {
	mods, err := modules(repo)
	if err != nil {
		return err
	}
	found, err := problems(repo, mods, version)
	if err != nil {
		return err
	}
	if len(found) > 0 {
		return fmt.Errorf("%q cannot be released:\n- %s", version, strings.Join(found, "\n- "))
	}

	edit := func(dir string, mods []*module) error {
		if err := require(dir, mods, version); err != nil {
			return err
		}
		return date(dir, version, time.Now())
	}
	if err := rehearse(w, repo, version, edit); err != nil {
		return err
	}
	list := tags(mods, version)
	if !apply {
		fmt.Fprintf(w, "\n%s can be released. With APPLY=1 a commit that dates %s and requires %s gets the tags\n\n", version, changelog, version)
		fmt.Fprintf(w, "\t%s\n", strings.Join(list, "\n\t"))
		return nil
	}
	err = edit(repo, mods)
	if err == nil {
		err = commit(repo, version, list)
	}
	if err != nil {
		return fmt.Errorf("%w\nSee git status and git tag for what has been done", err)
	}
	fmt.Fprintf(w, "\n%s is tagged. This publishes it:\n\n\tgit push --atomic origin HEAD %s\n", version, strings.Join(list, " "))
	return nil
}

// rehearse makes the release in a copy of the last commit, where edit changes the files, and builds programs of users against it.
func rehearse(w io.Writer, repo, version string, edit func(dir string, mods []*module) error) error {
	temp, err := os.MkdirTemp("", "release")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	dir := filepath.Join(temp, "repository")
	if _, err := git(temp, "clone", "--quiet", "--depth=1", "file://"+repo, dir); err != nil {
		return err
	}
	for _, setting := range [][2]string{
		{"user.name", "release"}, {"user.email", "release@example.com"},
		{"commit.gpgSign", "false"}, {"tag.gpgSign", "false"}, {"core.hooksPath", os.DevNull},
	} {
		if _, err := git(dir, "config", setting[0], setting[1]); err != nil {
			return err
		}
	}
	mods, err := modules(dir)
	if err != nil {
		return err
	}
	if err := edit(dir, mods); err != nil {
		return err
	}
	if err := commit(dir, version, tags(mods, version)); err != nil {
		return err
	}
	p := &proxy{dir: filepath.Join(temp, "proxy"), temp: temp}
	if err := p.publish(dir, mods, version); err != nil {
		return err
	}
	return p.try(w, dir, mods, version)
}

// commit commits what has changed in the files of dir, and makes the tags.
func commit(dir, version string, tags []string) error {
	if _, err := git(dir, "commit", "--quiet", "--all", "--allow-empty", "--message=lockkeeper: release "+version); err != nil {
		return err
	}
	for _, tag := range tags {
		if _, err := git(dir, "tag", "--annotate", "--message="+tag, tag); err != nil {
			return err
		}
	}
	return nil
}

// git runs git in dir, and returns what it prints, without the newline at its end.
func git(dir string, args ...string) (string, error) {
	return command(dir, nil, "git", args...)
}

// command runs a program in dir, with more variables in its environment, and returns what it prints, without the newline at its end.
func command(dir string, env []string, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", errors.Join(fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err), errors.New(strings.TrimSpace(stderr.String())))
	}
	return strings.TrimRight(stdout.String(), "\n"), nil
}
