package lockkeeper_test

import (
	"bytes"
	"context"
	"log/slog"
	"regexp"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/lockkeeper/lockkeeper/semaphore"
)

func TestLogHooks(t *testing.T) {
	var out bytes.Buffer
	handler := slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})
	rdb, disconnect := connect()
	defer disconnect()
	ctx := context.Background()
	k := must.Get(lockkeeper.New(rdb, &lockkeeper.Options{Hooks: lockkeeper.LogHooks(slog.New(handler), slog.LevelDebug)}))(t)
	defer k.Close()
	m := must.Get(mutex.New(k, "a name", &mutex.Options{Retain: true}))(t)
	l := must.Get(m.Lock(ctx))(t)
	if _, err := m.TryLock(ctx); err == nil {
		t.Fatal("acquired twice")
	}
	_ = l.Release(ctx)
	s := must.Get(semaphore.New(k, "s", 5, nil))(t)
	must.OK(t, s.SetLimit(ctx, 4))
	for _, change := range [][2]string{{`(took|held)=\S+`, "$1=X"}, {`token=\S+`, "token=T"}, {`fence=\d+`, "fence=F"}, {`request=\d+`, "request=R"}} {
		out = *bytes.NewBuffer(regexp.MustCompile(change[0]).ReplaceAll(out.Bytes(), []byte(change[1])))
	}
	want := `level=DEBUG msg="lock acquired" kind=mutex name="a name" request=R token=T fence=F took=X
level=INFO msg="lock not acquired" kind=mutex name="a name" request=R took=X err="lockkeeper: mutex \"a name\": not acquired`
	if !strings.HasPrefix(out.String(), want) {
		t.Errorf("%s\nwant\n%s", out.String(), want)
	}
	for _, line := range []string{
		`level=DEBUG msg="lock released" kind=mutex name="a name" request=R token=T fence=F held=X`,
		`level=DEBUG msg="lock limit changed" kind=semaphore name=s`, ` limit=4`,
	} {
		if !strings.Contains(out.String(), line) {
			t.Errorf("%s\nhas not %s", out.String(), line)
		}
	}
	out.Reset()
	quiet := lockkeeper.LogHooks(slog.New(slog.NewTextHandler(&out, nil)), slog.LevelDebug)
	quiet.Queued(lockkeeper.Event{Context: ctx, Position: 3})
	quiet.Lost(lockkeeper.Event{Context: ctx, Reason: "expired", Local: true})
	if got := out.String(); strings.Contains(got, "queued") || !strings.Contains(got, `msg="lock lost" request=0 held=0s inside=true reason=expired`) {
		t.Error(got)
	}
}
