//go:build unix

package main

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// record is the text together with the fence under which it was written or read last. Both lie in one file, or one object,
// so that they change together.
type record struct {
	Fence uint64 `json:"fence"`
	Text  string `json:"text"`
}

// file is a text in a file. A new version is written beside it and renamed over it, so that readers see the old one or
// the new one and nothing in between.
//
// A file system has no rename that depends on what is there. So the check of the fence and the rename are made one step by
// flock on a second file, which is never renamed nor removed. This sets the limits:
//
//   - All writers must come by here, and the file system must have flock that all of them share: a local one does, on
//     network file systems it depends.
//   - Who is paused between the look and the rename keeps the others waiting, and nobody's context ends that. The kernel
//     frees the flock of a process that dies.
//   - After a power loss the file is the old one or the new one only if the disk does what fsync asks for.
//
// On a network file system, use a store that has conditional writes.
type file struct{ path string }

func openFile(path string) (store, error) { return file{path}, nil }

func (f file) read(_ context.Context, fence uint64) (text string, err error) {
	err = f.change(func(r *record) error {
		if err := r.raise(fence); err != nil {
			return err
		}
		text = r.Text
		return nil
	})
	return text, err
}

func (f file) write(_ context.Context, fence uint64, text string) error {
	return f.change(func(r *record) error {
		if err := r.raise(fence); err != nil {
			return err
		}
		r.Text = text
		return nil
	})
}

func (f file) overwrite(_ context.Context, text string) error {
	return f.change(func(r *record) error {
		r.Text = text
		return nil
	})
}

func (f file) Close() error { return nil }

// raise makes the fence the largest that was seen, or returns errStale if there was a larger one.
func (r *record) raise(fence uint64) error {
	if fence < r.Fence {
		return errStale
	}
	r.Fence = fence
	return nil
}

// change replaces the record by what do makes of it, unless do returns an error. Nobody else changes it meanwhile.
func (f file) change(do func(*record) error) error {
	guard, err := os.OpenFile(f.path+".lock", os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	defer guard.Close() // ends the flock
	if err := flock(guard); err != nil {
		return err
	}
	var r record
	old, err := os.ReadFile(f.path)
	if err == nil {
		err = json.Unmarshal(old, &r)
	} else if errors.Is(err, fs.ErrNotExist) { // the first version is still to come
		err = nil
	}
	if err != nil {
		return err
	}
	if err := do(&r); err != nil {
		return err
	}
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return replace(f.path, b)
}

// flock waits for the lock on the file. Go's runtime interrupts system calls with signals of its own.
func flock(f *os.File) error {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
		if !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// replace gives the file a new content in one step, which lasts when it returns.
func replace(path string, content []byte) (err error) {
	dir := filepath.Dir(path)
	temp, err := os.CreateTemp(dir, filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(temp.Name())
		}
	}()
	_, err = temp.Write(content)
	if err == nil {
		err = temp.Sync()
	}
	if err2 := temp.Close(); err == nil {
		err = err2
	}
	if err == nil {
		err = os.Rename(temp.Name(), path)
	}
	if err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync() // the rename is in the directory
}
