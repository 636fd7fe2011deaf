package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// machine is where and with what the figures were taken.
type machine struct {
	Date     string `json:"date"`
	Commit   string `json:"commit"` // with -dirty if files are changed
	Cores    int    `json:"cores"`
	CPU      string `json:"cpu"`
	Kernel   string `json:"kernel"`
	Load     string `json:"load"` // averages over 1, 5 and 15 minutes before the run
	Go       string `json:"go"`
	GoRedis  string `json:"go-redis"` // the client that all but rueidislock and etcd use
	Redis    string `json:"redis"`
	Etcd     string `json:"etcd,omitempty"`
	Settings []used `json:"settings"`
}

// used is a library as it was used.
type used struct {
	Library string `json:"library"`
	Version string `json:"version,omitempty"`
	Setting string `json:"setting"`
}

// describe returns a description of the machine and the servers. What it cannot find out is "unknown".
func describe(ctx context.Context, rdb redis.UniversalClient, etcd bool) machine {
	m := machine{Cores: runtime.NumCPU(), Go: runtime.Version(), CPU: "unknown", Kernel: "unknown", Load: "unknown", Redis: "unknown",
		Date: time.Now().UTC().Format(time.DateOnly), Commit: "unknown"}
	if out, err := exec.Command("git", "describe", "--always", "--dirty", "--exclude=*").Output(); err == nil {
		m.Commit = strings.TrimSpace(string(out))
	}
	versions := versions()
	m.GoRedis = versions["github.com/redis/go-redis/v9"]
	use := func(name, module, setting string) {
		m.Settings = append(m.Settings, used{name, versions[module], setting})
	}
	for _, l := range libraries {
		use(l.name, l.module, l.settings)
	}
	for _, l := range readWrites {
		use(l.name, l.module, l.settings)
	}
	for _, l := range limiters {
		use(l.name, l.module, l.settings)
	}
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if v, ok := field(string(text), "model name"); ok {
			m.CPU = v
		}
	}
	if text, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel = runtime.GOOS + " " + strings.TrimSpace(string(text))
	}
	if text, err := os.ReadFile("/proc/loadavg"); err == nil {
		if f := strings.Fields(string(text)); len(f) >= 3 {
			m.Load = strings.Join(f[:3], " ")
		}
	}
	if info, err := rdb.Info(ctx, "server").Result(); err == nil {
		if v, ok := field(info, "redis_version"); ok {
			m.Redis = v
		}
	}
	if etcd {
		m.Etcd = "unknown"
		if out, err := exec.Command("etcd", "--version").Output(); err == nil {
			if v, ok := field(string(out), "etcd Version"); ok {
				m.Etcd = v
			}
		}
	}
	return m
}

// field is the value in the first line of the form "name: value".
func field(text, name string) (string, bool) {
	for line := range strings.Lines(text) {
		k, v, ok := strings.Cut(line, ":")
		if ok && strings.TrimSpace(k) == name {
			return strings.TrimSpace(v), true
		}
	}
	return "", false
}

// versions is those of the modules that this program was built with.
func versions() map[string]string {
	all := map[string]string{}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			all[dep.Path] = dep.Version
		}
	}
	return all
}

// write says it in a few lines, with the setting of each library.
func (m machine) write(w io.Writer) {
	fmt.Fprintf(w, "%d cores of %s, %s, load %s, %s, go-redis %s, Redis %s", m.Cores, m.CPU, m.Kernel, m.Load, m.Go, m.GoRedis, m.Redis)
	if m.Etcd != "" {
		fmt.Fprintf(w, ", etcd %s", m.Etcd)
	}
	fmt.Fprintln(w)
	for _, l := range m.Settings {
		fmt.Fprintf(w, "  %s: %s\n", strings.TrimSpace(l.Library+" "+l.Version), l.Setting)
	}
	fmt.Fprintln(w)
}
