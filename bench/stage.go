package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// failure is what a stage panics with.
type failure string

// stage is what a part of the program has open, and closes at its end: what a test is to a test. Fatal, Fatalf and Skipf
// leave the part by a panic with a failure, so they are for its own goroutine only.
type stage struct {
	mu       sync.Mutex
	cleanups []func()
}

var _ redistest.TB = (*stage)(nil)

func (s *stage) Helper() {}

func (s *stage) Fatal(args ...any) { panic(failure(fmt.Sprint(args...))) }

func (s *stage) Fatalf(format string, args ...any) { panic(failure(fmt.Sprintf(format, args...))) }

func (s *stage) Skipf(format string, args ...any) { s.Fatalf(format, args...) }

func (s *stage) Cleanup(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cleanups = append(s.cleanups, f)
}

func (s *stage) TempDir() string {
	dir, err := os.MkdirTemp("", "lockkeeper-bench-")
	s.must(err)
	s.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func (s *stage) must(err error) {
	if err != nil {
		s.Fatal(err)
	}
}

// end closes what was opened, the last first.
func (s *stage) end() {
	s.mu.Lock()
	list := s.cleanups
	s.cleanups = nil
	s.mu.Unlock()
	for _, f := range slices.Backward(list) {
		f()
	}
}

// play runs a part of the program. The error is its failure.
func play(f func(s *stage)) (err error) {
	s := &stage{}
	defer s.end()
	defer func() {
		switch p := recover().(type) {
		case nil:
		case failure:
			err = fmt.Errorf("%s", p)
		default:
			panic(p)
		}
	}()
	f(s)
	return nil
}

// startEtcd starts an etcd-server of one member, with its data in memory where there is /dev/shm, and returns its URL. It
// returns "" if there is none on PATH.
func startEtcd(s *stage) string {
	path, err := exec.LookPath("etcd")
	if err != nil {
		return ""
	}
	parent := ""
	if _, err := os.Stat("/dev/shm"); err == nil {
		parent = "/dev/shm"
	}
	dir, err := os.MkdirTemp(parent, "lockkeeper-bench-")
	s.must(err)
	s.Cleanup(func() { _ = os.RemoveAll(dir) })
	url := func() string { return "http://127.0.0.1:" + strconv.Itoa(redistest.FreePort(s)) }
	clients, peers := url(), url()
	log, err := os.Create(filepath.Join(dir, "log"))
	s.must(err)
	defer func() { _ = log.Close() }()
	cmd := exec.Command(path, "--data-dir", filepath.Join(dir, "data"), "--log-level", "error",
		"--listen-client-urls", clients, "--advertise-client-urls", clients,
		"--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", "default="+peers)
	cmd.Stdout, cmd.Stderr = log, log
	s.must(redistest.StartProcess(cmd))
	s.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGKILL)
		_ = cmd.Wait()
	})
	for deadline := time.Now().Add(20 * time.Second); ; {
		if healthy(clients) {
			return clients
		}
		if time.Now().After(deadline) {
			text, _ := os.ReadFile(log.Name())
			s.Fatalf("etcd does not become healthy:\n%s", text)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func healthy(url string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/health", nil)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	defer func() { _ = resp.Body.Close() }()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode == http.StatusOK
}
