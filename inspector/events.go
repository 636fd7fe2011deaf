package inspector

import (
	"bytes"
	"errors"
	"net/http"
	"time"
)

const (
	// heartbeat is how often an event stream sends something, so that a connection that broke is noticed, and the age of an old
	// state is up to date.
	heartbeat = 5 * time.Second

	// writeTimeout is how long a browser may take to receive an event.
	writeTimeout = 10 * time.Second
)

// events serves the stream of events that updates a page: each event is the part of the page that changes, as HTML.
func (h *Handler) events(w http.ResponseWriter, r *http.Request) error {
	select {
	case h.streams <- struct{}{}:
		defer func() { <-h.streams }()
	default:
		return errBusy
	}
	switch of := r.URL.Query().Get("of"); of {
	case "list":
		return h.listEvents(w, r)
	case "lock":
		return h.lockEvents(w, r)
	default:
		return badRequest("there are no events of %q", of)
	}
}

func (h *Handler) listEvents(w http.ResponseWriter, r *http.Request) error {
	q, err := parseListQuery(r.URL.Query())
	if err != nil {
		return err
	}
	watch, err := h.watches.list("")
	if err != nil {
		return err
	}
	if p := q.pattern(watch.current(r.Context(), patience)); p != "" {
		if watch, err = h.watches.list(p); err != nil {
			return err
		}
	}
	return stream(h, w, r, watch, "list-live", func(s state[listing]) any { return newListView(q, s, h.opts.Interval, h.watches.source.Stats()) })
}

func (h *Handler) lockEvents(w http.ResponseWriter, r *http.Request) error {
	q, err := parseLockQuery(r.URL.Query())
	if err != nil {
		return err
	}
	watch, err := h.watches.lock(q.id)
	if err != nil {
		return err
	}
	canBreak := h.mayBreak(r)
	return stream(h, w, r, watch, "lock-live", func(s state[lockState]) any { return newLockView(q, s, h.opts.Interval, canBreak) })
}

// stream sends each state of a watch, rendered by a template, until the browser or the handler closes it. A browser that is
// slow does not get those states that are old by then.
func stream[T any](h *Handler, w http.ResponseWriter, r *http.Request, watch *watch[T], name string, view func(state[T]) any) error {
	rc := http.NewResponseController(w)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // for nginx
	_ = rc.SetWriteDeadline(time.Now().Add(writeTimeout))
	if err := rc.Flush(); err != nil {
		return &refused{http.StatusNotImplemented, errors.New("pages cannot be updated: the server cannot stream")}
	}
	_, _ = w.Write([]byte("retry: 1000\n\n")) // ms; an error is that of the next write too
	watch.join()
	defer watch.leave()
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	var html bytes.Buffer
	var sent []byte
	for {
		s, changed := watch.last()
		html.Reset()
		if !s.at.IsZero() || s.err != nil {
			if err := pages.ExecuteTemplate(&html, name, view(s)); err != nil {
				h.opts.Logger.Error("inspector: cannot render an event", "event", name, "err", err)
				return nil
			}
		}
		_ = rc.SetWriteDeadline(time.Now().Add(writeTimeout))
		if _, err := w.Write(event(html.Bytes(), sent)); err != nil {
			return nil // the browser has gone
		}
		if err := rc.Flush(); err != nil {
			return nil
		}
		sent = append(sent[:0], html.Bytes()...)
		select {
		case <-changed:
		case <-beat.C:
		case <-r.Context().Done():
			return nil
		case <-h.watches.ctx.Done():
			return nil
		}
	}
}

// event returns an event with some HTML, or a comment if the browser has it already.
func event(html, sent []byte) []byte {
	if bytes.Equal(html, sent) {
		return []byte(": nothing has changed\n\n")
	}
	b := []byte("data: ")
	b = append(b, bytes.ReplaceAll(bytes.TrimSpace(html), []byte("\n"), []byte("\ndata: "))...)
	return append(b, "\n\n"...)
}
