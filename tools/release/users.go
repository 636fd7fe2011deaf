package main

import (
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	modpath "golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

// proxy is a folder from which the go command gets the published modules, as by GOPROXY=file://.
type proxy struct {
	dir  string
	temp string // for the programs of users, and for their module cache: what they get is not left in that of this machine
}

// publish adds the tagged modules of the repository in dir.
func (p *proxy) publish(dir string, mods []*module, version string) error {
	for _, m := range mods {
		if !m.published {
			continue
		}
		escaped, err := modpath.EscapePath(m.path())
		if err != nil {
			return err
		}
		folder := filepath.Join(p.dir, filepath.FromSlash(escaped), "@v")
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return err
		}
		mod, err := git(dir, "show", m.tag(version)+":"+path.Join(m.dir, "go.mod"))
		if err != nil {
			return err
		}
		for name, text := range map[string]string{
			"list":            version,
			version + ".info": fmt.Sprintf(`{"Version": %q, "Time": %q}`, version, time.Now().UTC().Format(time.RFC3339)),
			version + ".mod":  mod,
		} {
			if err := os.WriteFile(filepath.Join(folder, name), []byte(text+"\n"), 0o644); err != nil {
				return err
			}
		}
		if err := writeZip(filepath.Join(folder, version+".zip"), dir, m, version); err != nil {
			return err
		}
	}
	return nil
}

// writeZip writes the module as the go command does that fetches it from the repository.
func writeZip(file, dir string, m *module, version string) error {
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	defer out.Close()
	subdir := m.dir
	if subdir == "." {
		subdir = ""
	}
	if err := zip.CreateFromVCS(out, modpath.Version{Path: m.path(), Version: version}, dir, m.tag(version), subdir); err != nil {
		return err
	}
	return out.Close()
}

// try gets each published module as a user does, builds a program that uses it, for the root that of the README, for others
// their examples, and installs the command. dir is the repository that was published.
func (p *proxy) try(w io.Writer, dir string, mods []*module, version string) error {
	env, err := p.environment()
	if err != nil {
		return err
	}
	for _, m := range mods {
		if !m.published {
			continue
		}
		began := time.Now()
		user, err := os.MkdirTemp(p.temp, "user")
		if err != nil {
			return err
		}
		if err := writeUser(user, filepath.Join(dir, filepath.FromSlash(m.dir)), m); err != nil {
			return err
		}
		build := []string{"test", "-c", "-o", os.DevNull, "."}
		if m.dir == "." {
			build = []string{"build", "-o", os.DevNull, "."}
		}
		for _, args := range [][]string{{"mod", "init", "example.com/user"}, {"get", m.path() + "@latest"}, build} {
			if _, err := command(user, env, "go", args...); err != nil {
				return fmt.Errorf("a user of %s: %w", m.path(), err)
			}
		}
		got, err := command(user, env, "go", "list", "-m", "-f", "{{.Version}}", m.path())
		if err != nil || got != version {
			return fmt.Errorf("a user of %s got %q: %v", m.path(), got, err)
		}
		fmt.Fprintf(w, "go get %s@%s, and a program that uses it: ok, %.1f s\n", m.path(), version, time.Since(began).Seconds())
	}

	began := time.Now()
	// go install does not read the sums in go.sum, and would have to ask for them.
	if _, err := command(p.temp, append(env, "GOSUMDB=off"), "go", "install", rootPath+"/cmd/lockkeeper@latest"); err != nil {
		return err
	}
	says, err := command(p.temp, nil, filepath.Join(p.temp, "bin", "lockkeeper"), "version")
	if err != nil || !strings.HasPrefix(says+"\n", "lockkeeper "+version+"\n") {
		return fmt.Errorf("the command of %s: %v\n%s", version, err, says)
	}
	fmt.Fprintf(w, "go install %s/cmd/lockkeeper@%s: ok, %.1f s\n", rootPath, version, time.Since(began).Seconds())
	return nil
}

// environment returns what makes the go command use the proxy, then the module cache of this machine, then the proxies that
// it uses otherwise.
func (p *proxy) environment() ([]string, error) {
	out, err := command(p.temp, []string{"GOWORK=off"}, "go", "env", "GONOSUMDB", "GOPROXY", "GOMODCACHE")
	if err != nil {
		return nil, err
	}
	lines := strings.Split(out, "\n")
	noSum, normal, cache := lines[0], lines[1], lines[2]
	return []string{
		"GOPROXY=file://" + p.dir + ",file://" + filepath.Join(cache, "cache", "download") + "," + normal,
		"GONOPROXY=none",
		"GONOSUMDB=" + rootPath + "," + noSum,
		"GOMODCACHE=" + filepath.Join(p.temp, "modcache"),
		"GOBIN=" + filepath.Join(p.temp, "bin"),
		"GOWORK=off",
		// Packages that were built with -trimpath are found in the build cache wherever their source is.
		"GOFLAGS=-mod=mod -modcacherw -trimpath",
	}, nil
}

// writeUser writes a program into dir that uses the module whose source is in source, and the sums of that module's dependencies.
func writeUser(dir, source string, m *module) error {
	sums, err := os.ReadFile(filepath.Join(source, "go.sum"))
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "go.sum"), sums, 0o644); err != nil {
		return err
	}
	if m.dir != "." {
		example, err := os.ReadFile(filepath.Join(source, "example_test.go"))
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, "example_test.go"), example, 0o644)
	}
	page, err := os.ReadFile(filepath.Join(source, "README.md"))
	if err != nil {
		return err
	}
	_, rest, _ := strings.Cut(string(page), "```go\n")
	program, _, ok := strings.Cut(rest, "```")
	if !ok {
		return fmt.Errorf("README.md has no program")
	}
	return os.WriteFile(filepath.Join(dir, "main.go"), []byte(program), 0o644)
}
