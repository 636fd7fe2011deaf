package inspector_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/inspector"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/redis/go-redis/v9"
)

func TestPagesSayWhichServerTheyShow(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", DB: 3, Username: "me", Password: "secret"})
	defer func() { _ = rdb.Close() }()
	k := must.Get(lockkeeper.New(rdb, &lockkeeper.Options{Prefix: "billing:"}))(t)
	defer func() { _ = k.Close() }()
	for server, want := range map[string]string{"": "redis://127.0.0.1:1/3, prefix <bdi>billing:</bdi>", "production <eu>": "production &lt;eu&gt;, prefix"} {
		h := must.Get(inspector.New(k, &inspector.Options{Server: server}))(t)
		defer h.Close()
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/nothing", nil))
		page := w.Body.String()
		check.That(t, w.Code == 404 && strings.Contains(page, want) && !strings.Contains(page, "secret") && !strings.Contains(page, "me:"), "%q:\n%s", server, page)
	}
}
