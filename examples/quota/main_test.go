package main

import (
	"errors"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

// The processes that call the API are this very binary.
func TestMain(m *testing.M) {
	if os.Getenv(envAPI) != "" || os.Getenv(envGateway) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestProcessesStayWithinBothLimits(t *testing.T) {
	got, err := run("", 2*time.Second)
	// On a busy machine it takes longer until more is called than a window permits.
	for length := 4 * time.Second; err == nil && got.guarded.calls <= perWindow && length <= 16*time.Second; length *= 2 {
		got, err = run("", length)
	}
	if err != nil {
		t.Fatal(err)
	}
	got.print(t.Output()) // how much there is without the limit is a matter of the machine
	if err := got.guarded.broken(); errors.Is(err, errMargin) {
		t.Log(err)
	} else if err != nil {
		t.Error(err)
	}
	if got.guarded.calls <= perWindow || got.guarded.granted == 0 {
		t.Errorf("%+v: the limits were not put to the test", got.guarded)
	}
	if err := got.broken(); err != nil {
		t.Error(err)
	}
	if got.gateway.served == 0 { // a slow machine may not reach the limit
		t.Errorf("%+v: the gateway was not put to the test", got.gateway)
	}
	if got.answers[2] != http.StatusOK || got.answers[3] != http.StatusTooManyRequests || got.retryAfter == "" {
		t.Errorf("behind the middleware: %d, Retry-After: %s", got.answers, got.retryAfter)
	}
}

func TestBrokenLimitReported(t *testing.T) {
	for _, x := range []struct {
		tally
		want string
	}{
		{tally{atOnce: atOnce, inWindow: perWindow, granted: perWindow, spread: time.Hour}, ""},
		{tally{atOnce: atOnce + 1}, "at once"},
		{tally{granted: perWindow + 1}, "permits"},
		{tally{inWindow: perWindow + 1, spread: margin}, "101 calls in 1s"},
		{tally{inWindow: perWindow + 1, spread: margin + 1}, errMargin.Error()},
	} {
		if err := x.broken(); (err == nil) != (x.want == "") || err != nil && !strings.Contains(err.Error(), x.want) {
			t.Errorf("%+v: %v", x.tally, err)
		}
	}
}
