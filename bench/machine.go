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

	"github.com/redis/go-redis/v9"
)

// machine is where and with what the figures were taken.
type machine struct {
	Cores     int               `json:"cores"`
	CPU       string            `json:"cpu"`
	Kernel    string            `json:"kernel"`
	Load      string            `json:"load"` // averages over 1, 5 and 15 minutes before the run
	Go        string            `json:"go"`
	Redis     string            `json:"redis"`
	Etcd      string            `json:"etcd,omitempty"`
	Libraries map[string]string `json:"libraries"` // versions by module
}

// describe looks at the machine and the servers. What it cannot find out is "unknown".
func describe(ctx context.Context, rdb redis.UniversalClient, etcd bool) machine {
	m := machine{
		Cores: runtime.NumCPU(), Go: runtime.Version(), CPU: "unknown", Kernel: "unknown", Load: "unknown", Redis: "unknown",
		Libraries: versions(),
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

// versions is those of the modules that are compared, as this program was built with them.
func versions() map[string]string {
	all := map[string]string{}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return all
	}
	for _, dep := range info.Deps {
		for _, l := range libraries {
			if dep.Path == l.module {
				all[dep.Path] = dep.Version
			}
		}
		if dep.Path == "github.com/redis/go-redis/v9" {
			all[dep.Path] = dep.Version
		}
	}
	return all
}

// write says it in a few lines, with the setting of each library.
func (m machine) write(w io.Writer) {
	fmt.Fprintf(w, "%d cores of %s, %s, load %s, %s, Redis %s", m.Cores, m.CPU, m.Kernel, m.Load, m.Go, m.Redis)
	if m.Etcd != "" {
		fmt.Fprintf(w, ", etcd %s", m.Etcd)
	}
	fmt.Fprintln(w)
	for _, l := range libraries {
		fmt.Fprintf(w, "  %s", l.name)
		if v := m.Libraries[l.module]; v != "" {
			fmt.Fprintf(w, " %s", v)
		}
		fmt.Fprintf(w, ": %s\n", l.settings)
	}
	fmt.Fprintln(w)
}
