//go:build unix

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// object is a text in an object store that has conditional writes: PUT with If-Match, as in Amazon S3 and Azure Blob
// Storage, or with the object's generation, as in Google Cloud Storage.
//
// The client compares the fences, and the store ensures that nothing happens in between: it does the PUT only if the
// object is still the version whose fence the client has read. The fence lies in the body. In the metadata it would
// be as easy to find, but some stores make the ETag of the body alone
// (https://docs.aws.amazon.com/AmazonS3/latest/API/API_Object.html), and then a fence that was raised without another
// body would go unnoticed.
type object struct{ url string }

func openObject(url string) (store, error) { return &object{url}, nil }

func (o *object) read(ctx context.Context, fence uint64) (text string, err error) {
	err = o.change(ctx, func(r *record) error {
		text = r.Text
		return r.raise(fence)
	})
	return text, err
}

func (o *object) write(ctx context.Context, fence uint64, text string) error {
	return o.change(ctx, func(r *record) error {
		r.Text = text
		return r.raise(fence)
	})
}

func (o *object) overwrite(ctx context.Context, text string) error {
	_, err := o.put(ctx, record{Text: text}, "")
	return err
}

func (o *object) Close() error { return nil }

// change replaces the record by what do makes of it, unless do returns an error. If somebody else has replaced it
// meanwhile, it begins again; each time somebody has got on, so it ends.
//
// After an error of the network the change may have been made all the same. Do it again with the same fence.
func (o *object) change(ctx context.Context, do func(*record) error) error {
	for {
		r, etag, err := o.get(ctx)
		if err != nil {
			return err
		}
		if err := do(&r); err != nil {
			return err
		}
		if done, err := o.put(ctx, r, etag); done || err != nil {
			return err
		}
	}
}

// absent is the ETag of an object that is not there yet.
const absent = "none"

// get returns the record and the ETag of its version.
func (o *object) get(ctx context.Context) (r record, etag string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, o.url, nil)
	if err != nil {
		return r, "", err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return r, "", err
	}
	defer answer.Body.Close()
	switch answer.StatusCode {
	case http.StatusOK:
		etag = answer.Header.Get("ETag")
		if etag == "" {
			return r, "", errors.New("the store gives no ETag, so it cannot compare")
		}
		return r, etag, json.NewDecoder(answer.Body).Decode(&r)
	case http.StatusNotFound:
		return r, absent, nil
	}
	return r, "", fmt.Errorf("the store says %s", answer.Status)
}

// put writes the record over the version that has this ETag, and returns false if there is another now. Without an ETag
// it writes over whatever is there.
func (o *object) put(ctx context.Context, r record, etag string) (done bool, err error) {
	b, err := json.Marshal(r)
	if err != nil {
		return false, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPut, o.url, bytes.NewReader(b))
	if err != nil {
		return false, err
	}
	switch etag {
	case "":
	case absent:
		request.Header.Set("If-None-Match", "*")
	default:
		request.Header.Set("If-Match", etag)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return false, err
	}
	defer answer.Body.Close()
	switch answer.StatusCode {
	case http.StatusOK:
		return true, nil
	case http.StatusPreconditionFailed, http.StatusConflict: // S3 says the latter if the two came at the same moment
		return false, nil
	}
	return false, fmt.Errorf("the store says %s", answer.Status)
}

// objects is an object store in memory: what of one the example needs. It checks the condition and stores in one step.
type objects struct {
	mu     sync.Mutex
	bodies map[string][]byte // by path
}

// serveObjects starts an object store.
func serveObjects() (url string, stop func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	server := &http.Server{ReadHeaderTimeout: time.Second, Handler: &objects{bodies: map[string][]byte{}}}
	go func() { _ = server.Serve(l) }()
	return "http://" + l.Addr().String(), func() { _ = server.Close() }, nil
}

func (s *objects) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old, there := s.bodies[r.URL.Path]
	etag := fmt.Sprintf("%q", fmt.Sprintf("%x", sha256.Sum256(old)))
	match, noneMatch := r.Header.Get("If-Match"), r.Header.Get("If-None-Match")
	switch {
	case r.Method == http.MethodGet && !there:
		http.NotFound(w, r)
	case r.Method == http.MethodGet:
		w.Header().Set("ETag", etag)
		_, _ = w.Write(old)
	case r.Method != http.MethodPut:
		http.Error(w, "GET or PUT", http.StatusMethodNotAllowed)
	case match != "" && (!there || match != etag), noneMatch == "*" && there:
		http.Error(w, "another version is there", http.StatusPreconditionFailed)
	default:
		s.bodies[r.URL.Path] = body
	}
}
